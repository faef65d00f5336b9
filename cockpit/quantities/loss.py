"""The mini-batch loss."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cockpit.engine.needs import MiniBatchLoss
from cockpit.engine.step import Step
from cockpit.quantities.quantity import Quantity


@dataclass(frozen=True)
class Loss(Quantity):
    r"""The mini-batch loss L, as it was handed over.

    Formula: :math:`L(\theta_t)` on the mini-batch of step t, a mean or a sum over the samples as
    the training has it.

    How to read it: it should fall, on average over many steps. Single values are noisy.

    Source: any; the value that is backpropagated.

    With accumulation: the loss of the whole batch, the mean (or the sum) of those of the micro-batches.
    """

    loss = MiniBatchLoss()

    def compute(self, step: Step) -> Tensor:
        """Return L, `[]`."""
        return step[self.loss]
