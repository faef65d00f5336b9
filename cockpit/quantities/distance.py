"""The distance from the start."""

from __future__ import annotations

from dataclasses import dataclass

from cockpit.engine.needs import DistanceFromStart
from cockpit.engine.step import PerParameter, Step
from cockpit.quantities.quantity import Quantity


@dataclass(frozen=True)
class Distance(Quantity):
    r"""Distance of every parameter from where it started.

    Formula: :math:`\lVert \theta_p(t) - \theta_p(0) \rVert_2`, with :math:`\theta(0)` the
    parameters at the first step that the cockpit entered, tracked or not.

    How to read it: fast early, slower later. A layer whose distance stays at zero is not trained.

    Source: Hoffer, Hubara & Soudry (2017), arXiv:1705.08741, who find a logarithmic growth.

    With accumulation: one value for the whole batch.
    """

    distance = DistanceFromStart()

    def compute(self, step: Step) -> PerParameter:
        """Return the distances, one `[]` per parameter."""
        return step[self.distance]
