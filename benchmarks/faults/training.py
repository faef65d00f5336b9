"""The training script, and what a fault may change of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.faults import models
from benchmarks.faults.data import Data, function, images, text

STEPS = 200
EVALUATE = 25
"""Steps between two looks at the validation data."""

TASKS: dict[str, Callable[[], Data]] = {
    "mlp": images,
    "cnn": images,
    "resnet": images,
    "transformer": text,
    "regression": function,
}
ARCHITECTURES = tuple(TASKS)
BATCH = {"mlp": 64, "cnn": 32, "resnet": 32, "transformer": 8, "regression": 64}
OPTIMIZERS = ("sgd", "momentum", "adamw")


def build(architecture: str, data: Data) -> nn.Module:
    """Return the healthy model for its data."""
    if architecture == "transformer":
        return models.Transformer(data.classes)
    makers: dict[str, Callable[[], nn.Module]] = {
        "mlp": models.mlp,
        "cnn": models.cnn,
        "resnet": models.ResNet,
        "regression": models.regression,
    }
    return makers[architecture]()


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the losses of the samples, `[N]`; of text the mean over its characters."""
    if y.dim() == 1:
        return F.cross_entropy(outputs, y, reduction="none")
    return F.cross_entropy(outputs.mT, y, reduction="none").mean(1)


