"""Parameters that have no individual gradients here, whatever the layer they belong to."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn


class Reason(NamedTuple):
    """Why something is not tracked, and what to do about it."""

    why: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.why}; {self.way_out}"


COMPLEX = Reason(
    "it is complex, and statistics of individual gradients are defined for real ones",
    "keep its real and imaginary parts as real parameters and join them in forward with "
    "torch.view_as_complex",
)
SHARDED = Reason(
    "it is sharded over processes, and no process sees a whole gradient of a sample",
    "watch a run of the unsharded model (DistributedDataParallel keeps it whole), or leave it to "
    "quantities of the losses",
)


PLAIN = (Tensor, nn.Parameter)
"""Kinds of tensors that are whole on their process."""


def untrackable(parameter: Tensor) -> Reason | None:
    """Return why a parameter cannot be tracked by any rule, or None."""
    if parameter.is_complex():
        return COMPLEX
    if type(parameter) in PLAIN and not hasattr(parameter, "_is_flat_param"):
        return None
    # By name, since the classes stand in modules that only distributed programs load.
    flat = getattr(parameter, "_is_flat_param", False)
    if flat or any(kind.__name__ == "DTensor" for kind in type(parameter).__mro__):
        return SHARDED
    return None
