"""Whether updates lead back to the origin."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.needs import OfUpdate
from cockpit.engine.step import PerParameter, Step
from cockpit.quantities.quantity import Quantity
from cockpit.quantities.spacing import spaced_elements

ELEMENTS = 2**12
"""Elements of a parameter that are looked at, at most. The cosine of half as many, the fewest, is off by 0.02 to
0.04, far below what is told."""


@dataclass(frozen=True)
class CosinesInwards(OfUpdate):
    """cos(−d_p, θ_p) with the parameters before the update, per parameter `[]`."""

    forward = False

    def observe(self, step: Step, update: PerParameter) -> PerParameter:
        """Return the cosines."""
        pairs = ((name, d, step.parameters[name].detach()) for name, d in update.items())
        return PerParameter((name, _inwards(d, after)) for name, d, after in pairs)


def _inwards(update: Tensor, after: Tensor) -> Tensor:
    """Return the cosine between −d and θ, from d and θ + d."""
    d, after = (spaced_elements(tensor, ELEMENTS) for tensor in (update, after.to(update)))
    if d.dtype not in (torch.float32, torch.float64):
        d, after = d.float(), after.float()
    before = after - d
    return -torch.dot(d, before) / (torch.linalg.vector_norm(d) * torch.linalg.vector_norm(before))


@dataclass(frozen=True)
class Shrinkage(Quantity):
    r"""Cosine between the update of every parameter and the way back to zero.

    Formula: :math:`-d_p \cdot \theta_p / (\lVert d_p \rVert \lVert \theta_p \rVert)`, stored under t. NaN without an
    update and for a parameter of zeros. Of a parameter with more than 4096 elements, evenly spaced ones are
    looked at, always the same.

    How to read it: about 0 where the gradient leads. Weight decay alone makes it 1, whatever its form and the
    optimizer; above one half the parameters shrink more than they learn.

    Source: Loshchilov & Hutter (2019), arXiv:1711.05101, for weight decay as a part of the update.

    With accumulation: one update for the whole batch.
    """

    cosines = CosinesInwards()

    def compute(self, step: Step) -> PerParameter:
        """Return the cosines, one `[]` per parameter."""
        value: PerParameter = step[self.cosines]
        return value
