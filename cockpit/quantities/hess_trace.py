"""The trace of the curvature."""

from __future__ import annotations

from dataclasses import dataclass

from cockpit.engine.curvature import DIAGONALS, HessianTrace, diagonal
from cockpit.engine.step import PerParameter, Step
from cockpit.errors import InvalidArgument
from cockpit.quantities.of_curvature import OfCurvature, outcome
from cockpit.quantities.quantity import Outcome
from cockpit.transforms import Need

BY_PRODUCTS = ("hutchinson", "hutch++")
CURVATURES = (*DIAGONALS, *BY_PRODUCTS)


@dataclass(frozen=True)
class HessTrace(OfCurvature):
    r"""Trace of the curvature of the mean loss, for every parameter.

    Formula: :math:`\sum_{d \in p} C_{dd}`. With ``curvature="auto"`` (or ``"diag_ggn_mc"``), C is the
    generalised Gauss-Newton matrix, whose diagonal is estimated without bias from one backward pass,
    for any model and convex loss; ``"hutchinson"`` estimates the trace of the Hessian from products
    with random signs, and ``"hutch++"`` takes its dominant part exactly, for as many products again;
    ``"diag_h"`` and ``"diag_ggn_exact"`` are BackPACK's exact diagonals of the Hessian and the GGN,
    and need a model and a loss module that ``backpack.extend`` has extended.
    The ``standard_error`` of an estimate of Hutchinson's is logged with it.

    How to read it: the mean curvature times the number of weights. Layers whose trace is orders of
    magnitude above that of the others limit the learning rate. The GGN's is never negative; the
    Hessian's may be.

    Source: Schneider, Dangel & Hennig (2021), arXiv:2102.06604; Dangel, Kunstner & Hennig (2020),
    arXiv:1912.10985; Hutchinson (1989).

    With accumulation: the curvature of the first micro-batch.

    Args:
        track_schedule: On which steps it is tracked.
        verbose: Whether to print the value.
        curvature: See above.
        probes: Number of random vectors of ``"hutchinson"`` and ``"hutch++"``.
        max_samples: Number of samples that these two are restricted to, see `OfCurvature`; None for
            all.
    """

    curvature: str = "auto"
    probes: int = 10

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        if self.curvature not in CURVATURES:
            raise InvalidArgument(
                f"HessTrace has no curvature {self.curvature!r}. Choose from "
                f"{', '.join(map(repr, CURVATURES))}."
            )
        if self.probes < 2:
            raise InvalidArgument(f"HessTrace needs at least 2 probes, got {self.probes!r}.")
        if self.max_samples is not None and self.curvature not in BY_PRODUCTS:
            raise InvalidArgument(
                f"HessTrace(curvature={self.curvature!r}) comes from a backward pass of the whole "
                "mini-batch, so max_samples must be None; it is for curvature='hutchinson' and "
                f"'hutch++'. Got max_samples={self.max_samples!r}."
            )

    def needs(self) -> tuple[Need, ...]:
        """Return the diagonal, or the products with random vectors."""
        if self.curvature in BY_PRODUCTS:
            sketch = self.curvature == "hutch++"
            return (HessianTrace("hessian", self.max_samples, self.probes, sketch),)
        return (diagonal(self.curvature),)

    def compute(self, step: Step) -> Outcome:
        """Return the traces, one `[]` per parameter."""
        (need,) = self.needs()
        found, basis = step[need], step.bases[need]
        if self.curvature in BY_PRODUCTS:
            samples = found  # [probes] per parameter
            error = PerParameter((n, s.std() / len(s) ** 0.5) for n, s in samples.items())
            traces = PerParameter((name, s.mean()) for name, s in samples.items())
            return outcome(traces, basis, {"standard_error": error})
        traces = PerParameter((name, values.sum()) for name, values in found.items())
        return outcome(traces, basis)
