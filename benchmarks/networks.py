"""The networks that are measured, and the loop that trains them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit import Cockpit
from cockpit.quantities import Quantity

BATCH_SIZE = 128
CONTEXT = 128
"""Number of characters that the language model sees."""
CHARACTERS = 256


@dataclass
class Problem:
    """A network and a batch for it.

    Args:
        model: The network.
        inputs: The batch, `[N, ...]`.
        targets: Classes, `[N]`, or `[N, T]` where each position has one.
        outputs: Runs the network on inputs and returns scores, `[N, C]` or `[N, C, T]`.
    """

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    outputs: Callable[[Tensor], Tensor]

    def losses(self, samples: slice = slice(None)) -> Tensor:
        """Run the network on samples of the batch and return their losses, `[N]`."""
        return self.losses_of(self.outputs(self.inputs[samples]), samples)

    def losses_of(self, outputs: Tensor, samples: slice = slice(None)) -> Tensor:
        """Return the cross-entropy of outputs, its mean over the positions of each sample, `[N]`."""
        each = F.cross_entropy(outputs, self.targets[samples], reduction="none")
        return each.flatten(1).mean(1) if each.ndim > 1 else each


Make = Callable[[int], Problem]
"""Makes a network and a batch of so many samples for it."""


def _classified(model: nn.Module, x: Tensor, classes: int = 10) -> Problem:
    """Return a network that tells classes apart, and its inputs with random labels."""
    return Problem(model, x, torch.randint(classes, (len(x),)), model)


def dense(batch_size: int, widths: Iterable[int]) -> Problem:
    """Return a network of linear layers with ReLU between them, and a batch."""
    widths = list(widths)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return _classified(nn.Sequential(*layers[:-1]), torch.randn(batch_size, widths[0]), widths[-1])


def deep(batch_size: int, layers: int, width: int) -> Problem:
    """Return a network of many linear layers through which the signals come, and a batch.

    With PyTorch's initialisation the gradients of 64 layers are some 1e-25, and squares of them subnormal
    numbers, for which processors take ten times as long.
    """
    problem = dense(batch_size, (*[width] * layers, 10))
    for module in problem.model.modules():
        if isinstance(module, nn.Linear):
            nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")
    return problem


def mlp(batch_size: int) -> Problem:
    """Return the 784-1000-500-100-10 network and a batch."""
    return dense(batch_size, (784, 1000, 500, 100, 10))


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


def gpt2(
    batch_size: int,
    *,
    layers: int = 4,
    width: int = 128,
    heads: int = 4,
    context: int = CONTEXT,
    vocabulary: int = CHARACTERS,
) -> Problem:
    """Return Hugging Face's GPT-2 as it is, of a size of its own, and a batch of random text.

    Without more arguments it is a language model of characters; with 12 layers and heads, width 768
    and a vocabulary of 50,257 it has the shape of GPT-2 small.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=context,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    text = torch.randint(vocabulary, (batch_size, context + 1))
    return Problem(
        model,
        text[:, :-1],
        text[:, 1:],
        lambda tokens: model(tokens, use_cache=False).logits.mT,  # [N, V, T]
    )


@dataclass
class Training:
    """A training of random data, step by step, with or without a cockpit.

    The cockpit is strict: a quantity that fails, which would make the step cheaper, ends the training.

    Args:
        make: Makes the network and the batch.
        quantities: What is tracked; None for a training without a cockpit.
        batch_size: Number of samples.
        backpack: Whether the loss is that of a loss module, which the cockpit is given for
            quantities that need BackPACK.
    """

    make: Make
    quantities: Iterable[Quantity] | None = None
    batch_size: int = BATCH_SIZE
    backpack: bool = False
    step: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Build everything from one seed."""
        torch.manual_seed(0)
        self.problem = self.make(self.batch_size)
        self.model = self.problem.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.loss_function = nn.CrossEntropyLoss() if self.backpack else None
        self.watch = None
        if self.quantities is not None:
            self.watch = Cockpit(
                self.model,
                self.quantities,
                optimizer=self.optimizer,
                loss_function=self.loss_function,
                strict=True,
            )

    def __call__(self) -> None:
        """Train one step."""
        self.optimizer.zero_grad()
        loss, losses = self._loss()
        if self.watch is None:
            loss.backward()
        else:
            with self.watch(self.step, loss=loss, individual_losses=losses, closure=self._loss_of):
                loss.backward()
        self.optimizer.step()
        self.step += 1

    def _loss(self) -> tuple[Tensor, Tensor]:
        """Return the loss and those of the samples."""
        outputs = self.problem.outputs(self.problem.inputs)
        losses = self.problem.losses_of(outputs)
        if self.loss_function is None:
            return losses.mean(), losses
        return self.loss_function(outputs, self.problem.targets), losses

    def _loss_of(self, samples: slice = slice(None)) -> Tensor:
        """Compute the loss anew, for curvature where the graph has no second derivative."""
        return self.problem.losses(samples).mean()

    def close(self) -> None:
        """Let go of the run."""
        if self.watch is not None:
            self.watch.close()
