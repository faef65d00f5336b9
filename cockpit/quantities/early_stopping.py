"""The evidence for stopping early."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cockpit.engine.step import Step
from cockpit.quantities.mean_ratio import MeanRatio
from cockpit.transforms import Mean, SumOfSquares, Transform

if TYPE_CHECKING:
    from cockpit.gradients import IndividualGradients


@dataclass(frozen=True)
class SignalToVariance(Transform):
    """Σ_d g_d² / (v_d + ε) with the unbiased variance v_d of the individual gradients, `[]`."""

    epsilon: float

    def __call__(self, gradients: IndividualGradients) -> Tensor:
        """Return the sum over the parameter's elements."""
        n, mean = gradients.batch.size, gradients.apply(Mean())
        excess = gradients.apply(SumOfSquares()) - n * mean.square()
        variance = excess.clamp(min=0) / max(1, n - 1)
        return (mean.square() / (variance + self.epsilon)).sum()


@dataclass(frozen=True)
class EarlyStopping(MeanRatio):
    r"""Evidence-based criterion for early stopping: stop when it is above 0.

    Formula: :math:`1 - N \operatorname{mean}_d \left[ \frac{g_d^2}{v_d + \epsilon} \right]` with the unbiased
    variance :math:`v_d = \frac{1}{N - 1} (\sum_i g_{id}^2 - N g_d^2)`. No learning rate enters. NaN for a batch of
    one sample.

    The criterion assumes that the elements of the gradient are independent and normally
    distributed, and takes the mini-batch for the whole training set; the optimizer does not matter.

    How to read it: below 0 the gradient still stands out from its noise, and training makes
    progress. Above 0 it can no longer be told from noise.

    Source: Mahsereci, Balles, Lassner & Hennig (2017), arXiv:1703.09580, eq. (7).

    With accumulation: the value is that of the whole batch.

    Args:
        track_schedule: On which steps it is tracked.
        verbose: Whether to print the value.
        epsilon: Keeps the quotient finite where the variance is zero.
    """

    @property
    def ratios(self) -> SignalToVariance:
        """The transform of the individual gradients."""
        return SignalToVariance(self.epsilon)

    def compute(self, step: Step) -> Tensor:
        """Return the criterion, `[]`."""
        value = 1 - step.batch_size * self.mean_ratio(step)
        return value if step.batch_size > 1 else torch.full_like(value, math.nan)
