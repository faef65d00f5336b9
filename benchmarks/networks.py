"""The networks that are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit import Cockpit
from cockpit.quantities import Quantity


def mlp() -> tuple[nn.Module, Tensor]:
    """Return the 784-1000-500-100-10 network and a batch of 128."""
    widths = (784, 1000, 500, 100, 10)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1]), torch.randn(128, 784)


@dataclass
class Training:
    """A training of random data, step by step, with or without a cockpit."""

    make: Callable[[], tuple[nn.Module, Tensor]]
    quantities: Iterable[Quantity] | None = None
    step: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Build everything from one seed."""
        torch.manual_seed(0)
        self.model, self.x = self.make()
        self.y = torch.randint(10, (len(self.x),))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.watch = None
        if self.quantities is not None:
            self.watch = Cockpit(self.model, self.quantities, optimizer=self.optimizer)

    def __call__(self) -> None:
        """Train one step."""
        self.optimizer.zero_grad()
        losses = F.cross_entropy(self.model(self.x), self.y, reduction="none")
        loss = losses.mean()
        if self.watch is None:
            loss.backward()
        else:
            with self.watch(self.step, loss=loss, individual_losses=losses):
                loss.backward()
        self.optimizer.step()
        self.step += 1

    def close(self) -> None:
        """Let go of the run."""
        if self.watch is not None:
            self.watch.close()
