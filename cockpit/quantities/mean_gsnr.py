"""The mean gradient signal-to-noise ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from cockpit.engine.step import Step
from cockpit.quantities.mean_ratio import MeanRatio
from cockpit.transforms import Mean, SumOfSquares, Transform

if TYPE_CHECKING:
    from cockpit.gradients import IndividualGradients


@dataclass(frozen=True)
class SignalToNoise(Transform):
    """Σ_d g_d² / (σ_d² + ε) with the biased variance σ_d² of the individual gradients, `[]`."""

    epsilon: float

    def __call__(self, gradients: IndividualGradients) -> Tensor:
        """Return the sum over the parameter's elements."""
        signal = gradients.apply(Mean()).square()
        variance = gradients.apply(SumOfSquares()) / gradients.batch.size - signal
        return (signal / (variance.clamp(min=0) + self.epsilon)).sum()


@dataclass(frozen=True)
class MeanGSNR(MeanRatio):
    r"""Signal-to-noise ratio of the gradient, averaged over its elements.

    Formula: :math:`\operatorname{mean}_d \left[ \frac{g_d^2}{\frac{1}{N} \sum_i g_{id}^2 - g_d^2 + \epsilon} \right]`.

    How to read it: high early on, when all samples agree where to go, and falling as they begin to
    disagree. Networks that generalise well keep a higher ratio for longer.

    Source: Liu, Jiang, Bai, Chen & Wang (2020), arXiv:2001.07384, eq. (1).

    With accumulation: the value is that of the whole batch.

    Args:
        track_schedule: On which steps it is tracked.
        verbose: Whether to print the value.
        epsilon: Keeps the quotient finite where the variance is zero.
    """

    @property
    def ratios(self) -> SignalToNoise:
        """The transform of the individual gradients."""
        return SignalToNoise(self.epsilon)

    def compute(self, step: Step) -> Tensor:
        """Return the mean ratio, `[]`."""
        return self.mean_ratio(step)
