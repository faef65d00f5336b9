"""Sharpness as the optimizer meets it: in its own metric, and along its own updates."""

from __future__ import annotations

from dataclasses import dataclass

from cockpit.engine.directions import LossCrossing, PreconditionedExtremes
from cockpit.engine.step import Step
from cockpit.quantities.of_curvature import OfCurvature, outcome
from cockpit.quantities.quantity import Outcome
from cockpit.transforms import Need


@dataclass(frozen=True)
class PreconditionedSharpness(OfCurvature):
    r"""Largest eigenvalue of the Hessian in the metric of the optimizer.

    Formula: :math:`\lambda_{\max}(P^{-1/2} H P^{-1/2})` for the mean loss, with P the identity for
    SGD and :math:`\sqrt{\hat v} + \epsilon` for Adam, as it stands before the step. Beside it the
    ``bound`` at which the optimizer becomes unstable on a quadratic: :math:`2/\eta` for gradient
    descent, :math:`(2 + 2\beta)/\eta` with momentum (divided by :math:`1 + 2\beta` for Nesterov's),
    :math:`(2 + 2\beta_1)/((1 - \beta_1)\eta)` for Adam. Not checked while the optimizer has no
    state, and where groups of parameters differ.

    How to read it: as a share of the bound. Full-batch training tends to rise to it and to hover
    there; well above it, the loss is about to grow.

    Source: Cohen et al. (2022), arXiv:2207.14484.

    With accumulation: the curvature of the first micro-batch.

    Args:
        track_schedule: On which steps it is tracked.
        verbose: Whether to print the value.
        tol: Relative error of the eigenvalue that is accepted.
        max_products: Number of products with the Hessian after which the search is given up.
        max_samples: Number of samples that it is restricted to, see `OfCurvature`; None for all.
    """

    tol: float = 1e-3
    max_products: int = 100

    def needs(self) -> tuple[Need, ...]:
        """Return the search of these settings."""
        settings = "hessian", self.max_samples, self.tol, self.max_products
        return (PreconditionedExtremes(*settings),)

    def compute(self, step: Step) -> Outcome:
        """Return ``sharpness`` and ``bound``."""
        (need,) = self.needs()
        found = step[need]
        value = {"sharpness": found.spectrum.largest, "bound": found.bound}
        details = {"products": found.spectrum.products, "converged": found.spectrum.converged}
        return outcome(value, step.bases[need], details)


@dataclass(frozen=True)
class CriticalSharpness(OfCurvature):
    r"""Sharpness along the update, from evaluations of the loss alone.

    Formula: :math:`2 / \eta_c`, with :math:`\eta_c` the smallest learning rate at which the update of
    this step would have raised the mini-batch loss. It is found by at most 8 evaluations of
    ``info["closure"]`` along the update, which begin where it was the step before; the parameters are
    put back, bit for bit. In the run file, too: the ``bracket`` of :math:`\eta_c` in units of the
    learning rate, and :math:`2 / \eta` as ``bound``. Not checked where the update does not lower the
    loss at first, and where the ends of the bracket are more than a factor of 2 apart.

    How to read it: for gradient descent on a quadratic it is :math:`g^\top H g / \lVert g \rVert^2`.
    At the learning rate's own :math:`2 / \eta`, the step overshoots to where it came from.

    Source: Kalra et al. (2026), arXiv:2601.16979.

    With accumulation: the loss is that of the closure.

    Args:
        track_schedule: On which steps it is tracked.
        verbose: Whether to print the value.
        max_samples: Number of samples that it is restricted to, see `OfCurvature`; None for all.
    """

    def needs(self) -> tuple[Need, ...]:
        """Return the search of these settings."""
        crossing = LossCrossing(self.max_samples)
        return (crossing.evaluations, crossing)

    def compute(self, step: Step) -> Outcome:
        """Return the sharpness; the bracket and 2/η in the details."""
        found = step[LossCrossing(self.max_samples)]
        details = {"bracket": list(found.bracket), "bound": 2 / found.rate}
        return outcome(2 / (found.steps * found.rate), found.basis, details)
