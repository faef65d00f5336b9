"""The gradient noise scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.step import Step
from cockpit.quantities.quantity import Quantity, require_count
from cockpit.transforms import Deviation, Need


@dataclass(frozen=True)
class GradientNoiseScale(Quantity):
    r"""The batch size at which noise and signal of the gradient are equally large.

    Formula: :math:`B = \operatorname{tr} \Sigma / \lVert G \rVert^2` with the unbiased estimates
    :math:`\lVert G \rVert^2 = (N \lVert g \rVert^2 - \frac{1}{N} \sum_i \lVert g_i \rVert^2) / (N - 1)` and
    :math:`\operatorname{tr} \Sigma = (\frac{1}{N} \sum_i \lVert g_i \rVert^2 - \lVert g \rVert^2) \, N / (N - 1)`.
    NaN for a batch of one sample. ``noise_share`` is the part of noise in the square of the mini-batch
    gradient, :math:`\operatorname{tr} \Sigma / (N \lVert g \rVert^2)`, the square of `NormTest`.

    With `samples`, the mean of :math:`\lVert g_i - g \rVert^2` is an estimate from so many samples, drawn at random,
    for the parameters of layers whose norms :math:`\lVert g_i \rVert` take long: convolutions, and linear
    layers with a time axis. For all others, and :math:`\lVert g \rVert^2`, it is that of all samples.

    How to read it: a batch much smaller than B wastes steps, a much larger one wastes samples. A
    ``noise_share`` near 1 is a gradient of noise.
    Both estimates are noisy, and that of the squared norm may be negative: read the ratio of their
    moving averages rather than the average of the ratios.

    Source: McCandlish, Kaplan, Amodei et al. (2018), arXiv:1812.06162, appendix A.1.

    With accumulation: the values are those of the whole batch.

    Args:
        track_schedule: On which steps it is tracked.
        verbose: Whether to print the value.
        samples: How many samples are drawn where the norms of all would take long; None for all.

    Raises:
        InvalidArgument: if `samples` is below 1.
    """

    samples: int | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        require_count(self, "samples")

    @property
    def deviation(self) -> Deviation:
        """The need of these settings."""
        return Deviation(self.samples)

    def needs(self) -> tuple[Need, ...]:
        """Return the deviation of these settings."""
        return (self.deviation,)

    def compute(self, step: Step) -> dict[str, Tensor]:
        """Return ``noise_scale``, ``trace``, ``squared_norm`` and ``noise_share``, each `[]`."""
        n = step.batch_size
        deviation, squared_norm = step[self.deviation].total().unbind()
        if n < 2:
            deviation = torch.full_like(deviation, math.nan)  # 0 / 0
        trace = deviation * n / max(1, n - 1)
        signal = squared_norm - trace / n
        return {
            "noise_scale": trace / signal,
            "trace": trace,
            "squared_norm": signal,
            "noise_share": trace / (n * squared_norm),
        }
