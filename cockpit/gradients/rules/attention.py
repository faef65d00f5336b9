"""Multi-head attention: products, as for the Linear layers that its projections are.

What lies between the projections is computed once more on the whole batch, by PyTorch's own function
with the identity for its projections, in the random state of the forward pass where that drew
numbers (dropout). The gradient is then known at each projection.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit.errors import Unsupported
from cockpit.gradients.batch import Batch, working_dtype
from cockpit.gradients.handle import Dense, IndividualGradients
from cockpit.gradients.products import Products
from cockpit.gradients.rules.registry import Call, rule_for
from cockpit.gradients.rules.rerun import unseen
from cockpit.gradients.stacked import Stacked


@rule_for(nn.MultiheadAttention, how="closed form, run again", draws=True, borrows=("out_proj",))
def attention(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch
) -> dict[str, IndividualGradients]:
    """Serve attention in either layout, with masks, extra keys and dropout.

    It uses the parameters of its output projection without calling that layer.
    """
    return _Attention(call, batch).handles(grads)


class _Attention:
    """One call of an attention layer, all of it with the positions first: `[T, N, E]`."""

    def __init__(self, call: Call, batch: Batch) -> None:
        module = call.module
        assert isinstance(module, nn.MultiheadAttention)
        self.module, self.batch, self.call = module, batch, call
        signature = inspect.signature(nn.MultiheadAttention.forward)
        bound = signature.bind(module, *call.args, **call.kwargs)
        bound.apply_defaults()
        self.arguments: dict[str, Any] = bound.arguments
        self.batched = self.arguments["query"].dim() == 3
        self.drew = _drew(call, module)
        self.dtype = working_dtype(module.out_proj.weight)
        # Random numbers may come out differently in another precision.
        self.run_dtype = None if self.drew else self.dtype
        given = {name: self.arguments[name] for name in ("query", "key", "value")}
        ordered = {id(value): self._positions_first(value) for value in given.values()}
        self.inputs = [
            ordered[id(value)] for value in given.values()
        ]  # one object where it was one

    def _positions_first(self, value: Tensor) -> Tensor:
        value = self._cast(value)
        if not self.batched:
            value = value.unsqueeze(1)
        elif self.module.batch_first:
            value = value.transpose(0, 1)
        if value.shape[1] != self.batch.size:
            raise Unsupported(
                f"its input has shape {list(value.shape)} with the positions first, and the second "
                f"dimension is not that of the {self.batch.size} samples; check its batch_first"
            )
        return value

    def _cast(self, value: Tensor) -> Tensor:
        value = value.detach()
        if self.run_dtype is None or not value.is_floating_point():
            return value
        return value.to(self.run_dtype)

    def handles(self, grads: tuple[Tensor | None, ...]) -> dict[str, IndividualGradients]:
        """Return the handles of all parameters."""
        with unseen(mappable=False):
            if self.drew:
                assert self.call.conditions is not None
                with self.call.conditions.restored():
                    projected, extra, attended, weights = self._run()
            else:
                projected, extra, attended, weights = self._run()
        attended_grad, out_grad = self._before_projection(grads[0], attended)
        reached = [(attended, attended_grad)]
        if len(grads) > 1 and grads[1] is not None and weights is not None:
            reached.append((weights, grads[1].to(weights.dtype).reshape(weights.shape)))
        found = torch.autograd.grad(
            [output for output, _ in reached],
            [*projected, *extra],
            [grad for _, grad in reached],
            materialize_grads=True,
        )
        handles = self._output_projection(attended, out_grad)
        handles |= self._input_projections(found[:3])
        for name, grad in zip(("bias_k", "bias_v"), found[3:], strict=len(found) == 5):
            handles[name] = Dense(self.batch, self._scaled(grad).transpose(0, 1).unsqueeze(1))
        return handles

    # -- the forward pass, once more --------------------------------------------------------------

    def _run(self) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor | None]:
        """Return the projections, the extra key and value of each sample, what is attended to, and the weights."""
        module, arguments, size = self.module, self.arguments, self.batch.size
        with torch.no_grad():
            projected = [
                F.linear(*terms) for terms in zip(self.inputs, *self._terms(), strict=True)
            ]
        projected = [value.detach().requires_grad_() for value in projected]
        q, k, v = projected
        extra: list[Tensor] = []
        masks = {name: arguments[name] for name in ("attn_mask", "key_padding_mask")}
        masks = {name: None if m is None else self._cast(m) for name, m in masks.items()}
        if not self.batched and masks["key_padding_mask"] is not None:
            masks["key_padding_mask"] = masks["key_padding_mask"].unsqueeze(0)
        if module.bias_k is not None and module.bias_v is not None:
            extra = [
                self._cast(bias).to(k.dtype).expand(1, size, -1).clone().requires_grad_()
                for bias in (module.bias_k, module.bias_v)
            ]
            k, v = torch.cat([k, extra[0]]), torch.cat([v, extra[1]])
            masks = {name: None if m is None else F.pad(m, (0, 1)) for name, m in masks.items()}
        identity = torch.eye(module.embed_dim, dtype=q.dtype, device=q.device)
        attended, weights = F.multi_head_attention_forward(
            q, k, v,
            module.embed_dim, module.num_heads, None, None, None, None,
            module.add_zero_attn, module.dropout, identity, None,
            training=self.call.training,
            need_weights=arguments["need_weights"],
            average_attn_weights=arguments["average_attn_weights"],
            is_causal=arguments["is_causal"],
            use_separate_proj_weight=True,
            q_proj_weight=identity, k_proj_weight=identity, v_proj_weight=identity,
            **masks,
        )  # fmt: skip
        return projected, extra, attended, weights

    def _terms(self) -> tuple[list[Tensor], list[Tensor | None]]:
        """Return the weights and biases of the three input projections."""
        module = self.module
        if module.in_proj_weight is None:
            weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
        else:
            weights = list(module.in_proj_weight.chunk(3))
        bias = module.in_proj_bias
        biases: list[Tensor | None]
        biases = [None] * 3 if bias is None else [self._cast(b) for b in bias.chunk(3)]
        return [self._cast(weight) for weight in weights], biases

    # -- the projections --------------------------------------------------------------------------

    def _before_projection(self, grad: Tensor | None, attended: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients before and after the output projection, `[T, N, E]`."""
        if grad is None:  # only the attention weights take part in the loss
            return torch.zeros_like(attended), attended.new_zeros(attended.shape, dtype=self.dtype)
        grad = grad.detach().to(self.dtype)
        if not self.batched:
            grad = grad.unsqueeze(1)
        elif self.module.batch_first:
            grad = grad.transpose(0, 1)
        weight = self.module.out_proj.weight.detach().to(self.dtype)
        return (grad @ weight).to(attended.dtype), grad

    def _scaled(self, grad: Tensor) -> Tensor:
        return grad.to(self.dtype) * self.batch.scale

    def _products(self, rows: int, inputs: Tensor, grad: Tensor) -> Products:
        """Return the gradients of a weight `[rows, I]` from inputs `[T, N, I]` and gradients `[T, N, rows]`."""
        a, b = (
            value.permute(1, 2, 0).unsqueeze(1) for value in (inputs.detach().to(self.dtype), grad)
        )
        return Products(self.batch, torch.Size([rows, inputs.shape[2]]), a, b)

    def _output_projection(self, attended: Tensor, grad: Tensor) -> dict[str, IndividualGradients]:
        grad = self._scaled(grad)
        weight = self._products(grad.shape[2], attended, grad)
        handles: dict[str, IndividualGradients] = {"out_proj.weight": weight}
        if self.module.out_proj.bias is not None:
            handles["out_proj.bias"] = Dense(self.batch, grad.sum(0))
        return handles

    def _input_projections(self, found: tuple[Tensor, ...]) -> dict[str, IndividualGradients]:
        rows = self.module.embed_dim
        grads = [self._scaled(grad) for grad in found]
        handles: dict[str, IndividualGradients] = {}
        if self.module.in_proj_bias is not None:
            handles["in_proj_bias"] = Dense(self.batch, torch.cat([g.sum(0) for g in grads], dim=1))
        if self.module.in_proj_weight is None:
            names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
            for name, inputs, grad in zip(names, self.inputs, grads, strict=True):
                handles[name] = self._products(rows, inputs, grad)
            return handles
        blocks: list[IndividualGradients] = []
        start = 0
        for stop in range(1, 4):  # projections of one input are one product
            if stop < 3 and self.inputs[stop] is self.inputs[start]:
                continue
            together = torch.cat(grads[start:stop], dim=2)
            blocks.append(self._products((stop - start) * rows, self.inputs[start], together))
            start = stop
        handles["in_proj_weight"] = blocks[0] if len(blocks) == 1 else Stacked(blocks)
        return handles


def _drew(call: Call, module: nn.MultiheadAttention) -> bool:
    """Whether dropout has drawn random numbers, which must be drawn again."""
    if call.conditions is not None:
        return call.conditions.drew
    if call.training and module.dropout > 0:
        raise Unsupported(
            "it drops attention weights, and the random state of its forward pass is not known; set "
            "its dropout to 0, or give the model as Cockpit(model, ...) and do not compile it"
        )
    return False
