"""The parameters themselves."""

from __future__ import annotations

from dataclasses import dataclass

from cockpit.engine.needs import ParameterValues
from cockpit.engine.step import PerParameter, Step
from cockpit.quantities.quantity import Quantity


@dataclass(frozen=True)
class Parameters(Quantity):
    r"""All values of all parameters, before the update.

    Formula: :math:`\theta_p(t)`. For tiny models only: every value is written at every tracked
    step.

    How to read it: with two or three parameters, as the path of the optimizer over the loss
    landscape.

    Source: Schneider, Dangel & Hennig (2021), arXiv:2102.06604.

    With accumulation: one set of values for the whole batch.
    """

    parameters = ParameterValues()

    def compute(self, step: Step) -> PerParameter:
        """Return copies, one `[*shape]` per parameter."""
        return step[self.parameters]
