"""The gradient noise scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.step import Step
from cockpit.quantities.quantity import Quantity
from cockpit.transforms import DotMean, SquareNormOfMean, SquareNorms


@dataclass(frozen=True)
class GradientNoiseScale(Quantity):
    r"""The batch size at which noise and signal of the gradient are equally large.

    Formula: :math:`B = \operatorname{tr} \Sigma / \lVert G \rVert^2` with the unbiased estimates
    :math:`\lVert G \rVert^2 = (N \lVert g \rVert^2 - \frac{1}{N} \sum_i \lVert g_i \rVert^2) / (N - 1)` and
    :math:`\operatorname{tr} \Sigma = (\frac{1}{N} \sum_i \lVert g_i \rVert^2 - \lVert g \rVert^2) \, N / (N - 1)`.
    NaN for a batch of one sample.

    How to read it: a batch much smaller than B wastes steps, a much larger one wastes samples.
    Both estimates are noisy, and that of the squared norm may be negative: read the ratio of their
    moving averages rather than the average of the ratios.

    Source: McCandlish, Kaplan, Amodei et al. (2018), arXiv:1812.06162, appendix A.1.

    With accumulation: the values are those of the whole batch.
    """

    square_norms = SquareNorms()
    projections = DotMean()
    square_norm = SquareNormOfMean()

    def compute(self, step: Step) -> dict[str, Tensor]:
        """Return ``noise_scale``, ``trace`` and ``squared_norm``, each `[]`."""
        n = step.batch_size
        squares, products = step[self.square_norms].total(), step[self.projections].total()
        squared_norm = step[self.square_norm].total()
        deviation = (squares - 2 * products + squared_norm).mean()  # of ‖g_i − g‖²
        if n < 2:
            deviation = torch.full_like(deviation, math.nan)  # 0 / 0
        trace = deviation * n / max(1, n - 1)
        signal = squared_norm - trace / n
        return {"noise_scale": trace / signal, "trace": trace, "squared_norm": signal}
