"""The size of an update relative to the parameters."""

from __future__ import annotations

from dataclasses import dataclass

from cockpit.engine.needs import ParameterNorms, UpdateNorms
from cockpit.engine.step import PerParameter, Step
from cockpit.quantities.quantity import Quantity


@dataclass(frozen=True)
class UpdateRatio(Quantity):
    r"""Size of the update of every parameter, relative to the parameter.

    Formula: :math:`\lVert \theta_p(t+1) - \theta_p(t) \rVert_2 / \lVert \theta_p(t) \rVert_2`, stored under t. For a
    parameter of zeros it is infinite, or NaN without an update.

    How to read it: about 0.001 is a rule of thumb for weights. Far below, the layer hardly learns;
    far above, it is thrown about.

    Source: Karpathy (2015), CS231n notes, "ratio of weights:updates".

    With accumulation: one update for the whole batch.
    """

    norms = ParameterNorms()
    updates = UpdateNorms()

    def compute(self, step: Step) -> PerParameter:
        """Return the ratios, one `[]` per parameter."""
        norms = step[self.norms]
        return PerParameter((name, u / norms[name]) for name, u in step[self.updates].items())
