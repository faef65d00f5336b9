"""The curvature along the gradient and along the update."""

from __future__ import annotations

from dataclasses import dataclass

from cockpit.engine.directions import DisplacementCurvature, GradientCurvature
from cockpit.engine.step import Step
from cockpit.quantities.of_curvature import OfCurvature, outcome
from cockpit.quantities.quantity import Outcome
from cockpit.transforms import Need


@dataclass(frozen=True)
class DirectionalCurvature(OfCurvature):
    r"""Curvature of the mini-batch loss along the gradient and along the way of the parameters.

    Formula: ``gradient``: :math:`g^\top H g / \lVert g \rVert^2`, with Hessian and gradient of the
    mean loss. ``update``: :math:`d^\top H d / \lVert d \rVert^2` with d the change of the parameters
    since this was tracked last: the last update where every step is; missing the first time. With
    `blocks`, the same with the diagonal block of every parameter. NaN for a direction of zero.

    How to read it: for gradient descent, 2 over the learning rate is where a step along the gradient
    stops to lower the loss. A value along the update far below the one along the gradient says that
    the optimizer avoids the sharp directions.

    Source: any second-order Taylor expansion; Cohen et al. (2021), arXiv:2103.00065.

    With accumulation: the curvature of the first micro-batch.

    Args:
        track_schedule: On which steps it is tracked.
        verbose: Whether to print the value.
        blocks: Whether to look at each parameter's block, at one more product with each.
        max_samples: Number of samples that H and g are restricted to, see `OfCurvature`; None for all.
    """

    blocks: bool = True

    def needs(self) -> tuple[Need, ...]:
        """Return the curvature along both directions."""
        settings = "hessian", self.max_samples, self.blocks
        return (GradientCurvature(*settings), DisplacementCurvature(*settings))

    def compute(self, step: Step) -> Outcome:
        """Return ``gradient`` and ``update``, each `[]`; by parameter in the details."""
        needs = self.needs()
        along = dict(zip(("gradient", "update"), (step[n] for n in needs), strict=True))
        found = {key: value for key, value in along.items() if value is not None}
        return outcome(
            {key: values["total"] for key, values in found.items()},
            step.bases[needs[0]],
            {key: values["blocks"] for key, values in found.items() if self.blocks},
        )
