"""Hessians of losses with respect to outputs, against autograd's, in double precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit.curvature import (
    hessian_mat_prod,
    sqrt_hessian,
    sqrt_hessian_sampled,
    sum_hessian,
)
from cockpit.errors import Unsupported

V, N, C = 3, 4, 3
Loss = Callable[[Tensor, Tensor], Tensor]

# A loss, the shape of the outputs, and whether the targets are classes.
LOSSES: dict[str, tuple[Loss, tuple[int, ...], bool]] = {
    "cross-entropy": (nn.CrossEntropyLoss(), (N, C), True),
    "cross-entropy, sum": (nn.CrossEntropyLoss(reduction="sum"), (N, C), True),
    "cross-entropy, function": (F.cross_entropy, (N, C), True),
    "cross-entropy with positions": (nn.CrossEntropyLoss(), (N, C, 2), True),
    "cross-entropy with a grid": (nn.CrossEntropyLoss(reduction="sum"), (N, C, 2, 2), True),
    "cross-entropy of tokens": (
        lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten()),
        (N, 2, C),
        True,
    ),
    "cross-entropy, smoothed": (nn.CrossEntropyLoss(label_smoothing=0.1), (N, C), True),
    "squared error": (nn.MSELoss(), (N, C), False),
    "squared error, sum": (nn.MSELoss(reduction="sum"), (N, C), False),
    "squared error, function": (F.mse_loss, (N, C), False),
    "squared error of grids": (nn.MSELoss(), (N, 2, 2), False),
    "squared error of numbers": (nn.MSELoss(), (N,), False),
    "binary cross-entropy": (
        lambda z, y: F.binary_cross_entropy_with_logits(z, (y > 0).double()),
        (N, 2),
        False,
    ),
}


def made(name: str) -> tuple[Loss, Tensor, Tensor]:
    torch.manual_seed(0)
    loss, shape, classes = LOSSES[name]
    z = torch.randn(shape, dtype=torch.float64)
    if not classes:
        return loss, z, torch.randn(shape, dtype=torch.float64)
    axis = 2 if name.endswith("tokens") else 1
    positions = [size for position, size in enumerate(shape) if position != axis]
    return loss, z, torch.randint(C, positions)


def dense(loss: Loss, z: Tensor, y: Tensor) -> Tensor:
    """[NM, NM]."""
    H = torch.autograd.functional.hessian(lambda z: loss(z, y), z)
    return H.reshape(z.numel(), z.numel())


def by_sample(H: Tensor) -> Tensor:
    """The blocks [N, M, M] of a matrix that couples no samples."""
    blocks = H.reshape(N, len(H) // N, N, -1)
    return blocks[range(N), :, range(N)]


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", LOSSES)
def test_products_root_and_sum(name: str) -> None:
    loss, z, y = made(name)
    H = dense(loss, z, y)
    v = torch.randn(V, *z.shape, dtype=torch.float64)
    product = hessian_mat_prod(loss, z, y, v)
    assert product.shape == v.shape
    close(product.flatten(1), v.flatten(1) @ H)
    S = sqrt_hessian(loss, z, y)
    assert S.shape == (z[0].numel(), *z.shape)
    S = S.reshape(len(S), N, -1)
    close(torch.einsum("vni,vnj->nij", S, S), by_sample(H))
    close(sum_hessian(loss, z, y), by_sample(H).sum(0))


@pytest.mark.parametrize("mc_samples", [1, 4])
@pytest.mark.parametrize("name", LOSSES)
def test_sampled_root(name: str, mc_samples: int) -> None:
    loss, z, y = made(name)
    H = by_sample(dense(loss, z, y))
    generator = torch.Generator().manual_seed(0)
    draws = []
    for _ in range(300 // mc_samples):
        S = sqrt_hessian_sampled(loss, z, y, mc_samples, generator)
        assert S.shape == (mc_samples, *z.shape)
        S = S.reshape(mc_samples, N, -1)
        draws.append(torch.einsum("vni,vnj->nij", S, S))
    products = torch.stack(draws)
    error = products.std(0) / len(products) ** 0.5
    assert ((products.mean(0) - H).abs() <= 4 * error + 1e-12).all()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_formulas_by_hand(reduction: str) -> None:
    torch.manual_seed(0)
    z, y = torch.randn(N, C, dtype=torch.float64), torch.randint(C, (N,))
    n = N if reduction == "mean" else 1
    p = z.softmax(1)
    H = (torch.diag_embed(p) - p.unsqueeze(1) * p.unsqueeze(2)) / n
    close(sum_hessian(nn.CrossEntropyLoss(reduction=reduction), z, y), H.sum(0))
    H = 2 * N * torch.eye(C, dtype=torch.float64) / (n * (C if n > 1 else 1))
    close(sum_hessian(nn.MSELoss(reduction=reduction), z, torch.zeros_like(z)), H)


def test_outputs_in_a_graph_stay_in_it() -> None:
    w = torch.randn(N, C, dtype=torch.float64, requires_grad=True)
    z, y = w * 2, torch.randint(C, (N,))
    close(sum_hessian(F.cross_entropy, z, y), sum_hessian(F.cross_entropy, z.detach(), y))
    assert not sqrt_hessian(F.cross_entropy, z, y).requires_grad
    z.sum().backward()
    assert w.grad is not None


def test_what_cannot_be_served_is_refused() -> None:
    z, y = torch.randn(N, C), torch.randint(C, (N,))
    with pytest.raises(ValueError, match=r"must be a number.*got shape \[4\].*reduction"):
        sum_hessian(nn.CrossEntropyLoss(reduction="none"), z, y)
    with pytest.raises(ValueError, match=r"they must have \[V, 4, 3\]"):
        hessian_mat_prod(F.cross_entropy, z, y, z)
    with pytest.raises(ValueError, match="mc_samples >= 1, got 0"):
        sqrt_hessian_sampled(F.cross_entropy, z, y, 0, torch.Generator())
    with pytest.raises(Unsupported, match="not convex"):
        sqrt_hessian(lambda z, y: -F.cross_entropy(z, y), z, y)
    for outputs in (z, z[:, 0]):
        with pytest.raises(Unsupported, match="couples the samples"):
            sum_hessian(lambda z, y: z.flatten().logsumexp(0), outputs, y)
