"""The sampled diagonal of the GGN: every loss it knows, against the dense matrix."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from curvature.networks import mlp
from torch import Tensor, nn

from cockpit.curvature import blocks_of, closed_forms, sampled_backward
from cockpit.errors import Unsupported

N, C = 6, 3
weight = torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64)

# From outputs [N, C] and targets [N] to the mean loss; whether its form is recognised.
LOSSES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], bool]] = {
    "cross-entropy": (F.cross_entropy, True),
    "weighted": (lambda z, y: F.cross_entropy(z, y, weight=weight), True),
    "ignored targets": (lambda z, y: F.cross_entropy(z, y, ignore_index=1), True),
    "smoothed labels": (lambda z, y: F.cross_entropy(z, y, label_smoothing=0.2), True),
    "soft labels": (
        lambda z, y: F.cross_entropy(z, one_hot(y).sub(y[:, None] / 3).softmax(1)),
        True,
    ),
    "masked": (
        lambda z, y: (cross_entropies(z, y) * (y > 0)).sum() / (y > 0).sum(),
        True,
    ),
    "log-softmax and nll": (lambda z, y: F.nll_loss(z.log_softmax(1), y), True),
    "two heads": (lambda z, y: F.cross_entropy(z[:, :2], y % 2) + z[:, 2].square().mean(), True),
    "mean-squared error": (lambda z, y: F.mse_loss(z, one_hot(y)), True),
    "squared error by hand": (lambda z, y: ((z - one_hot(y)) ** 2).sum(1).mean() / 2, True),
    "squared error of a sigmoid": (lambda z, y: F.mse_loss(z.exp(), torch.zeros_like(z)), False),
    "binary": (lambda z, y: F.binary_cross_entropy_with_logits(z, one_hot(y)), False),
    "smooth l1": (lambda z, y: F.smooth_l1_loss(z, one_hot(y), beta=5.0), False),
    "log-sum-exp": (lambda z, y: (z.logsumexp(1) - z.mean(1)).mean(), False),
    "linear": (lambda z, y: z.mean(), False),
    "with a linear part": (lambda z, y: F.cross_entropy(z, y) + z[:, 0].mean(), False),
}


def one_hot(y: Tensor) -> Tensor:
    return F.one_hot(y, C).double()


def cross_entropies(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z, y, reduction="none")


def outputs_and_targets() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    z = torch.randn(N, C, dtype=torch.float64, requires_grad=True)
    return z * 1.0, torch.tensor([0, 1, 2, 2, 1, 0])


def dense(loss: Callable[[Tensor, Tensor], Tensor], z: Tensor, y: Tensor) -> Tensor:
    H = torch.autograd.functional.hessian(lambda z: loss(z, y), z.detach())
    return H.reshape(z.numel(), z.numel())


@pytest.mark.parametrize("name", LOSSES)
def test_covariance_at_the_outputs(name: str) -> None:
    loss, recognised = LOSSES[name]
    z, y = outputs_and_targets()
    draws = 2000
    many = z.detach().repeat(draws, 1).requires_grad_() * 1.0
    value = loss(many, y.repeat(draws))
    assert (closed_forms(value, many) is not None) == recognised
    (s,) = sampled_backward(value, many, [many], torch.Generator().manual_seed(0))
    S = torch.zeros_like(many) if s is None else s * draws**0.5
    S = S.reshape(draws, N * C)
    expected = dense(loss, z, y)
    products = S.unsqueeze(1) * S.unsqueeze(2)  # [draws, NC, NC]
    error = products.std(0) / draws**0.5
    assert ((products.mean(0) - expected).abs() <= 5 * error + 1e-12).all()


def test_a_factor_that_is_exact() -> None:
    for name, (loss, recognised) in LOSSES.items():
        if recognised:
            continue
        z, y = outputs_and_targets()
        blocks = blocks_of(loss(z, y), z, torch.Generator().manual_seed(0))
        factor = blocks.factor()
        H = torch.diag_embed(factor**2) if blocks.diagonal else factor @ factor.mT
        torch.testing.assert_close(torch.block_diag(*H), dense(loss, z, y), msg=name)


@pytest.mark.parametrize("shape", [(4, 3, 5), (4, 5, 3), (2, 2, 2, 2)])
@pytest.mark.parametrize("dim", [1, -1])
def test_blocks_of_outputs_with_positions(shape: tuple[int, ...], dim: int) -> None:
    torch.manual_seed(0)
    z = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    blocks = blocks_of(z.logsumexp(dim).sum(), z, generator)
    assert blocks.values.shape[-1] == shape[dim]
    mean = torch.stack([blocks.sample(generator) ** 2 for _ in range(3000)]).mean(0)
    p = z.softmax(dim)
    torch.testing.assert_close(mean, (p - p**2).detach(), rtol=0.2, atol=0)


def test_outputs_that_are_one_block_for_each_sample() -> None:
    z = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    blocks = blocks_of(z.flatten(1).logsumexp(1).sum(), z, torch.Generator())
    assert blocks.values.shape == (4, 6, 6)


def test_losses_that_couple_the_samples_are_refused() -> None:
    z = torch.randn(4, 3, requires_grad=True)
    with pytest.raises(Unsupported, match=r"couples the samples.*hutchinson"):
        blocks_of(z.flatten().logsumexp(0), z, torch.Generator())


def test_losses_that_are_not_convex_are_refused() -> None:
    z = torch.randn(4, 3, requires_grad=True)
    y = torch.tensor([0, 1, 2, 0])
    for loss in (z.cos().mean(), -F.cross_entropy(z, y), -z.square().mean()):
        with pytest.raises(Unsupported, match="not convex"):
            sampled_backward(loss, z, [z], torch.Generator())


def test_a_regulariser_is_no_part_of_the_ggn() -> None:
    case = mlp()
    z = case.outputs()
    norm = sum(p.square().sum() for p in case.model.parameters())
    loss = case.losses(z, case.y).mean() + norm
    assert closed_forms(loss, z) is None
    (s,) = sampled_backward(loss, z, [z], torch.Generator())
    assert s is not None
    assert s.abs().max() < 1


def test_a_loss_without_known_outputs() -> None:
    layer = nn.Linear(3, 2)
    z = layer(torch.randn(4, 3))
    assert closed_forms(F.cross_entropy(z, torch.tensor([0, 1, 0, 1])), None) is not None
    with pytest.raises(Unsupported, match=r"info=\{'outputs'"):
        sampled_backward(z.exp().mean(), None, list(layer.parameters()), torch.Generator())
