"""Linear layers whose weight is stored as `[I, O]`: `Conv1D` of Hugging Face's GPT-2."""

from __future__ import annotations

from torch import Tensor

from cockpit.gradients.batch import Batch
from cockpit.gradients.handle import Dense, IndividualGradients
from cockpit.gradients.products import Products
from cockpit.gradients.rules.registry import Call, factors, rule_for


@rule_for("transformers.pytorch_utils.Conv1D")
def transposed_linear(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch
) -> dict[str, IndividualGradients]:
    """Serve y = a W + bias with a `[N, *, I]` and y `[N, *, O]`: a Linear layer with the factors swapped."""
    inputs, grad = factors(call, grads, batch)
    inputs = inputs.reshape(batch.size, -1, inputs.shape[-1])  # [N, T, I]
    grad = grad.reshape(batch.size, -1, grad.shape[-1])  # [N, T, O]
    weight = call.module.weight
    assert isinstance(weight, Tensor)
    return {
        "weight": Products(batch, weight.shape, grad.mT.unsqueeze(1), inputs.mT.unsqueeze(1)),
        "bias": Dense(batch, grad.sum(1)),
    }