def squares(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the losses of the samples, `[N]`."""
    return F.mse_loss(outputs, y, reduction="none").mean(1)


def shuffled(data: Data, batch_size: int, draw: torch.Generator) -> Iterator[Tensor]:
    """Yield the places of the samples of one batch after the other; every epoch has another order."""
    while True:
        order = torch.randperm(len(data.x), generator=draw)
        for start in range(0, len(order) - batch_size + 1, batch_size):
            yield order[start : start + batch_size]


def always(step: int) -> bool:
    """Return True."""
    return True


def unchanged(step: int, x: Tensor) -> Tensor:
    """Return the inputs."""
    return x


def same(step: int, y: Tensor) -> Tensor:
    """Return the targets."""
    return y


@dataclass
class Setup:
    """A training that has not begun: healthy as it is made, and whatever a fault makes of it.

    Args:
        architecture: One of `ARCHITECTURES`.
        optimizer: One of `OPTIMIZERS`.
        rate: The learning rate.
        seed: Of the weights and of the order of the samples.
        edge: The lowest learning rate that is found to be too high.
        steps: How many steps there are.
    """

    architecture: str
    optimizer: str
    rate: float
    seed: int
    edge: float = math.inf
    steps: int = STEPS
    data: Data = field(init=False)
    model: nn.Module = field(init=False)
    losses: Callable[[Tensor, Tensor], Tensor] = field(init=False)
    """From outputs and targets to the losses of the samples, `[N]`."""
    batch_size: int = field(init=False)
    reduce: Callable[[Tensor], Tensor] = torch.mean
    """From the losses of the samples to the loss."""
    order: Callable[[Data, int, torch.Generator], Iterator[Tensor]] = shuffled
    inputs: Callable[[int, Tensor], Tensor] = unchanged
    """What the model gets at a step."""
    targets: Callable[[int, Tensor], Tensor] = same
    """What the loss gets at a step."""
    weight_decay: float = 0.0
    decoupled: bool = True
    """Whether AdamW is what ``"adamw"`` means."""
    betas: tuple[float, float] = (0.9, 0.999)
    listed: Callable[[nn.Module], list[nn.Parameter]] = field(init=False)
    """The parameters that the optimizer is given."""
    own_rates: Callable[[str], float] = lambda name: 1.0
    """Of a parameter, by which its learning rate is multiplied."""
    schedule: Callable[[int], float] = lambda step: 1.0
    """By which the learning rate is multiplied at a step."""
    optimizers: Callable[[Setup], list[torch.optim.Optimizer]] = field(init=False)
    prepare: Callable[[nn.Module, int], object] = lambda model, step: model.train()
    """Called before every step."""
    zeroes: Callable[[int], bool] = always
    """Whether gradients are zeroed before a step."""
    after_backward: Callable[[nn.Module], object] = lambda model: None
    updates: Callable[[int], bool] = always
    """Whether the optimizer makes its step."""
    clip: float | None = None

    def __post_init__(self) -> None:
        """Make the healthy data, model and loss."""
        torch.manual_seed(self.seed)
        self.data = TASKS[self.architecture]()
        self.model = build(self.architecture, self.data)
        self.losses = cross_entropy if self.data.classes else squares
        self.batch_size = BATCH[self.architecture]
        self.listed = lambda model: list(model.parameters())
        self.optimizers = lambda setup: [make_optimizer(setup, setup.listed(setup.model))]

    def again(self) -> None:
        """Draw the random numbers of a model that takes the place of the first one from the same seed."""
        torch.manual_seed(self.seed)


def make_optimizer(setup: Setup, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer of a training."""
    names = {parameter: name for name, parameter in setup.model.named_parameters()}
    by_rate: dict[float, list[nn.Parameter]] = {}
    for parameter in parameters:
        by_rate.setdefault(setup.own_rates(names.get(parameter, "")), []).append(parameter)
    groups = [{"params": of_rate, "lr": setup.rate * factor} for factor, of_rate in by_rate.items()]
    if setup.optimizer == "adamw":
        kind = torch.optim.AdamW if setup.decoupled else torch.optim.Adam
        return kind(groups, lr=setup.rate, betas=setup.betas, weight_decay=setup.weight_decay)
    momentum = 0.9 if setup.optimizer == "momentum" else 0.0
    return torch.optim.SGD(
        groups, lr=setup.rate, momentum=momentum, weight_decay=setup.weight_decay
    )


Watch = Callable[[Setup, list[torch.optim.Optimizer]], Any]
"""Makes a cockpit, or what stands in for one."""


def train(setup: Setup, watch: Watch) -> Curves:
    """Train, and watch.

    Args:
        setup: The training.
        watch: Makes the cockpit, from the setup and its optimizers.

    Returns:
        The loss of every step, and what was seen of the validation data.
    """
    model, data = setup.model, setup.data
    optimizers = setup.optimizers(setup)
    rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    batches = setup.order(data, setup.batch_size, torch.Generator().manual_seed(setup.seed))
    curves = Curves()
    right = seen = 0
    with watch(setup, optimizers) as cockpit:
        for step in range(setup.steps):
            setup.prepare(model, step)
            places = next(batches)
            x, y = setup.inputs(step, data.x[places]), setup.targets(step, data.y[places])
            for optimizer, of_groups in zip(optimizers, rates, strict=True):
                for group, rate in zip(optimizer.param_groups, of_groups, strict=True):
                    group["lr"] = rate * setup.schedule(step)

            if setup.zeroes(step):
                model.zero_grad()
            outputs = model(x)
            losses = setup.losses(outputs, y)
            loss = setup.reduce(losses)
            info = {"loss": loss, "sample_ids": places}
            if losses.shape == (len(x),):
                info["individual_losses"] = losses
            with cockpit(step, info=info):
                loss.backward()
            setup.after_backward(model)
            if setup.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), setup.clip)
            if setup.updates(step):
                for optimizer in optimizers:
                    optimizer.step()

            curves.loss.append(float(loss.detach()))
            if data.classes:
                right += int((outputs.detach().argmax(-1) == y).sum())
                seen += y.numel()
            if (step + 1) % EVALUATE == 0:
                metrics = evaluate(setup)
                if seen:
                    metrics["train_accuracy"] = right / seen
                right = seen = 0
                cockpit.log(step, **metrics)
                curves.valid.append((step, metrics["valid_loss"], metrics.get("valid_accuracy")))
    return curves


@dataclass
class Curves:
    """What is seen of a training without a cockpit.

    Args:
        loss: Of every step.
        valid: Step, loss on the validation data, and share of them that is right, if there are classes.
    """

    loss: list[float] = field(default_factory=list)
    valid: list[tuple[int, float, float | None]] = field(default_factory=list)


@torch.no_grad()
def evaluate(setup: Setup) -> dict[str, float]:
    """Return loss and accuracy on the validation data; the model is in evaluation mode meanwhile."""
    model, data = setup.model, setup.data
    training = model.training
    model.eval()
    outputs = model(data.x_valid)
    model.train(training)
    losses = setup.losses(outputs, data.y_valid)
    metrics = {"valid_loss": float(losses.mean())}
    if data.classes:
        metrics["valid_accuracy"] = float((outputs.argmax(-1) == data.y_valid).float().mean())
    return metrics
