"""Three tests of how well the mini-batch gradient is known: norm, inner product, orthogonality.

They belong together: with w the angle-like decomposition of g_i − g into the part along g and the
part orthogonal to it, NormTest² = InnerTest² + OrthoTest². All are relative to ‖g‖ and shrink like 1/√N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.step import Step
from cockpit.quantities.quantity import Quantity
from cockpit.transforms import DotMean, SquareNormOfMean, SquareNorms


def _root_of_variance(deviations: Tensor, batch_size: int, scale: Tensor) -> Tensor:
    """Return √(mean deviation / ((N − 1) scale)); rounding may push a mean of zero below it.

    Args:
        deviations: A square per sample, `[N]`, or `[k]` where only some were drawn. Their mean, like that of
            all, is the sum over the whole batch divided by N.
        batch_size: N.
        scale: What it is relative to, `[]`.
    """
    mean = deviations.mean()
    if batch_size < 2:
        return torch.full_like(mean, math.nan)  # 0 / 0, which rounding must not turn into infinity
    return (mean.clamp(min=0) / ((batch_size - 1) * scale)).sqrt()


@dataclass(frozen=True)
class NormTest(Quantity):
    r"""Relative deviation of the individual gradients from the mini-batch gradient.

    Formula: :math:`\sqrt{\frac{\sum_i \lVert g_i \rVert^2 - N \lVert g \rVert^2}{(N-1) N \lVert g
    \rVert^2}}`, the standard error of the mini-batch gradient relative to its norm. NaN for a batch
    of one sample and for a gradient of zero.

    How to read it: below 1 the gradient is known better than its own size. Above, noise dominates,
    and a larger batch gives a better direction.

    Source: Byrd, Chin, Nocedal & Wu (2012), eq. (3.9).

    With accumulation: the value is that of the whole batch.
    """

    square_norms = SquareNorms()
    projections = DotMean()
    square_norm = SquareNormOfMean()

    def compute(self, step: Step) -> Tensor:
        """Return the test's value, `[]`."""
        squares, products = step[self.square_norms].total(), step[self.projections].total()
        square = step[self.square_norm].total()
        deviations = squares - 2 * products + square  # ‖g_i − g‖²
        return _root_of_variance(deviations, step.batch_size, square)


@dataclass(frozen=True)
class InnerTest(Quantity):
    r"""Relative spread of the individual gradients along the mini-batch gradient.

    Formula: :math:`\sqrt{\frac{\sum_i (g_i \cdot g)^2 - N \lVert g \rVert^4}{(N-1) N \lVert g
    \rVert^4}}`. NaN for a batch of one sample and for a gradient of zero.

    How to read it: below 1, the mini-batch gradient is a descent direction with high probability.

    Source: Bollapragada, Byrd & Nocedal (2017), eq. (2.6), arXiv:1710.11258.

    With accumulation: the value is that of the whole batch.
    """

    projections = DotMean()
    square_norm = SquareNormOfMean()

    def compute(self, step: Step) -> Tensor:
        """Return the test's value, `[]`."""
        products, square = step[self.projections].total(), step[self.square_norm].total()
        return _root_of_variance((products - square).square(), step.batch_size, square.square())


@dataclass(frozen=True)
class OrthoTest(Quantity):
    r"""Relative spread of the individual gradients orthogonal to the mini-batch gradient.

    Formula: :math:`\sqrt{\frac{\sum_i \lVert g_i \rVert^2 - \sum_i (g_i \cdot g)^2 / \lVert g
    \rVert^2} {(N-1) N \lVert g \rVert^2}}`. NaN for a batch of one sample and for a gradient of
    zero.

    How to read it: in high dimensions nearly all noise is orthogonal. Below 1, the direction itself
    is well known.

    Source: Bollapragada, Byrd & Nocedal (2017), eq. (3.3), arXiv:1710.11258.

    With accumulation: the value is that of the whole batch.
    """

    square_norms = SquareNorms()
    projections = DotMean()
    square_norm = SquareNormOfMean()

    def compute(self, step: Step) -> Tensor:
        """Return the test's value, `[]`."""
        squares, products = step[self.square_norms].total(), step[self.projections].total()
        square = step[self.square_norm].total()
        return _root_of_variance(squares - products.square() / square, step.batch_size, square)
