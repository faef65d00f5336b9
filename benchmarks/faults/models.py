"""The five architectures, small enough that a training takes a second or two."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.faults.data import CONTEXT

Activation = Callable[[], nn.Module]
WIDTH, HEADS, DROPOUT = 64, 4, 0.1


def mlp(
    inputs: int = 784,
    outputs: int = 10,
    *,
    hidden: int = 3,
    width: int = 64,
    activation: Activation = nn.ReLU,
) -> nn.Sequential:
    """Return linear layers ``fc1``, ``fc2``, ... with activations ``act1``, ..., and the last one, ``head``."""
    parts: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number in range(1, hidden + 1):
        parts[f"fc{number}"] = nn.Linear(inputs if number == 1 else width, width)
        parts[f"act{number}"] = activation()
    parts["head"] = nn.Linear(width, outputs)
    return nn.Sequential(parts)


def regression(**options: Any) -> nn.Sequential:
    """Return the `mlp` from ten numbers to one."""
    return mlp(10, 1, **options)


def cnn(
    *, activation: Activation = nn.ReLU, more: int = 0, widths: tuple[int, int] = (8, 16)
) -> nn.Sequential:
    """Return three convolutions and two linear layers, ``conv1`` ... ``conv3``, ``fc1`` and ``head``.

    Args:
        activation: Makes the activations, ``act1`` ... ``act4``.
        more: How many convolutions there are beyond three.
        widths: Channels of the first convolution, and of the others.
    """
    first, others = widths
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(1, first, 5, stride=2, padding=2),
        act1=activation(),
        conv2=nn.Conv2d(first, others, 3, padding=1),
        act2=activation(),
        pool=nn.MaxPool2d(2),
    )
    last = 3 + more
    for number in range(3, last + 1):
        parts[f"conv{number}"] = nn.Conv2d(others, others, 3, padding=1)
        parts[f"act{number}"] = activation()
    parts["flatten"] = nn.Flatten()
    parts["fc1"] = nn.Linear(others * 7 * 7, 64)
    parts[f"act{last + 1}"] = activation()
    parts["head"] = nn.Linear(64, 10)
    return nn.Sequential(parts)


class Residual(nn.Module):
    """Two convolutions with norms, beside a shortcut."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1)
        self.bn1 = norm(outputs)
        self.act1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.bn2 = norm(outputs)
        self.act2 = nn.ReLU()
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the result, of as many channels as the second convolution has."""
        h = self.act1(self.bn1(self.conv1(x)))
        return self.act2(self.bn2(self.conv2(h)) + self.shortcut(x))


class ResNet(nn.Module):
    """A small ResNet with batch normalisation, and dropout before the last layer.

    Args:
        norm: Makes the normalisation for so many channels.
        blocks: How many residual blocks there are; the second and the third halve the image.
    """

    def __init__(
        self, *, norm: Callable[[int], nn.Module] = nn.BatchNorm2d, blocks: int = 3
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.bn1 = norm(8)
        self.act1 = nn.ReLU()
        widths = [8, 8, 16, *[32] * (blocks - 2)]
        self.blocks = nn.Sequential(
            *(
                Residual(widths[k], widths[k + 1], 2 if k in (1, 2) else 1, norm)
                for k in range(blocks)
            )
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.dropout = nn.Dropout(DROPOUT)
        self.head = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores, `[N, 10]`."""
        h = self.blocks(self.act1(self.bn1(self.conv1(x))))
        return self.head(self.dropout(self.flatten(self.pool(h))))


class Block(nn.Module):
    """Causal attention and a two-layer network, each after its norm and beside a shortcut."""

    def __init__(self, activation: Activation, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norm1 = norm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm2 = norm(WIDTH)
        self.fc1 = nn.Linear(WIDTH, 2 * WIDTH)
        self.act = activation()
        self.fc2 = nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the result, `[N, T, WIDTH]`."""
        h = self.norm1(x)
        attended, _ = self.attention(h, h, h, attn_mask=mask, is_causal=True, need_weights=False)
        x = x + self.dropout(attended)
        return x + self.dropout(self.fc2(self.act(self.fc1(self.norm2(x)))))


class Transformer(nn.Module):
    """A language model of characters.

    Args:
        vocabulary: Number of characters.
        layers: Number of blocks.
        activation: Makes the activations.
        norm: Makes the normalisation for a width.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        layers: int = 2,
        activation: Activation = nn.GELU,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(activation, norm) for _ in range(layers))
        self.norm = norm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary)
        mask = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the next characters, `[N, T, vocabulary]`."""
        places = torch.arange(x.shape[1], device=x.device).expand_as(x)
        h = self.tokens(x) + self.positions(places)
        for block in self.blocks:
            h = block(h, self.mask)
        return self.head(self.norm(h))


def layers(model: nn.Module) -> list[tuple[str, Any]]:
    """Return the linear layers and convolutions on the main path, but the last, with their names."""
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d) and not name.endswith(("out_proj", "shortcut"))
    ]
    return found[:-1]


def part(model: nn.Module, name: str) -> Any:
    """Return a module of a model by its name."""
    return model.get_submodule(name)


def after(model: nn.Module, name: str, kinds: type | tuple[type, ...]) -> str:
    """Return the name of the first module of some kinds that comes after a layer.

    Raises:
        LookupError: if there is none.
    """
    names = [known for known, _ in model.named_modules()]
    for known in names[names.index(name) + 1 :]:
        if isinstance(model.get_submodule(known), kinds):
            return known
    raise LookupError(f"No {kinds} comes after {name}.")
