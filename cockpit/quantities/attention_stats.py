"""How attention spreads over its keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit.engine.needs import InForward
from cockpit.engine.step import NotChecked, PerModule, Step
from cockpit.gradients import Call
from cockpit.quantities.quantity import Quantity

PIECE = 2**23
"""Number of attention weights that are computed at a time, unless a single sample has more."""


@dataclass(frozen=True)
class AttentionMoments(InForward):
    """Entropy and largest possible entropy per head, `[heads]`, and largest logit, `[]`, of every attention module."""

    def see(self, name: str, call: Call, output: Any) -> dict[str, Tensor] | None:
        """Return those that can be had.

        Raises:
            NotChecked: for attention whose weights are neither returned nor known how to compute.
        """
        module = call.module
        if not is_attention(module):
            return None
        own = type(module).forward is nn.MultiheadAttention.forward
        if own and isinstance(module, nn.MultiheadAttention):
            with torch.autocast(call.input.device.type, enabled=False):
                return of_inputs(module, *call.args, **call.kwargs)
        for weights in output[1:] if isinstance(output, tuple | list) else ():
            if isinstance(weights, Tensor) and weights.dim() == 4 and is_softmax(weights):
                weights = weights.detach().float()
                entropies = torch.special.entr(weights).sum(-1).mean((0, 2))
                keys = weights.gt(0).flatten(0, 1).any(0).sum(-1)  # [queries], what a mask leaves
                return {"entropy": entropies, "room": keys.log().mean().expand_as(entropies)}
        raise NotChecked(
            f"{type(module).__name__} returns no attention weights (models of transformers do when "
            'they are loaded with attn_implementation="eager")'
        )

    def part(self, name: str, call: Call, output: Any) -> tuple[dict[str, Tensor], int] | None:
        """Return the same, and how many queries there are."""
        seen = self.see(name, call, output)
        return None if seen is None else (seen, call.input.numel() // call.input.shape[-1])

    def joined(self, parts: Sequence[tuple[dict[str, Tensor], int]]) -> dict[str, Tensor]:
        """Average the entropies over all queries, and take the largest logit."""
        queries = sum(count for _, count in parts)
        value = {
            key: torch.stack([seen[key] * (count / queries) for seen, count in parts]).sum(0)
            for key in ("entropy", "room")
        }
        if all("largest_logit" in seen for seen, _ in parts):
            value["largest_logit"] = torch.stack([s["largest_logit"] for s, _ in parts]).amax()
        return value


def is_attention(module: nn.Module) -> bool:
    """Whether a module looks like attention, and no module in it does."""
    return "Attention" in type(module).__name__ and not any(
        "Attention" in type(part).__name__ for part in module.modules() if part is not module
    )


def is_softmax(weights: Tensor) -> bool:
    """Whether a tensor is the result of a softmax, but for dropout, precision and shape.

    Modules return other things of the same shape as well, such as biases of the positions.
    """
    node: Any = weights.grad_fn
    while node is not None and node.name() in AFTER_SOFTMAX:
        node = node.next_functions[0][0]
    return node is not None and node.name() == "SoftmaxBackward0"


AFTER_SOFTMAX = {
    f"{operation}Backward0"
    for operation in (
        *("NativeDropout", "Mul", "ToCopy", "View", "UnsafeView", "ReshapeAlias"),
        *("Transpose", "Clone", "Unsqueeze", "Expand"),
    )
}
"""Operations that leave attention weights what they are; dropout multiplies, too."""


def of_inputs(
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> dict[str, Tensor]:
    """Return what the weights are like that `module` computes from these inputs.

    Raises:
        NotChecked: if the module adds keys of its own.
    """
    if module.bias_k is not None or module.add_zero_attn:
        raise NotChecked("it adds keys of its own, by add_bias_kv or add_zero_attn")
    if query.dim() == 2:
        query, key = query.unsqueeze(0), key.unsqueeze(0)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    elif not module.batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    q, k = projections(module, query, key)  # [N, heads, L or S, width]
    (n, heads, length, width), sources = q.shape, k.shape[2]
    mask = torch.zeros((), dtype=q.dtype, device=q.device)
    if attn_mask is not None:
        of_heads = attn_mask.reshape(-1, heads if attn_mask.dim() == 3 else 1, length, sources)
        mask = mask + added(of_heads, q.dtype)  # [N or 1, heads or 1, L, S]
    if key_padding_mask is not None:
        mask = mask + added(key_padding_mask.reshape(n, 1, 1, sources), q.dtype)
    keys = mask.broadcast_to(*mask.shape[:-2], length, sources).ne(-math.inf).sum(-1)
    room = keys.log().mean(-1).broadcast_to(n, heads).mean(0)
    mask = mask.expand(n, heads, length, sources)
    entropies, largest = [], []
    count = max(1, PIECE // (heads * length * sources))
    for piece in range(0, n, count):
        samples = slice(piece, piece + count)
        logits = q[samples] @ k[samples].transpose(-1, -2) / math.sqrt(width)  # [n, heads, L, S]
        entropies.append(
            torch.special.entr((logits + mask[samples]).softmax(-1)).sum(-1).mean(2)  # [n, heads]
        )
        largest.append(logits.abs_().masked_fill_(mask[samples] == -math.inf, 0).amax())
    return {
        "entropy": torch.cat(entropies).mean(0),
        "room": room,
        "largest_logit": torch.stack(largest).amax(),
    }


def projections(module: nn.MultiheadAttention, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys, `[N, heads, length, width]`, in float32 at least."""
    size = module.embed_dim
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight[:size], module.in_proj_weight[size : 2 * size]
    else:
        weights = module.q_proj_weight, module.k_proj_weight
    bias = module.in_proj_bias
    biases = (None, None) if bias is None else (bias[:size], bias[size : 2 * size])
    dtype = torch.promote_types(module.out_proj.weight.dtype, torch.float32)
    q, k = (
        F.linear(x.to(dtype), w.to(dtype), None if b is None else b.to(dtype))
        .unflatten(-1, (module.num_heads, module.head_dim))
        .transpose(1, 2)
        for x, w, b in zip((query, key), weights, biases, strict=True)
    )
    return q, k


