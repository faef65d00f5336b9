"""The losses of a step, as they were handed over, in their graph."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from cockpit.engine.scale import LossScale
from cockpit.engine.several import Scale, SeveralLosses


class Losses(NamedTuple):
    """The loss and the losses of the samples, in their graph.

    Args:
        loss: The loss, the sum where there are several.
        individual: The losses of the samples, `[N]`, the sum where there are several.
        size: How many samples there are; 0 where that is not known.
        factor: What is on the loss already, as a factor.
        parts: The losses one by one, where several are backpropagated.
        individual_parts: The losses of the samples for each of these, where they were given so.
    """

    loss: Tensor | None
    individual: Tensor | None
    size: int
    factor: Tensor | float = 1.0
    parts: tuple[Tensor, ...] = ()
    individual_parts: tuple[Tensor, ...] = ()

    def scale(self, reduction: str | None) -> Scale:
        """Return what watches the loss, or the losses, in the backward passes."""
        if not self.parts:
            return LossScale(self.loss, self.individual, reduction, self.factor)
        individual = self.individual_parts or self.individual
        return SeveralLosses(self.parts, individual, reduction, self.factor)

    @property
    def plain(self) -> Tensor | None:
        """The loss without the factor on it, in its graph."""
        if self.loss is None or (isinstance(self.factor, float) and self.factor == 1):
            return self.loss
        return self.loss / self.factor

    @property
    def backpropagated(self) -> tuple[Tensor, ...]:
        """The losses that are backpropagated, one or several."""
        return self.parts or (() if self.loss is None else (self.loss,))
