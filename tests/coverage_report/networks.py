"""Models with something special to each."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def cnn() -> nn.Module:
    """Two convolutions around a BatchNorm in training mode."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 3, 2, bias=False),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(27, 2),
    ).double()


class Blocks(nn.Module):
    """Blocks that are alike, between an embedding and a head that share a weight."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 4)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(4), "linear": nn.Linear(4, 4)})
            for _ in range(blocks)
        )
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, index: Tensor) -> Tensor:
        x = self.tokens(index)
        for layer in self.layers:
            x = x + layer["linear"](layer["norm"](x)).tanh()
        return self.head(x)


class Elsewhere(nn.Module):
    """A model with a parameter that is used behind its layer's back, too, and one only so."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.aside = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).tanh() @ self.inner.weight + self.aside.bias


class Twice(nn.Module):
    """A layer that is called twice, and one that is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(self.used(x).tanh())


class Folded(nn.Module):
    """A layer that gets [samples · time, features]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class Filter(nn.Module):
    """A filter whose weights are complex."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.ifft(torch.fft.fft(x) * self.weight).real


class Phase(nn.Module):
    """A filter and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.filter, self.linear = Filter(), nn.Linear(3, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.filter(x))


class WithFlat(nn.Module):
    """A linear layer whose weight says of itself what FSDP's flat parameters do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.linear.weight._is_flat_param = True

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)