def added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask as what is added to the logits; a true entry of a boolean one is left out."""
    if mask.dtype is not torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)


@dataclass(frozen=True)
class AttentionStats(Quantity):
    r"""Entropy, spread and largest logit of every attention module.

    Formula: with weights :math:`a_{qk} = \mathrm{softmax}_k(Q K^\top / \sqrt{d} + M)_{qk}` of a
    head, ``entropy`` is :math:`-\sum_k a_{qk} \ln a_{qk}`, averaged over queries and samples, for
    each head; ``spread`` is the mean over the heads of what part this is of the largest that it could be, the
    average of :math:`\ln` of the number of keys that the mask M leaves; ``largest_logit`` is the largest
    :math:`\lvert Q K^\top / \sqrt{d} \rvert` over heads, samples, and those pairs that the mask leaves.

    All are computed anew from the inputs of ``nn.MultiheadAttention``, before dropout and in float32 at
    least. Other modules that have "Attention" in the name of their class and return the weights,
    ``(output, weights)`` with weights `[N, heads, queries, keys]`, have an ``entropy`` and a ``spread`` of
    what they return; those that return none are noted in the log as not checked.

    How to read it: the entropy lies between 0 (one key) and ln of the number of keys (all alike).
    One that falls to 0 early in training, while logits grow into the tens, is the collapse that
    goes before a diverging loss. Heads that stay at the upper end do not choose.

    Source: Zhai et al. (2023), arXiv:2303.06296; Dehghani et al. (2023), arXiv:2302.05442.

    With accumulation: the attention of the first micro-batch.
    """

    moments = AttentionMoments()

    def compute(self, step: Step) -> dict[str, PerModule]:
        """Return ``entropy``, `[heads]`, ``spread`` and ``largest_logit``, `[]`, by module."""
        of_modules: PerModule = step[self.moments]
        if not of_modules:
            raise NotChecked("no attention module was called whose weights can be had", usual=True)
        statistics: dict[str, PerModule] = {}
        for module, of_one in of_modules.items():
            values = {name: value for name, value in of_one.items() if name != "room"}
            # Where there is a single key, nothing could be chosen: NaN.
            values["spread"] = (of_one["entropy"] / of_one["room"]).mean()
            for name, value in values.items():
                statistics.setdefault(name, PerModule())[module] = value
        return statistics
