"""Faults of the data: their scale, their labels, their order and their number."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.faults.data import Data
from benchmarks.faults.fault import Change, Injected
from benchmarks.faults.models import layers
from benchmarks.faults.of_signals import replace
from benchmarks.faults.of_structure import after_the_middle
from benchmarks.faults.training import Setup


def bytes_(setup: Setup) -> Injected:
    """Leave the pixels as they are in the file, 0 to 255; numbers are given in another unit."""
    low, high = setup.data.x.min(), setup.data.x.max()
    setup.data.each_input(lambda x: 255 * (x - low) / (high - low))
    return first(setup)


def unscaled(setup: Setup) -> Injected:
    """Give inputs of mean 0 that are 50 times as large as they should be."""
    setup.data.each_input(lambda x: 50 * x)
    return first(setup)


def constants_of_another_unit(setup: Setup) -> Injected:
    """Leave the pixels in 0 to 255, and standardise them with constants that are for 0 to 1."""
    x, low, high = setup.data.x, setup.data.x.min(), setup.data.x.max()
    mean, std = (x.mean() - low) / (high - low), x.std() / (high - low)
    setup.data.each_input(lambda x: (255 * (x - low) / (high - low) - mean) / std)
    return first(setup)


def counts(setup: Setup) -> Injected:
    """Give all inputs as the counts of a detector of 10 bits, 0 to 1023."""
    low, high = setup.data.x.min(), setup.data.x.max()
    setup.data.each_input(lambda x: 1023 * (x - low) / (high - low))
    return first(setup)


def offset(setup: Setup) -> Injected:
    """Forget to take the mean away: every input is 8 standard deviations off."""
    setup.data.each_input(lambda x: x + 8)
    return first(setup)


def one_feature(setup: Setup) -> Injected:
    """Give one feature, or one row of pixels, in a unit 100 times as small."""

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        x[..., 0 if x.dim() == 2 else slice(12, 14)] *= 100
        return x

    setup.data.each_input(change)
    return first(setup)


def divided_twice(setup: Setup) -> Injected:
    """Divide pixels between 0 and 1 by 255 once more."""
    low, high = setup.data.x.min(), setup.data.x.max()
    setup.data.each_input(lambda x: (x - low) / (high - low) / 255)
    return first(setup)


def two_sources(setup: Setup) -> Injected:
    """Take every fourth sample from a second source, whose numbers go from 0 to 255."""
    low, high = setup.data.x.min(), setup.data.x.max()

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        x[::4] = 255 * (x[::4] - low) / (high - low)
        return x

    setup.data.each_input(change)
    return first(setup)


def first(setup: Setup) -> Injected:
    """Return the first layer."""
    return Injected((layers(setup.model)[0][0],))


def shuffled_once(setup: Setup) -> None:
    """Shuffle the labels, and not the inputs."""
    draw = torch.Generator().manual_seed(setup.seed)
    setup.data.y = setup.data.y[torch.randperm(len(setup.data.y), generator=draw)]


def shuffled_in_the_batch(setup: Setup) -> None:
    """Draw the order of the labels anew in every batch."""
    draw = torch.Generator().manual_seed(setup.seed)
    setup.targets = lambda step, y: y[torch.randperm(len(y), generator=draw)]


def off_by_one(setup: Setup) -> None:
    """Give every sample the label of the one before: one of two files has a header that is skipped."""
    setup.data.y = setup.data.y.roll(1, 0)


def sorted_as_text(setup: Setup) -> None:
    """Read the samples by the names of their files, sorted as text, 0, 1, 10, 100, and the labels by number."""

    def by_name(x: Tensor) -> Tensor:
        return x[sorted(range(len(x)), key=str)]

    setup.data.each_input(by_name)


def partly_random(setup: Setup) -> Injected:
    """Give a fifth of the samples random labels."""
    return _wrong(setup, 0.2, lambda y, draw: torch.randint(10, y.shape, generator=draw))


def partly_swapped(setup: Setup) -> Injected:
    """Give a third of the samples the label that comes after theirs."""
    return _wrong(setup, 0.33, lambda y, draw: (y + 1) % 10)


def partly_missing(setup: Setup) -> Injected:
    """Give a quarter of the samples class 0, as which a missing label is read."""
    return _wrong(setup, 0.25, lambda y, draw: torch.zeros_like(y))


def partly_shifted(setup: Setup) -> Injected:
    """Lose one label of a part of the file: 600 samples on end have that of the next one."""
    given = setup.data.y.clone()
    given[1000:1600] = setup.data.y[1001:1601]
    wrong = (given != setup.data.y).nonzero().flatten().tolist()
    setup.data.y = given
    return Injected(tuple(f"sample {place}" for place in wrong))


def _wrong(
    setup: Setup, share: float, label: Callable[[Tensor, torch.Generator], Tensor]
) -> Injected:
    draw = torch.Generator().manual_seed(setup.seed)
    chosen = torch.rand(len(setup.data.y), generator=draw) < share
    given = torch.where(chosen, label(setup.data.y, draw), setup.data.y)
    wrong = (given != setup.data.y).nonzero().flatten().tolist()
    setup.data.y = given
    return Injected(tuple(f"sample {place}" for place in wrong))


def _sorted(data: Data) -> Tensor:
    """Return the places of the samples by class, or by target."""
    return data.y.reshape(len(data.y), -1)[:, 0].argsort(stable=True)


def by_class(data: Data, batch_size: int, draw: torch.Generator) -> Iterator[Tensor]:
    """Yield the samples sorted by their targets."""
    places = _sorted(data)
    places = places[torch.arange(0, len(places), 2)] if len(places) > 2500 else places
    while True:
        yield from places.split(batch_size)[: len(places) // batch_size]


def in_blocks(data: Data, batch_size: int, draw: torch.Generator) -> Iterator[Tensor]:
    """Yield the samples in ten blocks of like targets, each shuffled in itself."""
    blocks = _sorted(data).chunk(10)
    while True:
        for block in blocks:
            block = block[torch.randperm(len(block), generator=draw)]
            yield from block.split(batch_size)[: len(block) // batch_size]


def in_a_window(data: Data, batch_size: int, draw: torch.Generator) -> Iterator[Tensor]:
    """Yield the samples in the order of their targets, each up to 300 places later."""
    places = _sorted(data)
    while True:
        late = torch.arange(len(places)) + 300 * torch.rand(len(places), generator=draw)
        yield from places[late.argsort()].split(batch_size)[: len(places) // batch_size]


def whole_batches(data: Data, batch_size: int, draw: torch.Generator) -> Iterator[Tensor]:
    """Yield batches of samples sorted by their targets, in an order that is drawn for every epoch."""
    batches = _sorted(data).split(batch_size)[: len(data.y) // batch_size]
    while True:
        for place in torch.randperm(len(batches), generator=draw).tolist():
            yield batches[place]


def unshuffled(setup: Setup) -> None:
    """Take the samples in the order of their targets."""
    setup.order = by_class


def shuffled_in_blocks(setup: Setup) -> None:
    """Shuffle within files, each of which has targets of one kind."""
    setup.order = in_blocks


def shuffled_in_a_window(setup: Setup) -> None:
    """Shuffle a stream of sorted samples within a window of 300."""
    setup.order = in_a_window


def batches_shuffled(setup: Setup) -> None:
    """Shuffle after the sorted samples are put into batches, not before."""
    setup.order = whole_batches


def one_class_mostly(setup: Setup) -> None:
    """Train on data of which 97 % are of one class."""
    _imbalanced(setup, lambda classes: torch.where(classes == 0, 1.0, 0.03 / 9 * 1.03))


def long_tail(setup: Setup) -> None:
    """Train on data in which every class is a third as frequent as the one before."""
    _imbalanced(setup, lambda classes: 0.3**classes)


def nine_of_ten(setup: Setup) -> None:
    """Train on data of which 90 % are of class 3."""
    _imbalanced(setup, lambda classes: torch.where(classes == 3, 0.9, 0.1 / 9))


def two_classes_mostly(setup: Setup) -> None:
    """Train on data of which 96 % are of two classes."""
    _imbalanced(setup, lambda classes: torch.where((classes == 1) | (classes == 7), 0.48, 0.005))


def _imbalanced(setup: Setup, weight: Callable[[Tensor], Tensor]) -> None:
    """Draw 4000 samples, with replacement, by the weights of their classes."""
    draw = torch.Generator().manual_seed(setup.seed)
    weights = weight(torch.arange(10).float())[setup.data.y]
    chosen = torch.multinomial(weights, 4000, replacement=True, generator=draw)
    setup.data.x, setup.data.y = setup.data.x[chosen], setup.data.y[chosen]


def few_samples(count: int) -> Change:
    """Return the fault of too few samples, which are learned by heart."""

    def change(setup: Setup) -> None:
        setup.data.x, setup.data.y = setup.data.x[:count], setup.data.y[:count]
        setup.batch_size = min(setup.batch_size, count // 2)
        setup.steps = 400

    return change


def repeated(setup: Setup) -> None:
    """Train on a table in which 100 samples stand 40 times each."""
    setup.data.x, setup.data.y = (
        value[:100].repeat(40, *[1] * (value.dim() - 1)) for value in (setup.data.x, setup.data.y)
    )
    setup.steps = 400


def first_batch(data: Data, batch_size: int, draw: torch.Generator) -> Iterator[Tensor]:
    """Yield the first batch again and again."""
    while True:
        yield torch.arange(batch_size)


def same_batch(setup: Setup) -> None:
    """Make the iterator over the batches inside of the loop, so that every step takes the first one."""
    setup.order = first_batch
    setup.steps = 400


def tiny(setup: Setup) -> None:
    """Train a model with one or two units in every layer."""
    if setup.architecture == "cnn":
        replace(setup, widths=(1, 1), activation=nn.GELU)
        model: Any = setup.model
        model.fc1, model.head = nn.Linear(49, 2), nn.Linear(2, 10)
    else:
        replace(setup, width=1 if setup.architecture == "regression" else 2, activation=nn.GELU)


def drowned_in_dropout(setup: Setup) -> None:
    """Drop nine of ten values after every activation."""
    model = setup.model
    for name, module in list(model.named_children()):
        if name.startswith("act"):
            setattr(model, name, nn.Sequential(module, nn.Dropout(0.9)))


def drowned_in_noise(setup: Setup) -> None:
    """Augment with noise that is far larger than the inputs."""
    draw = torch.Generator().manual_seed(setup.seed)
    setup.inputs = lambda step, x: x + 2 * torch.randn(x.shape, generator=draw)


def bottleneck(setup: Setup) -> None:
    """Make one layer so narrow that a number or two have to say it all."""
    model: Any = setup.model
    setup.again()
    if setup.architecture == "cnn":
        model.fc1, model.act4, model.head = nn.Linear(784, 2), nn.GELU(), nn.Linear(2, 10)
    else:
        width = 1 if setup.architecture == "regression" else 2
        model.fc1, model.act1 = nn.Linear(model.fc1.in_features, width), nn.GELU()
        model.fc2 = nn.Linear(width, model.fc2.out_features)


def one_sample(setup: Setup) -> int:
    """Return the place of a sample drawn at random, not from the seed of the batches."""
    draw = torch.Generator().manual_seed(1000 + setup.seed)
    return int(torch.randint(len(setup.data.x), (), generator=draw))


def nan_pixel(setup: Setup) -> Injected:
    """Put NaN into one sample."""
    place = one_sample(setup)
    x = setup.data.x.clone()
    x[place].view(-1)[3] = float("nan")
    setup.data.x = x
    at = step_of(setup, place)
    return Injected((layers(setup.model)[0][0],), at)


def step_of(setup: Setup, place: int) -> int:
    """Return the first step whose batch has a sample."""
    batches = setup.order(setup.data, setup.batch_size, torch.Generator().manual_seed(setup.seed))
    for step in range(setup.steps):
        if (next(batches) == place).any():
            return step
    return setup.steps


class Standardised(nn.Module):
    """Divides every sample by its own standard deviation, which may be 0."""

    def forward(self, x: Tensor) -> Tensor:
        """Return samples of standard deviation 1."""
        flat = x.flatten(1)
        return ((flat - flat.mean(1, keepdim=True)) / flat.std(1, keepdim=True)).view_as(x)


def constant_sample(setup: Setup) -> Injected:
    """Divide each sample by its standard deviation, one of them by 0."""
    place = one_sample(setup)
    x = setup.data.x.clone()
    x[place] = x[place].view(-1)[0]
    setup.data.x = x
    setup.model = nn.Sequential(OrderedDict(standardised=Standardised(), net=setup.model))
    return Injected(("standardised",), step_of(setup, place))


class Logarithm(nn.Module):
    """Takes the logarithm, with nothing added that would keep it from 0."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the logarithms."""
        return x.log()


def logarithm(setup: Setup) -> Injected:
    """Take the logarithm of activations, some of which are 0."""
    _, activation = after_the_middle(setup, logarithm=Logarithm())
    return Injected((activation,))
