"""Multi-head attention."""

from __future__ import annotations

from torch import Tensor, nn

from cockpit.gradients.batch import Batch
from cockpit.gradients.handle import IndividualGradients
from cockpit.gradients.rules.generic import generic
from cockpit.gradients.rules.registry import Call, rule_for


@rule_for(nn.MultiheadAttention)
def attention(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch
) -> dict[str, IndividualGradients]:
    """Serve attention, which uses its output layer's parameters without calling that layer."""
    assert isinstance(call.module, nn.MultiheadAttention)
    borrowed = (f"out_proj.{name}" for name, _ in call.module.out_proj.named_parameters())
    return generic(call, grads, batch, tuple(borrowed))
