"""Faults of the loss, and of what connects the model with it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.faults.fault import Change, Injected
from benchmarks.faults.models import after, layers, part
from benchmarks.faults.of_signals import ACTIVATIONS, put
from benchmarks.faults.of_structure import followed
from benchmarks.faults.training import Setup


def before_the_loss(change: Callable[[Tensor], Tensor]) -> Change:
    """Return the fault of something between the model and the loss."""

    def fault(setup: Setup) -> None:
        plain = setup.losses
        setup.losses = lambda outputs, y: plain(change(outputs), y)

    return fault


double_softmax = before_the_loss(lambda outputs: outputs.softmax(-1))
sigmoid_before = before_the_loss(torch.sigmoid)
relu_before = before_the_loss(torch.relu)
tanh_before = before_the_loss(torch.tanh)
clamped_before = before_the_loss(lambda outputs: outputs.clamp(-1, 1))
length_one_before = before_the_loss(lambda outputs: F.normalize(outputs, dim=-1))
tempered_before = before_the_loss(lambda outputs: (outputs / 2).softmax(-1))


def softmax_last(setup: Setup) -> None:
    """End the model with a softmax, which the loss has already."""
    followed(setup, nn.Softmax(-1))


def likelihood(of: Callable[[Tensor], Tensor]) -> Change:
    """Return the fault of a negative log-likelihood of what has no logarithm."""

    def losses(outputs: Tensor, y: Tensor) -> Tensor:
        if y.dim() == 1:
            return F.nll_loss(of(outputs), y, reduction="none")
        return F.nll_loss(of(outputs).mT, y, reduction="none").mean(1)

    def fault(setup: Setup) -> None:
        setup.losses = losses

    return fault


of_scores = likelihood(lambda outputs: outputs)
of_probabilities = likelihood(lambda outputs: outputs.softmax(-1))
of_log_sigmoids = likelihood(F.logsigmoid)
over_the_batch = likelihood(lambda outputs: outputs.log_softmax(0))


def summed(setup: Setup) -> None:
    """Add the losses up, with the learning rate of their mean."""
    setup.reduce = torch.sum


def divided_twice(setup: Setup) -> None:
    """Divide the mean by the size of the batch once more."""
    size = setup.batch_size
    setup.reduce = lambda losses: losses.mean() / size


def divided_by_all(setup: Setup) -> None:
    """Divide the sum by the number of all samples, in the place of those of the batch."""
    count = len(setup.data.x)
    setup.reduce = lambda losses: losses.sum() / count


def divided_for_accumulation(setup: Setup) -> None:
    """Divide the loss by the number of batches whose gradients add up, 8, but update after each of them."""
    setup.reduce = lambda losses: losses.mean() / 8


def target_without_column(setup: Setup) -> None:
    """Compare outputs `[N, 1]` with targets `[N]`."""
    setup.losses = lambda outputs, y: (outputs - y.squeeze(1)).square()


def output_without_column(setup: Setup) -> None:
    """Compare outputs `[N]` with targets `[N, 1]`."""
    setup.losses = lambda outputs, y: (outputs.squeeze(1) - y).square()


def mean_over_targets(setup: Setup) -> None:
    """Compare outputs `[N, 1]` with targets `[N]`, and take the mean over what should be the one output."""
    setup.losses = lambda outputs, y: (outputs - y.squeeze(1)).square().mean(1)


def mean_over_outputs(setup: Setup) -> None:
    """Compare outputs `[N]` with targets `[N, 1]` by absolute errors, with the mean over what should be the one."""
    setup.losses = lambda outputs, y: (outputs.squeeze(1) - y).abs().mean(1)


class Detached(nn.Module):
    """An activation that hands on no gradient."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation without its graph."""
        return self.activation(x).detach()


class Quantised(nn.Module):
    """An activation that is rounded: its derivative is 0 wherever it has one."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation in steps of an eighth."""
        return (8 * self.activation(x)).round() / 8


class Untracked(nn.Module):
    """A layer that is computed without a graph."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Return what the layer returns, without a gradient for anything before."""
        with torch.no_grad():
            return self.layer(x)


def detached(setup: Setup) -> Injected:
    """Detach an activation in the middle, so that nothing before it learns."""
    found = [name for name, _ in layers(setup.model)]
    at = len(found) // 2
    name = after(setup.model, found[at], ACTIVATIONS)
    put(setup.model, name, Detached(part(setup.model, name)))
    return Injected(tuple(found[: at + 1]))


def untracked(setup: Setup) -> Injected:
    """Compute a layer in the middle without a graph."""
    found = [name for name, _ in layers(setup.model)]
    at = len(found) // 2
    put(setup.model, found[at], Untracked(part(setup.model, found[at])))
    return Injected((*found[:at], f"{found[at]}.layer", found[at]))


def features_detached(setup: Setup) -> Injected:
    """Hand the features to the last layer as numbers, so that it alone learns."""
    found = [name for name, _ in layers(setup.model)]
    name = after(setup.model, found[-1], ACTIVATIONS)
    put(setup.model, name, Detached(part(setup.model, name)))
    return Injected(tuple(found))


def quantised(setup: Setup) -> Injected:
    """Round the first activation, as on the target device, without letting the gradient pass straight through."""
    name, _ = layers(setup.model)[0]
    activation = after(setup.model, name, ACTIVATIONS)
    put(setup.model, activation, Quantised(part(setup.model, activation)))
    return Injected((name,))
