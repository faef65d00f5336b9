"""Faults of the model: signals and gradients that vanish, explode, saturate or die."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.faults import models
from benchmarks.faults.fault import Change, Injected
from benchmarks.faults.models import after, layers, part
from benchmarks.faults.training import Setup

ACTIVATIONS = (nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid)
NORMS = (nn.BatchNorm2d, nn.LayerNorm)


def replace(setup: Setup, **options: Any) -> list[str]:
    """Give the training another model of its architecture; return the names of its layers."""
    makers: dict[str, Callable[..., nn.Module]] = {
        "mlp": models.mlp,
        "cnn": models.cnn,
        "resnet": models.ResNet,
        "regression": models.regression,
    }
    setup.again()
    if setup.architecture == "transformer":
        setup.model = models.Transformer(setup.data.classes, **options)
    else:
        setup.model = makers[setup.architecture](**options)
    return [name for name, _ in layers(setup.model)]


def put(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module into the place of another."""
    parent, _, last = name.rpartition(".")
    setattr(part(model, parent), last, module)


def middle(setup: Setup) -> tuple[str, Any]:
    """Return a layer in the middle of the model."""
    found = layers(setup.model)
    return found[len(found) // 2]


@torch.no_grad()
def scale(module: Any, factor: float) -> None:
    """Multiply the weights of a layer."""
    module.weight.mul_(factor)


def deep(setup: Setup, count: int, activation: Callable[[], nn.Module]) -> list[str]:
    """Make the model deeper, with other activations."""
    key = "more" if setup.architecture == "cnn" else "hidden"
    return replace(setup, **{key: count, "activation": activation})


def deep_sigmoids(setup: Setup) -> Injected:
    """Put many sigmoids behind each other."""
    names = deep(setup, 8, nn.Sigmoid)
    return Injected(tuple(names[: len(names) // 2]))


def small_gains(setup: Setup) -> Injected:
    """Initialise every layer of a deep model with weights that are far too small."""
    names = deep(setup, 8, nn.Tanh)
    for name in names:
        scale(part(setup.model, name), 0.3)
    return Injected(tuple(names[: len(names) // 2]))


def small_normal(setup: Setup) -> Injected:
    """Initialise a deep model with a standard deviation of 0.02, which suits layers that are far wider."""
    names = deep(setup, 6, nn.ReLU)
    for name in names:
        nn.init.normal_(part(setup.model, name).weight, std=0.02)
    return Injected(tuple(names[: len(names) // 2]))


def deep_by_default(setup: Setup) -> Injected:
    """Stack 16 ReLU layers with the default initialisation, under which each halves the signal or worse."""
    names = deep(setup, 16, nn.ReLU)
    return Injected(tuple(names[: len(names) // 2]))


def large_gains(setup: Setup) -> Injected:
    """Initialise every layer of a deep model with weights that are too large."""
    names = deep(setup, 8, nn.ReLU)
    for name in names:
        scale(part(setup.model, name), 5.0)
    return Injected((*names, "head"))


def amplified(setup: Setup) -> Injected:
    """Initialise a deep model with a standard normal distribution."""
    names = deep(setup, 5, nn.ReLU)
    for name in names:
        nn.init.normal_(part(setup.model, name).weight)
    return Injected((*names, "head"))


def uniform_weights(setup: Setup) -> Injected:
    """Initialise a deep model with numbers between -0.5 and 0.5."""
    names = deep(setup, 8, nn.ReLU)
    for name in names:
        nn.init.uniform_(part(setup.model, name).weight, -0.5, 0.5)
    return Injected((*names, "head"))


def root_taken_twice(setup: Setup) -> Injected:
    """Initialise a deep model as He et al. (2015) do, but take the root of the variance twice."""
    names = deep(setup, 8, nn.ReLU)
    for name in names:
        weight = part(setup.model, name).weight
        nn.init.normal_(weight, std=(2 / weight[0].numel()) ** 0.25)
    return Injected((*names, "head"))


@torch.no_grad()
def shift(model: nn.Module, name: str, offset: float, share: float = 1.0) -> None:
    """Shift what goes into the activations after a layer, for a share of its units."""
    layer = part(model, name)
    try:
        norm = part(model, after(model, name, nn.BatchNorm2d))
        layer = norm
    except LookupError:
        pass
    layer.bias[: int(share * len(layer.bias))] = offset


def dead(setup: Setup) -> Injected:
    """Begin with a bias that most ReLU units of a layer never come back from."""
    name, _ = middle(setup)
    shift(setup.model, name, -20.0, 0.9)
    return Injected((name, after(setup.model, name, nn.ReLU), *_norm(setup.model, name)))


def dead_from_the_start(setup: Setup) -> Injected:
    """Begin with a negative bias in the first layer, in which three of four units die."""
    name, _ = layers(setup.model)[0]
    shift(setup.model, name, -12.0, 0.75)
    return Injected((name, after(setup.model, name, nn.ReLU), *_norm(setup.model, name)))


def dead_at_the_end(setup: Setup) -> Injected:
    """Begin with a negative bias in three of five units of the last hidden layer."""
    name, _ = layers(setup.model)[-1]
    shift(setup.model, name, -6.0, 0.6)
    return Injected((name, after(setup.model, name, nn.ReLU), *_norm(setup.model, name)))


def dead_everywhere(setup: Setup) -> Injected:
    """Go on from a training that went wrong, in which two of three units of every layer have died."""
    places: list[str] = []
    for name, _ in layers(setup.model):
        shift(setup.model, name, -8.0, 2 / 3)
        places += [name, after(setup.model, name, nn.ReLU), *_norm(setup.model, name)]
    return Injected(tuple(places))


def _norm(model: nn.Module, name: str) -> tuple[str, ...]:
    try:
        return (after(model, name, nn.BatchNorm2d),)
    except LookupError:
        return ()


@torch.no_grad()
def dormant(setup: Setup) -> Injected:
    """Begin with tiny weights into and out of most units of a layer."""
    name, layer = middle(setup)
    count = 4 * len(layer.weight) // 5
    layer.weight[:count] *= 1e-4
    layer.bias[:count] = 0
    _outgoing(setup.model, name, count, 1e-4)
    return Injected((name, after(setup.model, name, ACTIVATIONS)))


@torch.no_grad()
def dormant_at_first(setup: Setup) -> Injected:
    """Begin with hardly any weights into two thirds of the units of the first layer, and out of them."""
    name, layer = layers(setup.model)[0]
    count = 2 * len(layer.weight) // 3
    layer.weight[:count] *= 1e-3
    layer.bias[:count] = 0
    _outgoing(setup.model, name, count, 1e-3)
    return Injected((name, after(setup.model, name, ACTIVATIONS)))


@torch.no_grad()
def dormant_at_the_end(setup: Setup) -> Injected:
    """Begin with the last hidden layer of a pruned model, in which three of four units have no weights to speak of."""
    name, layer = layers(setup.model)[-1]
    count = 3 * len(layer.weight) // 4
    layer.weight[:count] *= 3e-4
    layer.bias[:count] = 0
    _outgoing(setup.model, name, count, 3e-4)
    return Injected((name, after(setup.model, name, ACTIVATIONS)))


@torch.no_grad()
def grown(setup: Setup) -> Injected:
    """Grow every layer to four times its width, with weights of new units that are next to nothing."""
    found = layers(setup.model)
    for place, (name, layer) in enumerate(found):
        count = 3 * len(layer.weight) // 4
        if place:
            scale(layer, 2.0)  # as it was initialised, with a quarter of the inputs
        layer.weight[:count] *= 1e-3
        layer.bias[:count] = 0
        _outgoing(setup.model, name, count, 1e-3)
    scale(part(setup.model, "head"), 2.0)
    acts = (after(setup.model, name, ACTIVATIONS) for name, _ in found)
    return Injected((*(name for name, _ in found), *acts))


def _outgoing(model: nn.Module, name: str, count: int, factor: float) -> None:
    """Multiply the weights from the first units of a layer to the next one."""
    names = [known for known, _ in layers(model)] + ["head"]
    following = part(model, names[names.index(name) + 1])
    weight = following.weight
    each = weight.shape[1] // len(part(model, name).weight)
    weight[:, : count * each] *= factor


def saturated_tanh(setup: Setup) -> Injected:
    """Use tanh, and begin with weights of a layer that are 30 times as large."""
    replace(setup, activation=nn.Tanh)
    name, layer = middle(setup)
    scale(layer, 30.0)
    return Injected((name, after(setup.model, name, nn.Tanh)))


@torch.no_grad()
def saturated_sigmoid(setup: Setup) -> Injected:
    """Use sigmoids, and begin with biases of a layer of 12 or -12."""
    replace(setup, activation=nn.Sigmoid)
    name, layer = middle(setup)
    layer.bias.fill_(12.0)
    layer.bias[::2] = -12.0
    return Injected((name, after(setup.model, name, nn.Sigmoid)))


def saturated_by_normal(setup: Setup) -> Injected:
    """Use tanh, and initialise every layer but the last with a standard normal distribution."""
    names = replace(setup, activation=nn.Tanh)
    for name in names:
        nn.init.normal_(part(setup.model, name).weight)
    return Injected((*names, *(after(setup.model, name, nn.Tanh) for name in names)))


def saturated_by_positive(setup: Setup) -> Injected:
    """Use sigmoids, and draw all weights but the last layer's from 0 to 1, none of them negative."""
    names = replace(setup, activation=nn.Sigmoid)
    for name in names:
        nn.init.uniform_(part(setup.model, name).weight)
    return Injected((*names, *(after(setup.model, name, nn.Sigmoid) for name in names)))


def last_normal(setup: Setup) -> Injected:
    """Initialise the last hidden layer with a standard deviation of 3."""
    name, layer = layers(setup.model)[-1]
    nn.init.normal_(layer.weight, std=3.0)
    return Injected((name, after(setup.model, name, ACTIVATIONS)))


def first_small(setup: Setup) -> Injected:
    """Initialise the first layer with a standard deviation of 0.0001."""
    name, layer = layers(setup.model)[0]
    nn.init.normal_(layer.weight, std=1e-4)
    return Injected((name, after(setup.model, name, ACTIVATIONS)))


def middle_positive(setup: Setup) -> Injected:
    """Draw the weights of a layer written by hand from 0 to 1."""
    name, layer = middle(setup)
    nn.init.uniform_(layer.weight)
    return Injected((name, after(setup.model, name, ACTIVATIONS)))


def second_small(setup: Setup) -> Injected:
    """Initialise the second layer with a standard deviation of 0.001 and biases of 0."""
    name, layer = layers(setup.model)[1]
    nn.init.normal_(layer.weight, std=1e-3)
    nn.init.zeros_(layer.bias)
    return Injected((name, after(setup.model, name, ACTIVATIONS)))


def one_layer_times(factor: float) -> Change:
    """Return the fault of one layer whose weights are initialised at another scale."""

    def change(setup: Setup) -> Injected:
        name, layer = middle(setup)
        scale(layer, factor)
        return Injected((name, after(setup.model, name, ACTIVATIONS)))

    return change


@torch.no_grad()
def constant(setup: Setup) -> Injected:
    """Initialise all weights from the second layer on with one number each."""
    return _constant(setup, lambda layer: layer.weight.fill_(0.5 / layer.weight[0].numel() ** 0.5))


@torch.no_grad()
def zeros(setup: Setup) -> Injected:
    """Initialise all weights from the second layer on with zeros."""
    return _constant(setup, lambda layer: layer.weight.zero_())


def _constant(setup: Setup, fill: Callable[[Any], object]) -> Injected:
    found = layers(setup.model)
    chosen = found[1:] if len(found) > 1 else found
    for _, layer in [*chosen, ("head", part(setup.model, "head"))]:
        fill(layer)
        layer.bias.zero_()
    acts = [after(setup.model, name, ACTIVATIONS) for name, _ in chosen]
    return Injected((*(name for name, _ in chosen), "head", *acts))


@torch.no_grad()
def symmetric_layer(setup: Setup) -> Injected:
    """Copy the first unit of a hidden layer, and what follows from it, to all others."""
    found = layers(setup.model)
    at = len(found) // 2
    name, layer = found[at]
    following = [*found, ("head", part(setup.model, "head"))][at + 1][1]
    layer.weight.copy_(layer.weight[:1].expand_as(layer.weight).clone())
    layer.bias.fill_(0.01)
    if following.weight.dim() == layer.weight.dim():
        following.weight.copy_(following.weight[:, :1].expand_as(following.weight).clone())
    else:  # what was flattened: channels by positions
        each = following.weight.shape[1] // len(layer.weight)
        parts = following.weight[:, :each].repeat(1, len(layer.weight))
        following.weight.copy_(parts)
    return Injected((name, after(setup.model, name, ACTIVATIONS)))


@torch.no_grad()
def widened(setup: Setup) -> Injected:
    """Widen the first layer to four times its width by copies of its units, without noise."""
    name, layer = layers(setup.model)[0]
    following = layers(setup.model)[1][1]
    own = len(layer.weight) // 4
    layer.weight.copy_(layer.weight[:own].repeat(4, *[1] * (layer.weight.dim() - 1)))
    layer.bias.copy_(layer.bias[:own].repeat(4))
    following.weight.copy_(
        following.weight[:, :own].repeat(1, 4, *[1] * (following.weight.dim() - 2))
    )
    return Injected((name, after(setup.model, name, ACTIVATIONS)))


@torch.no_grad()
def doubled(setup: Setup) -> Injected:
    """Make every layer twice as wide as that of a checkpoint, by a copy of each unit."""
    found = layers(setup.model)
    following = [*(layer for _, layer in found[1:]), part(setup.model, "head")]
    for (_, layer), after_it in zip(found, following, strict=True):
        for value in (layer.weight, layer.bias):
            value[len(value) // 2 :] = value[: len(value) // 2]
        half = after_it.weight.shape[1] // 2
        after_it.weight[:, half:] = after_it.weight[:, :half]
    acts = (after(setup.model, name, ACTIVATIONS) for name, _ in found)
    return Injected((*(name for name, _ in found), *acts))


@torch.no_grad()
def large_head(setup: Setup) -> Injected:
    """Initialise the last layer so that scores have a standard deviation of 6."""
    head = part(setup.model, "head")
    spread = (setup.model(setup.data.x[:64]) - head.bias).std()
    scale(head, 6 / float(spread))
    return Injected(("head",))


@torch.no_grad()
def sure_head(setup: Setup) -> Injected:
    """Begin with a bias that is sure of two classes."""
    part(setup.model, "head").bias[:2] = 15.0
    return Injected(("head",))


def random_head(setup: Setup) -> Injected:
    """Draw the biases of the last layer from a normal distribution of standard deviation 4."""
    nn.init.normal_(part(setup.model, "head").bias, std=4.0)
    return Injected(("head",))


@torch.no_grad()
def priors_of_others(setup: Setup) -> Injected:
    """Set the biases of the last layer to the log frequencies of classes with a long tail, of other data."""
    bias = part(setup.model, "head").bias
    bias.copy_(torch.linspace(0, -11, len(bias)))
    return Injected(("head",))


class Root(nn.Module):
    """An activation with the root of what is positive, and 0 for the rest."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the roots; the gradient is NaN where the root that is not taken is."""
        return torch.where(x > 0, x.sqrt(), 0.0)


def root(setup: Setup) -> Injected:
    """Choose between a root and 0 after both are computed: the loss is finite, its gradient is not."""
    name, _ = middle(setup)
    activation = after(setup.model, name, nn.ReLU)
    put(setup.model, activation, Root())
    return Injected((activation, name, *_norm(setup.model, name)))
