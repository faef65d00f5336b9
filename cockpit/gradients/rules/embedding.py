"""Embeddings: the rows that occur, never the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cockpit.errors import Unsupported
from cockpit.gradients.batch import Batch, working_dtype
from cockpit.gradients.handle import IndividualGradients
from cockpit.gradients.rows import Rows
from cockpit.gradients.rules.registry import Call, rule_for


@rule_for(nn.Embedding)
def embedding(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch
) -> dict[str, IndividualGradients]:
    """Serve a look-up of indices `[N, *]`."""
    module, index, grad = call.module, call.input.detach(), grads[0]
    assert isinstance(module, nn.Embedding)
    assert grad is not None
    if index.dim() == 0 and batch.size == 1:
        index, grad = index.unsqueeze(0), grad.unsqueeze(0)
    if index.dim() == 0 or len(index) != batch.size:
        raise Unsupported(
            f"its input has shape {list(index.shape)}, whose first dimension is not that of the "
            f"{batch.size} samples"
        )
    index = index.reshape(batch.size, -1).long()  # [N, T]
    values = grad.detach().to(working_dtype(grad)) * batch.scale
    values = values.reshape(*index.shape, -1)  # [N, T, E]
    if module.scale_grad_by_freq:
        frequency = torch.bincount(index.reshape(-1), minlength=module.num_embeddings)
        values = values / frequency[index].unsqueeze(2)
    if module.padding_idx is not None:
        values = values.masked_fill((index == module.padding_idx).unsqueeze(2), 0)
    return {"weight": Rows(batch, module.weight.shape, index, values)}
