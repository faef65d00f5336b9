"""Bags of embeddings, each of which is a sample: sums, means and maxima of rows of a table."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit.errors import Unsupported
from cockpit.gradients.batch import Batch, working_dtype
from cockpit.gradients.handle import IndividualGradients
from cockpit.gradients.rows import Rows
from cockpit.gradients.rules.registry import Call, rule_for


@rule_for(nn.EmbeddingBag)
def embedding_bag(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch
) -> dict[str, IndividualGradients]:
    """Serve bags of indices, `[N, T]` or one after the other with `offsets` `[N]`."""
    module, grad = call.module, grads[0]
    assert isinstance(module, nn.EmbeddingBag)
    assert grad is not None
    index, offsets, weights = _arguments(*call.args, **call.kwargs)
    if len(grad) != batch.size:
        raise Unsupported(
            f"it was given {len(grad)} bags for {batch.size} samples; call it with one bag per sample, "
            "several times if a sample has several"
        )
    if offsets is None:
        present = torch.ones_like(index, dtype=torch.bool)
    else:
        # Where the last bag ends is given with `include_last_offset`, but not looked at by the layer.
        ends = torch.cat([offsets[: batch.size], offsets.new_tensor([len(index)])])
        index, present, weights = _padded(index, ends, weights)
    if module.padding_idx is not None:
        present = present & (index != module.padding_idx % module.num_embeddings)
    dtype = working_dtype(grad)
    values = _shares(module, index, present, dtype)  # [N, T, 1 or E]
    if weights is not None:
        values = values * weights.detach().to(dtype).unsqueeze(2)
    if module.scale_grad_by_freq:
        frequency = torch.bincount(index[present], minlength=module.num_embeddings)
        values = values / frequency.clamp(min=1)[index].unsqueeze(2)
    return {
        "weight": Rows(
            batch,
            module.weight.shape,
            index,
            values * (grad.detach().to(dtype) * batch.scale).unsqueeze(1),
        )
    }


def _arguments(
    input: Tensor,  # noqa: A002 - the layer's own name for it
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Sort out the arguments of the layer."""
    return (
        input.detach().long(),
        None if offsets is None else offsets.detach().long(),
        per_sample_weights,
    )


def _padded(
    flat: Tensor, offsets: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Put the bags between the offsets `[N + 1]` into one table `[N, T]`, and say which of its places are taken."""
    offsets, lengths = offsets[:-1], torch.diff(offsets)
    place = torch.arange(max(1, int(lengths.max())), device=flat.device)
    present = place < lengths.unsqueeze(1)
    source = (offsets.unsqueeze(1) + place).where(present, len(flat))  # one beyond the end: a zero
    return (
        F.pad(flat, (0, 1))[source],
        present,
        None if weights is None else F.pad(weights, (0, 1))[source],
    )


def _shares(module: nn.EmbeddingBag, index: Tensor, present: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what each look-up contributes to its bag's output, `[N, T, 1]`, or `[N, T, E]` for maxima."""
    if module.mode == "sum":
        return present.unsqueeze(2).to(dtype)
    if module.mode == "mean":
        taken = present.to(dtype)
        return (taken / taken.sum(1, keepdim=True).clamp(min=1)).unsqueeze(2)
    looked_up = module.weight.detach()[index].masked_fill(~present.unsqueeze(2), -torch.inf)
    largest = looked_up.argmax(1, keepdim=True)  # [N, 1, E]
    chosen = torch.zeros_like(looked_up, dtype=dtype).scatter_(1, largest, 1)
    return chosen * present.unsqueeze(2)
