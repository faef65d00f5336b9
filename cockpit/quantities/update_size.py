"""The size of an update."""

from __future__ import annotations

from dataclasses import dataclass

from cockpit.engine.needs import UpdateNorms
from cockpit.engine.step import PerParameter, Step
from cockpit.quantities.quantity import Quantity


@dataclass(frozen=True)
class UpdateSize(Quantity):
    r"""Size of the update of every parameter.

    Formula: :math:`\lVert \theta_p(t+1) - \theta_p(t) \rVert_2`, stored under t. The update is
    observed: whatever the optimizer does to it (momentum, weight decay, clipping) is in it.

    How to read it: against `Distance`. Large updates and little distance mean that the training
    oscillates.

    Source: Schneider, Dangel & Hennig (2021), arXiv:2102.06604.

    With accumulation: one update for the whole batch.
    """

    norms = UpdateNorms()

    def compute(self, step: Step) -> PerParameter:
        """Return the norms, one `[]` per parameter."""
        return step[self.norms]
