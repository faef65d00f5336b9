"""The largest eigenvalue of the Hessian, or of the generalised Gauss-Newton matrix."""

from __future__ import annotations

from dataclasses import dataclass

from cockpit.engine.curvature import Extremes
from cockpit.engine.step import Step
from cockpit.errors import InvalidArgument
from cockpit.quantities.of_curvature import OfCurvature, outcome
from cockpit.quantities.quantity import Outcome
from cockpit.transforms import Need


@dataclass(frozen=True)
class HessMaxEV(OfCurvature):
    r"""Algebraically largest eigenvalue of the curvature of the mini-batch loss: its sharpness.

    Formula: :math:`\max_{\lVert v \rVert = 1} v^\top C v`, with C the Hessian :math:`\nabla^2 L` of the
    mean loss or, with ``matrix="ggn"``, its generalised Gauss-Newton matrix, by Lanczos iteration
    that starts from the eigenvectors of the step before. Beside it, in the run file: the eigenvalue
    of the largest magnitude (``magnitude``, with its sign), the number of ``products`` with C, the
    ``residual`` :math:`\lVert C v - \lambda v \rVert`, whether the tolerance was met
    (``converged``), and the number of ``samples``.

    How to read it: gradient descent with learning rate :math:`\eta` is stable up to :math:`2 / \eta`,
    and full-batch training tends to rise until there. A sudden growth precedes divergence.

    Source: Lanczos (1950); Cohen et al. (2021), arXiv:2103.00065, for the edge of stability.

    With accumulation: the curvature of the first micro-batch.

    Args:
        track_schedule: On which steps it is tracked.
        verbose: Whether to print the value.
        tol: Relative error of the eigenvalue that is accepted.
        use_power: Taken for the sake of older scripts; Lanczos iteration always serves.
        max_products: Number of products with the matrix after which the search is given up.
        matrix: ``"hessian"``, or ``"ggn"`` for the generalised Gauss-Newton matrix, which leaves out
            the second derivatives of the model and has no negative eigenvalues for a convex loss.
        max_samples: Number of samples that it is restricted to, see `OfCurvature`; None for all.
    """

    tol: float = 1e-3
    use_power: bool = False
    max_products: int = 100
    matrix: str = "hessian"

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        self._check_matrix(self.matrix)
        if not 0 <= self.tol < 1:
            raise InvalidArgument(f"HessMaxEV needs a tol in [0, 1), got tol={self.tol!r}.")
        if self.max_products < 1:
            raise InvalidArgument(
                f"HessMaxEV needs max_products of at least 1, got {self.max_products!r}."
            )

    @property
    def extremes(self) -> Extremes:
        """The search of these settings."""
        return Extremes(self.matrix, self.max_samples, self.tol, self.max_products)

    def needs(self) -> tuple[Need, ...]:
        """Return the search."""
        return (self.extremes,)

    def compute(self, step: Step) -> Outcome:
        """Return the eigenvalue; what else the search found in the details."""
        found = step[self.extremes]
        details = {
            "magnitude": found.magnitude,
            "products": found.products,
            "residual": found.residual,
            "converged": found.converged,
        }
        return outcome(found.largest, step.bases[self.extremes], details)
