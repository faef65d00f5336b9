"""The trainings that the pages on instruments show: small, real, some healthy and some with a known fault.

`TRAININGS` names them; `train` writes the run file of one. Data, models and most of the faults are those of the
fault benchmark, ``benchmarks/faults``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.faults import models, of_data, of_signals, of_steps
from benchmarks.faults.training import EVALUATE, STEPS, Setup, evaluate
from cockpit import Cockpit, CockpitWarning, configuration, quantities
from cockpit.doctor import diagnose
from cockpit.quantities import Quantity
from cockpit.schedules import linear

Change = Callable[[Setup], object]

EVERY = 2
"""Steps between two that are tracked, unless told otherwise below."""

OFTEN = ("Alpha", "Distance", "Loss", "NonFinite", "Time", "UpdateSize")
"""Quantities that are tracked at every step."""

RARE = {
    "HessianSpectrum": 10,
    "KroneckerSpectrum": 4,
    "GradHist2d": 10,
    "PreconditionedSharpness": 4,
}
"""Steps between two values of quantities that take long."""

SETTINGS: dict[str, dict[str, Any]] = {
    "GradHist2d": {"keep_individual": True, "range": ((-1.0, 1.0), (-0.5, 0.5))},
    "PreconditionedSharpness": {"tol": 1e-2},
}


@dataclass(frozen=True)
class Training:
    """A training, and how it differs from a healthy one.

    Args:
        words: What a picture says of it.
        change: What is wrong with it.
        architecture: What is trained, of those of the fault benchmark.
        optimizer: ``"sgd"``, ``"momentum"`` or ``"adamw"``.
        rate: The learning rate.
    """

    words: str
    change: Change = lambda setup: None
    architecture: str = "mlp"
    optimizer: str = "sgd"
    rate: float = 0.1


def kinds() -> dict[str, type[Quantity]]:
    """Return all public quantities by name."""
    found = {name: getattr(quantities, name) for name in quantities.__all__}
    return {
        name: kind
        for name, kind in found.items()
        if isinstance(kind, type) and issubclass(kind, Quantity) and kind is not Quantity
    }


def made(name: str) -> Quantity:
    """Return a quantity with a schedule that suits what it costs."""
    every = 1 if name in OFTEN else RARE.get(name, EVERY)
    return kinds()[name](track_schedule=linear(every), **SETTINGS.get(name, {}))


def train(path: Path, training: Training, tracked: Iterable[Quantity]) -> None:
    """Train, and track quantities into a run file.

    Args:
        path: The run file.
        training: What is trained, and how.
        tracked: The quantities.
    """
    with warnings.catch_warnings():
        # A fault makes a quantity impossible to compute now and then: that is in the run file.
        warnings.simplefilter("ignore", CockpitWarning)
        _train(path, training, list(tracked))


def diagnosed(path: Path, training: Training) -> dict[str, list[str]]:
    """Train once more, with what the doctor reads, and return the codes of what it finds.

    Args:
        path: The run file; one that is there is read, without training.
        training: What is trained, and how.

    Returns:
        Codes of the ``"findings"``, and of the ``"consequences"`` that these explain.
    """
    if not path.exists():
        train(path, training, configuration("health", linear(10)))
    diagnosis = diagnose(path)
    return {
        "findings": [one.code for one in diagnosis.findings],
        "consequences": [one.finding.code for one in diagnosis.consequences],
    }


def _train(path: Path, training: Training, chosen: list[Quantity]) -> None:
    setup = Setup(training.architecture, training.optimizer, training.rate, seed=0)
    training.change(setup)
    optimizers = setup.optimizers(setup)
    rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    batches = setup.order(setup.data, setup.batch_size, torch.Generator().manual_seed(0))
    with (
        Cockpit(setup.model, chosen, optimizer=optimizers, log=path, seed=0) as watch,
        backend(setup),
    ):
        right = seen = 0
        for step in range(setup.steps):
            setup.prepare(setup.model, step)
            places = next(batches)
            x = setup.inputs(step, setup.data.x[places])
            y = setup.targets(step, setup.data.y[places])
            for optimizer, of_groups in zip(optimizers, rates, strict=True):
                for group, rate in zip(optimizer.param_groups, of_groups, strict=True):
                    group["lr"] = rate * setup.schedule(step)
            if setup.zeroes(step):
                setup.model.zero_grad()
            outputs = setup.model(x)
            losses = setup.losses(outputs, y)  # [N]
            loss = losses.mean()

            def closure(samples: slice = slice(None), x: Tensor = x, y: Tensor = y) -> Tensor:
                return setup.losses(setup.model(x[samples]), y[samples]).mean()

            with watch(step, loss=loss, individual_losses=losses, closure=closure):
                loss.backward()
            if setup.updates(step):
                for optimizer in optimizers:
                    optimizer.step()
            rate = optimizers[0].param_groups[0]["lr"]
            watch.log(step, learning_rate=rate, batch_size=len(x))
            right += int((outputs.detach().argmax(-1) == y).sum())
            seen += y.numel()
            if (step + 1) % EVALUATE == 0:
                watch.log(step, **evaluate(setup), train_accuracy=right / seen)
                right = seen = 0


def backend(setup: Setup) -> AbstractContextManager[Any]:
    """Return what the attention runs in: its fast form has no second derivative."""
    return sdpa_kernel(SDPBackend.MATH) if setup.architecture == "transformer" else nullcontext()


# -- what is wrong that the fault benchmark does not have as it is shown here ------------------------


def warmed_up(setup: Setup) -> None:
    """Warm the learning rate up within 20 steps, and let it fall to 0 along a cosine."""
    setup.schedule = lambda step: (
        min(1.0, (step + 1) / 20) * (1 + math.cos(math.pi * step / STEPS)) / 2
    )


def divided(setup: Setup) -> None:
    """Divide the learning rate by 10 every 40 steps."""
    setup.schedule = lambda step: 0.1 ** (step // 40)


def rising(setup: Setup, factor: float) -> None:
    """Raise the learning rate, from its value to so many times that."""
    setup.schedule = lambda step: factor ** (step / STEPS)


def few(setup: Setup) -> None:
    """Train on 64 images."""
    of_data.few_samples(64)(setup)
    setup.steps = STEPS


def some_larger(setup: Setup) -> None:
    """Make every fiftieth image ten times as large."""
    setup.data.x = setup.data.x.clone()
    setup.data.x[::50] *= 10


def deep(setup: Setup, initialise: Callable[[Tensor], object] = lambda weight: None) -> None:
    """Train an MLP of eight hidden layers; `initialise` takes the weights that start as torch has them."""
    for name in of_signals.replace(setup, hidden=8):
        initialise(models.part(setup.model, name).weight)


def tanh(setup: Setup) -> None:
    """Train an MLP with tanh."""
    of_signals.replace(setup, activation=nn.Tanh)


def tanh_of_bytes(setup: Setup) -> None:
    """Train an MLP with tanh on pixels from 0 to 255."""
    tanh(setup)
    of_data.bytes_(setup)


def looks_back(setup: Setup) -> None:
    """Look at all images that were seen so far before every step."""
    setup.batch_size = 16

    @torch.no_grad()
    def prepare(model: nn.Module, step: int) -> None:
        model(setup.data.x[: 16 * step])

    setup.prepare = prepare


def stale(setup: Setup) -> None:
    """Train a language model on three batches whose targets are all the same character."""
    of_steps.bad_batch(setup)
    setup.betas = 0.9, 0.999


TRAININGS: dict[str, Training] = {
    "mlp": Training("MLP, SGD with learning rate 0.1"),
    "slow": Training("MLP, SGD with learning rate 0.001", rate=0.001),
    "fast": Training("MLP, SGD with learning rate 0.8", rate=0.8),
    "rising": Training("MLP, learning rate rises from 0.1 to 0.6", partial(rising, factor=6)),
    "cosine": Training("MLP, learning rate warmed up, then falls", warmed_up),
    "divided": Training("MLP, learning rate divided by 10 every 40 steps", divided),
    "forgotten": Training("MLP, the optimizer was not given fc2", of_steps.middle_not_listed),
    "bfloat16": Training("MLP, parameters in bfloat16, learning rate 0.01", of_steps.bfloat16),
    "decay": Training("MLP, weight decay of 0.3", of_steps.decay_strong),
    "not-zeroed": Training("MLP, gradients are never zeroed", of_steps.never_zeroed),
    "sigmoids": Training("MLP, eight hidden layers with sigmoids", of_signals.deep_sigmoids),
    "batch-4": Training("MLP, batches of 4", of_steps.batch_of(4)),
    "batch-1000": Training("MLP, batches of 1000", of_steps.batch_of(1000)),
    "shuffled": Training("MLP, labels shuffled", of_data.shuffled_in_the_batch),
    "bytes": Training("MLP, pixels from 0 to 255, learning rate 0.001", of_data.bytes_, rate=0.001),
    "some-larger": Training("MLP, every fiftieth image 10 times as large", some_larger),
    "constant": Training("MLP, all weights of fc2, fc3 and head begin alike", of_signals.constant),
    "few": Training("MLP, 64 training images in batches of 32", few),
    "dormant": Training("MLP, four of five units of fc2 begin tiny", of_signals.dormant),
    "constant-image": Training(
        "MLP, one image divided by its deviation of 0", of_data.constant_sample
    ),
    "tanh": Training("MLP with tanh, SGD with learning rate 0.1", tanh),
    "tanh-bytes": Training("MLP with tanh, pixels from 0 to 255", tanh_of_bytes),
    "deep": Training(
        "MLP, eight hidden layers, Kaiming's initialisation",
        partial(deep, initialise=partial(nn.init.kaiming_normal_, nonlinearity="relu")),
    ),
    "deep-default": Training("MLP, eight hidden layers, PyTorch's initialisation", deep),
    "adam": Training(
        "MLP, batches of 1000, AdamW with learning rate 0.001",
        of_steps.batch_of(1000),
        optimizer="adamw",
        rate=0.001,
    ),
    "adam-fast": Training(
        "MLP, batches of 1000, AdamW with learning rate 0.1",
        of_steps.batch_of(1000),
        optimizer="adamw",
        rate=0.1,
    ),
    "batch-16": Training("MLP, batches of 16", of_steps.batch_of(16)),
    "batch-32": Training("MLP, batches of 32", of_steps.batch_of(32)),
    "looks-back": Training("MLP, batches of 16, looks at all past images at each step", looks_back),
    "text": Training(
        "transformer on text, AdamW", architecture="transformer", optimizer="adamw", rate=0.003
    ),
    "text-stale": Training(
        "transformer, three broken batches from step 133",
        stale,
        architecture="transformer",
        optimizer="adamw",
        rate=0.003,
    ),
    "text-attention": Training(
        "transformer, 30 times the rate for queries and keys",
        partial(of_steps.attention_rates, factor=30.0),
        architecture="transformer",
        optimizer="adamw",
        rate=0.003,
    ),
}
