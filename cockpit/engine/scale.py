"""How the loss goes into the backward pass: the factor on it, and each sample's weight in it.

Nothing of this is guessed. A tensor hook on the loss sees the factor arrive with which it is really
backpropagated (a gradient scaler's, an accumulation's), and one on the individual losses sees each
sample's weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

if TYPE_CHECKING:
    from cockpit.engine.several import Scale


class LossScale:
    """Watches the loss during one backward pass.

    The individual gradients are g_i = N × (share of sample i in the gradient) / (factor · r), with
    r = 1 where the loss is a (weighted) mean over the samples and r = N where it is a sum.

    Args:
        loss: The mini-batch loss that is backpropagated, `[]`, with its graph.
        individual_losses: The losses of the samples, `[N]`, in the graph of `loss` or computed
            beside it.
        reduction: ``"mean"`` or ``"sum"`` where the user says which one `loss` is; None to see by
            oneself.
        on_loss: A factor that is on `loss` already, a number or a tensor with one element; only
            what comes after `loss` can be seen.
    """

    def __init__(
        self,
        loss: Tensor | None,
        individual_losses: Tensor | None,
        reduction: str | None = None,
        on_loss: Tensor | float = 1.0,
    ) -> None:
        self._loss = None if loss is None else loss.detach().reshape(()) / on_loss
        self._on_loss = on_loss
        self._individual = None if individual_losses is None else individual_losses.detach()
        self.said = reduction
        self.factor: Tensor | None = None
        self.weights: Tensor | None = None
        self.expected = loss is not None and loss.requires_grad
        self.arrivals = 0
        self.on_arrival: Callable[[], None] | None = None
        self._hooks: list[RemovableHandle] = []
        if loss is not None and loss.requires_grad:
            self._hooks.append(loss.register_hook(self._see_factor))
        if individual_losses is not None and individual_losses.requires_grad:
            self._hooks.append(individual_losses.register_hook(self._see_weights))

    def _see_factor(self, grad: Tensor) -> None:
        self.arrivals += 1
        if self.on_arrival is not None:
            self.on_arrival()
        factor = grad.detach().sum() * self._on_loss  # the sum of one element
        self.factor = factor if self.factor is None else self.factor + factor

    def _see_weights(self, grad: Tensor) -> None:
        self.weights = grad.detach() if self.weights is None else self.weights + grad.detach()

    def close(self) -> None:
        """Take the hooks off."""
        self.on_arrival = None
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @property
    def loss(self) -> Tensor:
        """The loss, without its graph and the factor on it, `[]`."""
        assert self._loss is not None
        return self._loss

    @property
    def given(self) -> bool:
        """Whether there is a loss."""
        return self._loss is not None

    @property
    def individual(self) -> Tensor | None:
        """The losses of the samples, without their graph, `[N]`."""
        return self._individual

    def listen(self, on_arrival: Callable[[], None]) -> None:
        """Call a function whenever a gradient arrives at the loss."""
        self.on_arrival = on_arrival

    def fault(self) -> str | None:
        """Return what is wrong with the way the loss was backpropagated, if anything is."""
        if self.seen:
            return None
        return (
            "the tensor given as 'loss' took no part in the backward pass; give the one on which "
            "backward() is called"
        )

    @property
    def seen(self) -> bool:
        """Whether what can be known is known: the gradient has passed the loss, or the loss has none."""
        return self.factor is not None or not self.expected

    def reduction(self, batch_size: int) -> Tensor | float:
        """Return r: 1 for a mean, N for a sum."""
        if self.said is not None:
            return 1.0 if self.said == "mean" else float(batch_size)
        if self.weights is not None and self.factor is not None:
            # A mean's weights sum to about 1, whatever the weighting, and a sum's to about N.
            total = self.weights.sum() / self.factor
            return torch.where(total > math.sqrt(batch_size), float(batch_size), 1.0).to(total)
        if self._individual is not None and self._loss is not None:
            return closer_reduction(self._loss, self._individual, batch_size)
        return 1.0

    def doubt(self, batch_size: int) -> float | None:
        """Return how many times the mean of the samples' losses the loss is, where that says neither.

        None where it is close enough to 1 (a mean) or to N (a sum), or not known at all. This waits
        for the device.
        """
        if self.said is not None or batch_size < 2 or self._individual is None:
            return None
        if self.weights is not None and self.factor is not None:
            times = float(self.weights.sum() / self.factor)
        else:
            times = float(self.loss / self._individual.mean())
        if not 0 < times < math.inf:
            return None
        place = math.log(times) / math.log(batch_size)  # 0 for a mean, 1 for a sum
        return times if 0.35 < place < 0.65 else None

    def of_samples(self, batch_size: int) -> Tensor | float:
        """Return what a sample's share in the gradient is multiplied with to give g_i."""
        factor = 1.0 if self.factor is None else self.factor
        return batch_size / (factor * self.reduction(batch_size))

    def sample_weights(self) -> Tensor | float:
        """Return what the individual losses are multiplied with to give ℓ_i, N × the sample's share in L."""
        if self.weights is None or self.factor is None:
            return 1.0
        n = self.weights.numel()
        return self.weights * (n / (self.factor * self.reduction(n)))


