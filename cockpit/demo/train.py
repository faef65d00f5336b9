"""The training of the demonstration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit.cockpit import Cockpit
from cockpit.demo.data import fashion_mnist
from cockpit.errors import NotARunFile
from cockpit.log import RunFile
from cockpit.presets import configuration
from cockpit.quantities import Time

EPOCHS, LEARNING_RATE, BATCH_SIZE = 8, 0.05, 64
EVALUATIONS_PER_EPOCH = 2


class SmallCNN(nn.Sequential):
    """Two convolutions and two linear layers, for images `[N, 1, 28, 28]` of ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, kernel_size=5, stride=2, padding=2)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(8, 16, kernel_size=3, padding=1)
        self.relu2 = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.flatten = nn.Flatten()
        self.fc1 = nn.Linear(16 * 7 * 7, 64)
        self.relu3 = nn.ReLU()
        self.fc2 = nn.Linear(64, 10)


class Progress(NamedTuple):
    """How far the training is.

    Args:
        done: Steps so far.
        total: Steps in all.
        loss: Loss of the last mini-batch.
        accuracy: Share of the test images that were classified rightly when last looked at; None
            before that.
    """

    done: int
    total: int
    loss: float
    accuracy: float | None


def train(
    path: str | os.PathLike[str],
    *,
    epochs: int = EPOCHS,
    lr: float = LEARNING_RATE,
    batch_size: int = BATCH_SIZE,
    preset: str = "economy",
    seed: int = 0,
    max_steps: int | None = None,
    on_step: Callable[[Progress], None] = lambda progress: None,
) -> float:
    """Train a `SmallCNN` on Fashion-MNIST with SGD and momentum, and watch every step.

    Args:
        path: The run file. One that an earlier demonstration left there is replaced.
        epochs: How often every image is seen.
        lr: The learning rate at the start; it falls to a tenth of that along a cosine.
        batch_size: Images per step.
        preset: The set of quantities to track; see `cockpit.configuration`.
        seed: Of the weights and the order of the images. The same one gives the same training.
        max_steps: Stop after so many steps.
        on_step: Called after each step.

    Returns:
        The share of the test images that are classified rightly in the end.
    """
    data = fashion_mnist()
    torch.manual_seed(seed)
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    per_epoch = max(1, len(data.x_train) // batch_size)
    total = min(epochs * per_epoch, max_steps or epochs * per_epoch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total, lr / 10)
    every = max(1, min(per_epoch, total) // EVALUATIONS_PER_EPOCH)
    accuracy, right, seen = None, 0, 0
    _remove_older(Path(path))
    quantities = [*configuration(preset), Time()]
    watch = Cockpit(model, quantities, optimizer=optimizer, log=path, seed=seed)
    with _one_thread(), watch:
        for step in range(total):
            if step % per_epoch == 0:
                order = torch.randperm(len(data.x_train))
            batch = order[step % per_epoch * batch_size :][:batch_size]
            x, y = data.x_train[batch], data.y_train[batch]

            optimizer.zero_grad()
            outputs = model(x)
            losses = F.cross_entropy(outputs, y, reduction="none")  # [N]
            loss = losses.mean()
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            optimizer.step()

            watch.log(step, learning_rate=float(schedule.get_last_lr()[0]))
            schedule.step()
            right, seen = right + _count_right(outputs, y), seen + len(y)
            if (step + 1) % every == 0 or step + 1 == total:
                test_loss, accuracy = _test(model, data.x_test, data.y_test)
                watch.log(
                    step,
                    epoch_count=(step + 1) / per_epoch,
                    train_accuracy=right / seen,  # of the mini-batches since the last evaluation
                    test_accuracy=accuracy,
                    test_loss=test_loss,
                )
                right, seen = 0, 0
            on_step(Progress(step + 1, total, loss.item(), accuracy))
    assert accuracy is not None
    return accuracy


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in one thread: fast for so small a network, whatever else the machine does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _count_right(outputs: Tensor, y: Tensor) -> int:
    return int((outputs.argmax(1) == y).sum())


@torch.no_grad()
def _test(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return loss and accuracy on the test images."""
    outputs = model(x)
    return F.cross_entropy(outputs, y).item(), _count_right(outputs, y) / len(y)


def _remove_older(path: Path) -> None:
    """Remove the run file of an earlier demonstration, and nothing else.

    Without this, they would pile up: a run file that is in the way is kept under another name.
    """
    with suppress(NotARunFile):
        with RunFile(path) as old:
            own = old.settings.get("model") == SmallCNN.__name__ and not old.is_live
        if own:
            for ending in ("", "-wal", "-shm"):
                Path(f"{path}{ending}").unlink(missing_ok=True)
