"""The density of the Hessian's eigenvalues."""

from __future__ import annotations

from dataclasses import dataclass

from cockpit.engine.curvature import SpectralDensity
from cockpit.engine.step import Step
from cockpit.errors import InvalidArgument
from cockpit.quantities.of_curvature import OfCurvature, outcome
from cockpit.quantities.quantity import Outcome
from cockpit.transforms import Need


@dataclass(frozen=True)
class HessianSpectrum(OfCurvature):
    r"""Density of the eigenvalues of the Hessian of the mini-batch loss.

    Formula: :math:`\frac{1}{D} \sum_j \delta(\lambda - \lambda_j)`, estimated by stochastic Lanczos
    quadrature: `probes` random vectors, `steps` products with the Hessian of the mean loss for each.
    The points that this gives, with their weights, are in the run file (``nodes``, ``weights``); the
    value is the density on a grid, each point smeared by 1 % of the spectrum's extent, and the
    ``smallest`` and ``largest`` eigenvalue found.

    How to read it: a bulk around zero with few large outliers, about as many as there are classes,
    is usual. A long negative tail says that the parameters are far from a minimum.

    Source: Ubaru, Chen & Saad (2017); Ghorbani, Krishnan & Xiao (2019), arXiv:1901.10159.

    With accumulation: the curvature of the first micro-batch.

    Args:
        track_schedule: On which steps it is tracked.
        verbose: Whether to print the value.
        probes: Number of random vectors.
        steps: Number of products for each.
        points: Number of points of the grid.
        matrix: ``"hessian"``, or ``"ggn"`` for the generalised Gauss-Newton matrix.
        max_samples: Number of samples that it is restricted to, see `OfCurvature`; None for all.
    """

    probes: int = 3
    steps: int = 30
    points: int = 200
    matrix: str = "hessian"

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        self._check_matrix(self.matrix)
        if min(self.probes, self.steps, self.points) < 1:
            raise InvalidArgument(
                "HessianSpectrum needs probes, steps and points of at least 1, got "
                f"probes={self.probes!r}, steps={self.steps!r}, points={self.points!r}."
            )

    def needs(self) -> tuple[Need, ...]:
        """Return the density of these settings."""
        return (SpectralDensity(self.matrix, self.max_samples, self.probes, self.steps),)

    def compute(self, step: Step) -> Outcome:
        """Return ``eigenvalues`` and ``density``, each `[points]`, and ``smallest`` and ``largest``, `[]`."""
        (need,) = self.needs()
        found = step[need]
        grid, density = found.on(self.points)
        ends = {"smallest": found.nodes[0], "largest": found.nodes[-1]}
        value = {"eigenvalues": grid, "density": density, **ends}
        return outcome(value, step.bases[need], {"nodes": found.nodes, "weights": found.weights})
