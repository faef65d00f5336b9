"""Small float64 networks with losses, and their dense Hessians and GGNs by brute force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Loss = Callable[[Tensor, Tensor], Tensor]


class Block(nn.Module):
    """A residual block, with its convolution used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 2, 3, padding=1)
        self.head = nn.Linear(8, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = x + torch.tanh(self.convolution(x))
        h = F.relu(h + self.convolution(h))
        return self.head(F.avg_pool2d(h, 2).flatten(1))


class Language(nn.Module):
    """A transformer on tokens, whose embedding is its last layer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(5, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        return self.head(self.norm(h))


@dataclass
class Case:
    model: nn.Module
    x: Tensor
    y: Tensor
    losses: Loss  # from outputs and targets to the losses of the samples

    def parameters(self) -> dict[str, nn.Parameter]:
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def outputs(self) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return self.model(self.x)

    def individual_losses(self) -> Tensor:
        return self.losses(self.outputs(), self.y)

    def hessian(self) -> Tensor:
        """Of the mean loss, [D, D], a row for each derivative of the gradient."""
        return rows_of(self.individual_losses().mean(), list(self.parameters().values()))

    def jacobian(self) -> Tensor:
        """Of all outputs, [N, K, D]."""
        parameters = list(self.parameters().values())
        outputs = self.outputs().flatten(1)
        rows = [flat_gradient(z, parameters) for z in outputs.flatten()]
        return torch.stack(rows).reshape(*outputs.shape, -1).detach()

    def loss_hessians(self) -> Tensor:
        """Of each sample's loss with respect to its outputs, [N, K, K]."""
        z = self.outputs().detach()
        blocks = []
        for n in range(len(z)):

            def loss(flat: Tensor, n: int = n) -> Tensor:
                with_n = z.clone()
                with_n[n] = flat.reshape(z[n].shape)
                return self.losses(with_n, self.y)[n]

            blocks.append(torch.autograd.functional.hessian(loss, z[n].flatten()))
        return torch.stack(blocks)

    def ggn(self) -> Tensor:
        """Of the mean loss, [D, D]."""
        J, H = self.jacobian(), self.loss_hessians()
        return torch.einsum("nkd,nkl,nle->de", J, H, J) / len(J)

    def by_parameter(self, values: Tensor) -> list[Tensor]:
        return list(values.split([p.numel() for p in self.parameters().values()]))


def flat_gradient(scalar: Tensor, parameters: list[Any], **options: Any) -> Tensor:
    grads = torch.autograd.grad(scalar, parameters, retain_graph=True, allow_unused=True, **options)
    return torch.cat(
        [
            torch.zeros_like(p).flatten() if g is None else g.flatten()
            for g, p in zip(grads, parameters, strict=True)
        ]
    )


def rows_of(scalar: Tensor, parameters: list[Any]) -> Tensor:
    gradient = flat_gradient(scalar, parameters, create_graph=True)
    rows = [
        flat_gradient(g, parameters) if g.requires_grad else torch.zeros_like(gradient)
        for g in gradient
    ]
    return torch.stack(rows).detach()


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z, y, reduction="none")


def squared_error(z: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(z, F.one_hot(y, 3).to(z), reduction="none").mean(1)


def mlp(losses: Loss = cross_entropy, frozen: bool = False) -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    model.double()
    model[2].requires_grad_(not frozen)
    return Case(model, torch.randn(6, 4).double(), torch.randint(3, (6,)), losses)


def residual() -> Case:
    torch.manual_seed(0)
    x = torch.randn(5, 2, 4, 4).double()
    return Case(Block().double(), x, torch.randint(3, (5,)), cross_entropy)


def language() -> Case:
    torch.manual_seed(0)
    x = torch.randint(5, (4, 3))

    def losses(z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z.transpose(1, 2), y, reduction="none").mean(1)

    return Case(Language().double(), x, torch.randint(5, (4, 3)), losses)


CASES: dict[str, Callable[[], Case]] = {
    "mlp": mlp,
    "mlp, squared error": lambda: mlp(squared_error),
    "mlp, partly frozen": lambda: mlp(frozen=True),
    "residual, shared and unused parts": residual,
    "language model with tied weights": language,
}
