"""How the loss goes into the backward pass: the factor on it, and each sample's weight in it.

Nothing of this is guessed. A tensor hook on the loss sees the factor arrive with which it is really
backpropagated (a gradient scaler's, an accumulation's), and one on the individual losses sees each
sample's weight.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle


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
    """

    def __init__(
        self, loss: Tensor | None, individual_losses: Tensor | None, reduction: str | None = None
    ) -> None:
        self._loss = None if loss is None else loss.detach()
        self._individual = None if individual_losses is None else individual_losses.detach()
        self._said = reduction
        self.factor: Tensor | None = None
        self.weights: Tensor | None = None
        self.expected = loss is not None and loss.requires_grad
        self._hooks: list[RemovableHandle] = []
        if loss is not None and loss.requires_grad:
            self._hooks.append(loss.register_hook(self._see_factor))
        if individual_losses is not None and individual_losses.requires_grad:
            self._hooks.append(individual_losses.register_hook(self._see_weights))

    def _see_factor(self, grad: Tensor) -> None:
        factor = grad.detach().sum()  # of one element
        self.factor = factor if self.factor is None else self.factor + factor

    def _see_weights(self, grad: Tensor) -> None:
        self.weights = grad.detach() if self.weights is None else self.weights + grad.detach()

    def close(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @property
    def seen(self) -> bool:
        """Whether what can be known is known: the gradient has passed the loss, or the loss has none."""
        return self.factor is not None or not self.expected

    def reduction(self, batch_size: int) -> Tensor | float:
        """Return r: 1 for a mean, N for a sum."""
        if self._said is not None:
            return 1.0 if self._said == "mean" else float(batch_size)
        if self.weights is not None and self.factor is not None:
            # A mean's weights sum to about 1, whatever the weighting, and a sum's to about N.
            total = self.weights.sum() / self.factor
            return torch.where(total > math.sqrt(batch_size), float(batch_size), 1.0)
        if self._individual is not None and self._loss is not None:
            to_sum = (self._loss - self._individual.sum()).abs()
            to_mean = (self._loss - self._individual.mean()).abs()
            return torch.where(to_sum < to_mean, float(batch_size), 1.0)
        return 1.0

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
