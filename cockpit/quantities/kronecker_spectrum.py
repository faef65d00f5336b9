"""Eigenvalues of Kronecker-factored curvature, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import mul

import torch
from torch import Tensor

from cockpit.curvature import APPROXIMATIONS
from cockpit.engine.kronecker import KroneckerFactors
from cockpit.engine.step import PerParameter, Step
from cockpit.errors import InvalidArgument
from cockpit.quantities.of_curvature import outcome
from cockpit.quantities.quantity import Outcome, Quantity
from cockpit.transforms import Need


@dataclass(frozen=True)
class KroneckerSpectrum(Quantity):
    r"""Eigenvalues of the Kronecker-factored curvature of every parameter.

    Formula: with the factors A and B of the parameter's block of the mean loss's GGN, the eigenvalues
    are all products :math:`\alpha_i \beta_j` of theirs. ``largest`` is the largest, ``trace`` their
    sum, ``effective_rank`` the exponential of the entropy of the eigenvalues divided by their sum,
    ``condition`` :math:`(\lambda_{\max} + \delta) / (\lambda_{\min} + \delta)` at the damping
    :math:`\delta`. Linear and convolutional layers that are called once have factors, the parameters
    of others are left out, which the run file says. ``"kfac"`` samples one vector for each sample,
    ``"kflr"`` is exact up to the approximation itself, at a backward pass for each output of the
    model, and both serve any model and convex loss; ``"kfra"``, for small chains of layers
    (`nn.Sequential`) only, averages the curvature on its way back. Where this package has
    no factors, and BackPACK does (bare parameters of a model that ``backpack.extend`` has extended,
    with ``"kfra"``), its are taken.

    How to read it: layers with the largest eigenvalues limit the learning rate; an effective rank of
    a few says that the layer learns in a few directions only.

    Source: Martens & Grosse (2015), arXiv:1503.05671 (KFAC); Botev, Ritter & Barber (2017),
    arXiv:1706.03662 (KFLR, KFRA).

    With accumulation: the curvature of the first micro-batch.

    Args:
        track_schedule: On which steps it is tracked.
        verbose: Whether to print the value.
        approximation: ``"kfac"``, ``"kflr"`` or ``"kfra"``.
        damping: Added to the eigenvalues in the condition number.
    """

    approximation: str = "kfac"
    damping: float = 1e-3

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.approximation not in APPROXIMATIONS:
            raise InvalidArgument(
                f"KroneckerSpectrum has no approximation {self.approximation!r}. Choose from "
                f"{', '.join(map(repr, APPROXIMATIONS))}."
            )
        if self.damping < 0:
            raise InvalidArgument(f"KroneckerSpectrum needs damping >= 0, got {self.damping!r}.")

    def needs(self) -> tuple[Need, ...]:
        """Return the factors."""
        return (KroneckerFactors(self.approximation),)

    def compute(self, step: Step) -> Outcome:
        """Return ``largest``, ``trace``, ``effective_rank`` and ``condition``, one `[]` per parameter."""
        values: dict[str, PerParameter] = {}
        (need,) = self.needs()
        for name, product in step[need].items():
            spectra = [torch.linalg.eigvalsh(factor).clamp(min=0) for factor in product.factors]
            largest = reduce(mul, [spectrum[-1] for spectrum in spectra])
            smallest = reduce(mul, [spectrum[0] for spectrum in spectra])
            found = {
                "largest": largest,
                "trace": reduce(mul, [spectrum.sum() for spectrum in spectra]),
                # The entropy of products is the sum of entropies.
                "effective_rank": reduce(mul, [_rank(spectrum) for spectrum in spectra]),
                "condition": (largest + self.damping) / (smallest + self.damping),
            }
            for key, value in found.items():
                values.setdefault(key, PerParameter())[name] = value
        return outcome(values, step.bases[need])


def _rank(spectrum: Tensor) -> Tensor:
    share = spectrum / spectrum.sum()
    return torch.special.entr(share).sum().exp()
