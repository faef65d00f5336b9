"""Small real trainings that the doctor looks at, with and without faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit import Cockpit, configuration
from cockpit.doctor import Diagnosis, diagnose

CLASSES = 4


class Encoder(nn.Module):
    """A small transformer on token ids, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.tokens(x)).mean(1))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, CLASSES)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(128, CLASSES),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "cnn": cnn, "transformer": Encoder}

OPTIMIZERS: dict[str, Callable[[Iterable[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=3e-3),
}


def batch(kind: str, size: int = 16) -> tuple[Tensor, Tensor]:
    """Return inputs and learnable targets."""
    y = torch.randint(CLASSES, (size,))
    if kind == "transformer":
        return torch.randint(4, (size, 5)) + 2 * y[:, None] % 7, y
    shape = (size, 8) if kind == "mlp" else (size, 1, 8, 8)
    centres = torch.linspace(-1, 1, CLASSES)[y].reshape(-1, *[1] * (len(shape) - 1))
    return torch.randn(shape) + centres, y


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """The losses of the samples, `[N]`."""
    return F.cross_entropy(outputs, y, reduction="none")


def train(
    path: Path,
    kind: str = "mlp",
    *,
    optimizer: str | Callable[[nn.Module], Any] = "sgd",
    change: Callable[[nn.Module], Any] = lambda model: None,
    inputs: Callable[[int, Tensor], Tensor] = lambda step, x: x,
    losses_of: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    zero: Callable[[int], bool] = lambda step: True,
    update: Callable[[int], bool] = lambda step: True,
    steps: int = 12,
    seed: int = 0,
    quantities: Any = None,
    **arguments: Any,
) -> Diagnosis:
    """Train, and return what the doctor says of the run file."""
    torch.manual_seed(seed)
    model = MODELS[kind]()
    model = change(model) or model
    make = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else None
    opt = make(model.parameters()) if make else optimizer(model)  # type: ignore[operator]
    dtype = next(model.parameters()).dtype
    tracked = configuration("health") if quantities is None else quantities
    with Cockpit(model, tracked, optimizer=opt, log=path, **arguments) as watch:
        for step in range(steps):
            x, y = batch(kind)
            x = inputs(step, x.to(dtype) if x.is_floating_point() else x)
            if zero(step):
                opt.zero_grad()
            losses = losses_of(model(x), y)
            loss = losses.mean()
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            if update(step):
                opt.step()
    return diagnose(path)


def codes(diagnosis: Diagnosis) -> list[str]:
    """Return the codes of the causes, the most probable first."""
    return [finding.code for finding in diagnosis.findings]
