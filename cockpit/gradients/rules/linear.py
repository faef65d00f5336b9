"""Linear layers, with any number of dimensions between the samples and the features."""

from __future__ import annotations

from torch import Tensor, nn

from cockpit.gradients.batch import Batch
from cockpit.gradients.handle import Dense, IndividualGradients
from cockpit.gradients.products import Products
from cockpit.gradients.rules.registry import Call, factors, rule_for


@rule_for(nn.Linear)
def linear(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch
) -> dict[str, IndividualGradients]:
    """Serve y = a Wᵀ + b with a `[N, *, I]` and y `[N, *, O]`."""
    a, b = factors(call, grads, batch)
    a = a.reshape(batch.size, -1, a.shape[-1])  # [N, T, I]
    b = b.reshape(batch.size, -1, b.shape[-1])  # [N, T, O]
    module = call.module
    assert isinstance(module, nn.Linear)
    handles: dict[str, IndividualGradients] = {
        "weight": Products(batch, module.weight.shape, a.mT.unsqueeze(1), b.mT.unsqueeze(1))
    }
    if module.bias is not None:
        handles["bias"] = Dense(batch, b[:, 0] if b.shape[1] == 1 else b.sum(1))
    return handles
