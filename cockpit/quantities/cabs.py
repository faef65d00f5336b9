"""The batch size that CABS suggests."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cockpit.engine.needs import LearningRates, MeanLoss
from cockpit.engine.step import Step
from cockpit.quantities.quantity import Quantity
from cockpit.transforms import DotMean, SquareNormOfMean, SquareNorms


@dataclass(frozen=True)
class CABS(Quantity):
    r"""Batch size suggested by the coupled adaptive batch size rule.

    Formula: :math:`\frac{\eta}{N L} \sum_d \left( \sum_i g_{id}^2 - N g_d^2 \right)`; with several
    parameter groups, each parameter with the learning rate of its group. The learning rates are
    read from the optimizer at every tracked step.

    The criterion assumes plain SGD, that is, updates of :math:`-\eta g`, and a loss whose minimum is
    near zero. With other optimizers that have one learning rate per group it is computed all the
    same, and says how the noise compares with the loss at that rate.

    How to read it: close to the batch size in use is well balanced. Far above it, the noise of the
    gradient is large for this learning rate: use larger batches or a smaller rate.

    Source: Balles, Romero & Hennig (2017), arXiv:1612.05086, eq. (22).

    With accumulation: the value is that of the whole batch.
    """

    learning_rates = LearningRates()
    loss = MeanLoss()
    square_norms = SquareNorms()
    projections = DotMean()
    square_norm = SquareNormOfMean()

    def compute(self, step: Step) -> Tensor:
        """Return the suggested batch size, `[]`."""
        rates, squares = step[self.learning_rates], step[self.square_norms]
        products, of_mean = step[self.projections], step[self.square_norm]
        deviations = {p: (squares[p] - 2 * products[p] + of_mean[p]).mean() for p in squares}
        return sum(rates[p] * deviations[p] for p in squares) / step[self.loss]
