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


@dataclass
class Problem:
    """A network and a batch for it.

    Args:
        model: The network.
        losses: Runs the network and returns the losses of the samples, `[N]`.
    """

    model: nn.Module
    losses: Callable[[], Tensor]


Make = Callable[[int], Problem]
"""Makes a network and a batch of so many samples for it."""

BATCH_SIZE = 128


def _classified(model: nn.Module, x: Tensor) -> Problem:
    """Return a network of ten classes, and its inputs with random labels."""
    y = torch.randint(10, (len(x),))
    return Problem(model, lambda: F.cross_entropy(model(x), y, reduction="none"))


def mlp(batch_size: int) -> Problem:
    """Return the 784-1000-500-100-10 network and a batch."""
    widths = (784, 1000, 500, 100, 10)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return _classified(nn.Sequential(*layers[:-1]), torch.randn(batch_size, 784))


def three_c_three_d(batch_size: int) -> Problem:
    """Return 3c3d, three convolutions and three dense layers for CIFAR-10, and a batch.

    It is one of the networks on which Schneider, Dangel & Hennig (2021), arXiv:2102.06604, measure
    the cost of Cockpit 1.0; it has 895,210 parameters.
    """
    model = nn.Sequential(
        *(nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(3, 2)),  # [N, 64, 13, 13]
        *(nn.Conv2d(64, 96, 3), nn.ReLU(), nn.MaxPool2d(3, 2)),  # [N, 96, 5, 5]
        *(nn.Conv2d(96, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)),
        nn.Flatten(),  # [N, 128 * 3 * 3]
        *(nn.Linear(1152, 512), nn.ReLU()),
        *(nn.Linear(512, 256), nn.ReLU()),
        nn.Linear(256, 10),
    )
    return _classified(model, torch.randn(batch_size, 3, 32, 32))


def tiny(batch_size: int) -> Problem:
    """Return a small convolutional network and a batch, for many steps in little time."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(4 * 6 * 6, 16), nn.ReLU(), nn.Linear(16, 10)),
    )
    return _classified(model, torch.randn(batch_size, 1, 8, 8))


def resnet18(batch_size: int) -> Problem:
    """Return torchvision's ResNet-18 as it is, with BatchNorm in training mode, and images of 64 x 64."""
    from torchvision.models import resnet18

    return _classified(resnet18(num_classes=10), torch.randn(batch_size, 3, 64, 64))


def gpt2(batch_size: int) -> Problem:
    """Return Hugging Face's GPT-2 with 4 layers of width 128 on 128 characters, and a batch of text."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=256,
        n_positions=CONTEXT,
        n_embd=128,
        n_layer=4,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    text = torch.randint(256, (batch_size, CONTEXT + 1))

    def losses() -> Tensor:
        logits = model(text[:, :-1]).logits  # [N, T, V]
        of_tokens = F.cross_entropy(logits.mT, text[:, 1:], reduction="none")  # [N, T]
        return of_tokens.mean(1)

    return Problem(model, losses)


CONTEXT = 128
"""Number of characters that the language model sees."""


@dataclass
class Training:
    """A training of random data, step by step, with or without a cockpit."""

    make: Make
    quantities: Iterable[Quantity] | None = None
    batch_size: int = BATCH_SIZE
    step: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Build everything from one seed."""
        torch.manual_seed(0)
        self.problem = self.make(self.batch_size)
        self.model = self.problem.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.watch = None
        if self.quantities is not None:
            self.watch = Cockpit(self.model, self.quantities, optimizer=self.optimizer)

    def __call__(self) -> None:
        """Train one step."""
        self.optimizer.zero_grad()
        losses = self.problem.losses()
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
