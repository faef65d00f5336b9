"""The three tasks: images of clothing, characters of a novel, and a function of ten numbers."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from cockpit.demo.data import fashion_mnist

CONTEXT = 64
"""Number of characters that the language model sees."""
IMAGES = 500
"""Validation images."""
WINDOWS = 4000, 160
"""Pieces of text for training and validation."""
POINTS = 2000, 500
"""Points of the function for training and validation."""


@dataclass
class Data:
    """Inputs and targets, for training and validation.

    Args:
        x: Inputs, `[N, ...]`.
        y: Targets: classes `[N]`, characters `[N, T]`, or numbers `[N, 1]`.
        x_valid: Inputs for validation.
        y_valid: Their targets.
        classes: Number of classes; 0 for numbers.
    """

    x: Tensor
    y: Tensor
    x_valid: Tensor
    y_valid: Tensor
    classes: int

    def each_input(self, change: Callable[[Tensor], Tensor]) -> None:
        """Change the inputs, also those for validation."""
        self.x, self.x_valid = change(self.x), change(self.x_valid)


@cache
def _images() -> tuple[Tensor, ...]:
    data = fashion_mnist()
    return data.x_train, data.y_train, data.x_test[:IMAGES], data.y_test[:IMAGES]


def images() -> Data:
    """Return Fashion-MNIST: images `[N, 1, 28, 28]` of mean 0 and standard deviation 1, and classes `[N]`."""
    x, y, x_valid, y_valid = _images()
    return Data(x, y, x_valid, y_valid, classes=10)


@cache
def _text() -> tuple[Tensor, int]:
    path = Path(__file__).parent / "data" / "moby_dick.txt.gz"
    text = gzip.decompress(path.read_bytes()).decode("utf-8")
    known = {character: place for place, character in enumerate(sorted(set(text)))}
    return torch.tensor([known[character] for character in text]), len(known)


def text() -> Data:
    """Return pieces of Moby-Dick: characters `[N, T]`, and for each the next one.

    Those for validation come from the last tenth of the text.
    """
    characters, vocabulary = _text()
    cut = len(characters) * 9 // 10
    draw = torch.Generator().manual_seed(0)
    parts: list[Tensor] = []
    for piece, count in zip((characters[:cut], characters[cut:]), WINDOWS, strict=True):
        starts = torch.randint(len(piece) - CONTEXT, (count, 1), generator=draw)
        windows = piece[starts + torch.arange(CONTEXT + 1)]  # [N, T + 1]
        parts += [windows[:, :-1].contiguous(), windows[:, 1:].contiguous()]
    x, y, x_valid, y_valid = parts
    return Data(x, y, x_valid, y_valid, classes=vocabulary)


def function() -> Data:
    r"""Return a synthetic regression: ten numbers, standardised, and a noisy function of five of them, `[N, 1]`.

    Source: Friedman (1991), "Multivariate Adaptive Regression Splines", the first of its functions,
    :math:`10 \sin(\pi x_1 x_2) + 20 (x_3 - 1/2)^2 + 10 x_4 + 5 x_5 + \varepsilon` with
    :math:`x \sim U(0, 1)^{10}` and :math:`\varepsilon \sim N(0, 1)`; the targets are standardised too.
    """
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(sum(POINTS), 10, generator=draw)
    y = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5).square()
    y = y + 10 * x[:, 3] + 5 * x[:, 4] + torch.randn(len(x), generator=draw)
    x, y = ((v - v.mean(0)) / v.std(0) for v in (x, y.unsqueeze(1)))
    return Data(x[: POINTS[0]], y[: POINTS[0]], x[POINTS[0] :], y[POINTS[0] :], classes=0)
