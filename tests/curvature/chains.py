"""Small float64 chains of layers, and what dense matrices of them are made of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

N, V = 3, 2

jacobian = partial(torch.autograd.functional.jacobian, vectorize=True)
hessian = partial(torch.autograd.functional.hessian, vectorize=True)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.Sigmoid(), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, 2, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(3, 2, 2, stride=2, dilation=1),
        nn.Sequential(nn.ELU(), nn.Flatten()),
        nn.Linear(2, 3),
    )


def pooled() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(1, 2, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(4, 3)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (4,)),
    "convolutions": (convolutional, (2, 3, 3)),
    "maximum pooling": (pooled, (1, 6)),
}


def made(name: str, n: int = N) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    return make().double(), torch.randn(n, *shape, dtype=torch.float64), torch.randint(3, (n,))


def mean_squared_error(z: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(z, F.one_hot(y, 3).to(z))


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": nn.CrossEntropyLoss(),
    "cross-entropy, sum": nn.CrossEntropyLoss(reduction="sum"),
    "squared error": mean_squared_error,
}


def flat(model: nn.Module) -> list[nn.Module]:
    """The layers of nested nn.Sequentials."""
    if isinstance(model, nn.Sequential):
        return [layer for child in model for layer in flat(child)]
    return [model]


def states(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The input of every layer, and the outputs."""
    values = [x]
    for layer in flat(model):
        values.append(layer(values[-1]).detach())
    return values


def normalised() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()
    return model, torch.randn(N, 4).double(), torch.randint(3, (N,))