class AccumulatedScale:
    """The same for a batch whose samples came in several backward passes.

    The loss of the whole is what the passes together backpropagate: the sum of the parts' losses
    times the factors on them. Its unit is the sum of the factors where the parts are means, and the
    mean factor where they are sums.

    Args:
        parts: What was seen of each part, and its number of samples.
    """

    def __init__(self, parts: Sequence[tuple[Scale, int]]) -> None:
        self._parts = list(parts)
        self._given = [1.0 if scale.factor is None else scale.factor for scale, _ in parts]
        self._sum = sum(self._given)
        self.batch_size = sum(size for _, size in parts)

    def _choose(self, of_mean: Tensor | float, of_sum: Tensor | float) -> Tensor | float:
        # A single sample does not tell a mean from a sum.
        scale, size = max(self._parts, key=lambda part: part[1])
        if scale.said is not None:
            return of_mean if scale.said == "mean" else of_sum
        r = scale.reduction(size)
        if isinstance(r, Tensor):
            return torch.where(r == 1, of_mean, of_sum)
        return of_mean if r == 1 else of_sum

    def reduction(self, batch_size: int) -> Tensor | float:
        """Return r of the whole: 1 for means, N for sums."""
        return self._choose(1.0, float(batch_size))

    def factors(self) -> list[Tensor | float]:
        """Return what each part's g_i and ℓ_i are multiplied with to be those of the whole."""
        return [
            self._choose(
                self.batch_size / size * given / self._sum, len(self._parts) * given / self._sum
            )
            for given, (_, size) in zip(self._given, self._parts, strict=True)
        ]

    def loss(self) -> Tensor:
        """Return the loss of the whole, `[]`."""
        losses = [scale.loss for scale, _ in self._parts]
        total = sum(given * loss for given, loss in zip(self._given, losses, strict=True))
        return torch.as_tensor(total / self._choose(self._sum, self._sum / len(losses)))

    def sample_weights(self) -> Tensor:
        """Return what the individual losses are multiplied with to give ℓ_i, `[N]`."""
        weights = [
            torch.as_tensor(scale.sample_weights() * factor, device=scale.loss.device).expand(size)
            for (scale, size), factor in zip(self._parts, self.factors(), strict=True)
        ]
        return torch.cat(weights)


def closer_reduction(loss: Tensor, individual: Tensor, batch_size: int) -> Tensor:
    """Return N where a loss is closer to the sum of the samples' losses than to their mean, and 1 otherwise."""
    to_sum, to_mean = (loss - individual.sum()).abs(), (loss - individual.mean()).abs()
    return torch.where(to_sum < to_mean, float(batch_size), 1.0).to(to_mean)
