"""Activations with a parameter: PReLU."""

from __future__ import annotations

from torch import Tensor, nn

from cockpit.gradients.batch import Batch
from cockpit.gradients.handle import Dense, IndividualGradients
from cockpit.gradients.rules.registry import Call, factors, rule_for


@rule_for(nn.PReLU, how="dense")
def prelu(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch
) -> dict[str, IndividualGradients]:
    """Serve y = max(0, x) + w·min(0, x) with one w, or one per channel of `[N, C, *]`."""
    module = call.module
    assert isinstance(module, nn.PReLU)
    x, grad = factors(call, grads, batch, batched_dims=1)
    products = (x.clamp(max=0) * grad).reshape(batch.size, module.num_parameters, -1)
    return {"weight": Dense(batch, products.sum(2))}
