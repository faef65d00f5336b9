"""How several losses go into the backward passes of one step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cockpit.engine.scale import LossScale, closer_reduction


class SeveralLosses:
    """Watches several losses, backpropagated as a sum or one after the other.

    The loss of the step is their sum as it is really backpropagated,

        L = Σ_k (f_k / f_1) L_k,

    with the factor f_k that arrives at loss k. That on the first one is the unit, so that a weight on
    another loss counts, and the factor of a gradient scaler, which is on all of them, does not. The
    individual gradients are g_i = N × (share of sample i in the gradients of all passes) / (f_1 · r),
    and the losses of the samples are ℓ_i = Σ_k (f_k / f_1) × (that of loss k), both with r of the
    first loss.

    Everything is known only when the last pass is over.

    Args:
        losses: The losses, `[]` each, with their graphs.
        individual: The losses of the samples, `[N]`, for each loss; or one tensor `[N]`, the sum over
            the losses.
        reduction: See `LossScale`.
        on_loss: A factor that is on all losses already; see `LossScale`.
    """

    def __init__(
        self,
        losses: Sequence[Tensor],
        individual: Sequence[Tensor] | Tensor | None,
        reduction: str | None = None,
        on_loss: Tensor | float = 1.0,
    ) -> None:
        summed = individual if isinstance(individual, Tensor) else None
        each = [None] * len(losses) if individual is None or summed is not None else individual
        self.said = reduction
        self._weight = None if summed is None else _weight_of(losses[0], summed)
        self._summed = LossScale(None, summed)
        self._parts = [
            LossScale(loss, samples, reduction, on_loss)
            for loss, samples in zip(losses, each, strict=True)
        ]

    def listen(self, on_arrival: Callable[[], None]) -> None:
        """Call a function whenever a gradient arrives at one of the losses."""
        for part in self._parts:
            part.listen(on_arrival)

    def close(self) -> None:
        """Take the hooks off."""
        for part in (*self._parts, self._summed):
            part.close()

    def fault(self) -> str | None:
        """Return what is wrong with the way the losses were backpropagated, if anything is."""
        for number, part in enumerate(self._parts):
            if not part.seen:
                return f"loss[{number}], given as 'loss', took no part in the backward passes; leave it out"
            if part.arrivals > 1:
                return (
                    f"loss[{number}], given as 'loss', was differentiated {part.arrivals} times; do it "
                    "once within the with block, and what else needs its gradient, such as a balancing "
                    "of the losses, before it"
                )
        return None

    @property
    def given(self) -> bool:
        """Whether there is a loss: always."""
        return True

    @property
    def expected(self) -> bool:
        """Whether some of the losses have a graph."""
        return any(part.expected for part in self._parts)

    @property
    def seen(self) -> bool:
        """Whether the gradient has passed every loss that has a graph."""
        return all(part.seen for part in self._parts)

    @property
    def factor(self) -> Tensor | None:
        """The factor on the first loss that has a graph, f_1; None until it is seen."""
        return next((part.factor for part in self._parts if part.expected), None)

    def _relative(self) -> list[Tensor | float]:
        """Return f_k / f_1. Losses without a graph, and all before the passes, have weight 1."""
        unit = self.factor
        return [
            1.0
            if unit is None or not part.expected
            else 0.0
            if part.factor is None
            else part.factor / unit
            for part in self._parts
        ]

    def uneven(self) -> bool:
        """Whether the losses have different weights in the whole. This waits for the device."""
        return any(float(weight) != 1 for weight in self._relative())

    @property
    def loss(self) -> Tensor:
        """The sum of the losses as it was backpropagated, without their graphs, `[]`."""
        weighted = zip(self._relative(), self._parts, strict=True)
        return torch.as_tensor(sum(weight * part.loss for weight, part in weighted))

    def reduction(self, batch_size: int) -> Tensor | float:
        """Return r, that of the first loss: 1 for a mean, N for a sum."""
        if self.said is None and self._weight is not None:
            is_sum = self._weight > math.sqrt(batch_size)
            return torch.where(is_sum, float(batch_size), 1.0).to(self._weight)
        if self.said is None and self._summed.individual is not None:
            return closer_reduction(self.loss, self._summed.individual, batch_size)
        return self._parts[0].reduction(batch_size)

    def doubt(self, batch_size: int) -> float | None:
        """Return how many times the mean of its samples' losses the first loss is, where that is neither 1 nor N."""
        return self._parts[0].doubt(batch_size)

    def of_samples(self, batch_size: int) -> Tensor | float:
        """Return what a sample's share in the gradient is multiplied with to give g_i."""
        factor = 1.0 if self.factor is None else self.factor
        return batch_size / (factor * self.reduction(batch_size))

    @property
    def individual(self) -> Tensor | None:
        """ℓ_i, N × the share of sample i in L, `[N]`."""
        if self._summed.individual is not None:
            n, weights = len(self._summed.individual), self._summed.weights
            if weights is None or self.factor is None:
                return self._summed.individual
            return self._summed.individual * weights * self.of_samples(n)
        total: Tensor | None = None
        for weight, part in zip(self._relative(), self._parts, strict=True):
            if part.individual is None:
                return None
            n = len(part.individual)
            unit = weight * part.reduction(n) / self.reduction(n)
            share = part.individual * part.sample_weights() * unit
            total = share if total is None else total + share
        return total

    def sample_weights(self) -> float:
        """Return 1: `individual` is weighted."""
        return 1.0


def _weight_of(loss: Tensor, individual: Tensor) -> Tensor | None:
    """Return the sum of the derivatives of a loss by the samples' losses, where it is made from these."""
    if not (loss.requires_grad and individual.requires_grad):
        return None
    (weights,) = torch.autograd.grad(loss, individual, retain_graph=True, allow_unused=True)
    return None if weights is None else weights.detach().sum()


Scale = LossScale | SeveralLosses
"""How the loss goes into one step's backward pass, or the losses into its passes."""
