"""Kronecker factors, against dense matrices, in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from backpack import backpack, extend
from backpack.extensions import KFLR, KFRA
from curvature.chains import (
    LOSSES,
    MODELS,
    N,
    close,
    flat,
    hessian,
    jacobian,
    made,
    mlp,
    normalised,
    states,
)
from curvature.networks import CASES, Case, cross_entropy
from torch import Tensor, nn

from cockpit.curvature import Kronecker, kronecker_factors
from cockpit.errors import Unsupported


def loss_hessians(loss: Any, z: Tensor, y: Tensor) -> Tensor:
    """Of the loss with respect to the outputs of each sample, [N, K, K]."""
    H = hessian(lambda z: loss(z, y), z.detach())
    return H[range(len(z)), :, range(len(z))]


def jacobians(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Of each sample, [N, D_out, D_in]."""
    return torch.stack([jacobian(layer, s[None]).reshape(-1, s.numel()) for s in x])


def patches(layer: nn.Module, x: Tensor) -> Tensor:
    """What the weights of a layer are multiplied with, [N, T, I]: its derivative by the weights."""
    weight = layer.weight.detach()  # type: ignore[union-attr]
    J = jacobian(lambda w: torch.func.functional_call(layer, {"weight": w}, (x,)), weight)
    J = J[:, 0].select(J.dim() - weight.dim() - 1, 0)  # the first channel, by its weights
    return J.reshape(len(x), -1, weight[0].numel())


def factored(model: nn.Module, x: Tensor, bias_ggn: list[Tensor]) -> list[Kronecker]:
    """B ⊗ A and B of all layers."""
    expected, layers = [], flat(model)
    for layer, inputs in zip(layers, states(model, x), strict=False):
        if list(layer.parameters()):
            X = patches(layer, inputs)
            A = torch.einsum("nti,ntj->ij", X, X) / len(x)
            B = bias_ggn[len(expected) // 2]
            expected += [Kronecker(B, A), Kronecker(B)]
    return expected


def compare(found: dict[str, Kronecker], expected: list[Kronecker], model: nn.Module) -> None:
    assert list(found) == [name for name, _ in model.named_parameters()]
    for product, truth, parameter in zip(found.values(), expected, model.parameters(), strict=True):
        assert product.shape == (parameter.numel(), parameter.numel())
        for factor, true_factor in zip(product.factors, truth.factors, strict=True):
            close(factor, true_factor)


def ggn_of_biases(model: nn.Module, loss: Any, x: Tensor, y: Tensor) -> list[Tensor]:
    """Jᵀ H J with dense J, for every bias."""
    H, blocks = loss_hessians(loss, model(x), y), []
    for name, bias in model.named_parameters():
        if name.endswith("bias"):
            J = jacobian(
                lambda b, name=name: torch.func.functional_call(model, {name: b}, (x,)),
                bias.detach(),
            )
            blocks.append(torch.einsum("nki,nkl,nlj->ij", J, H, J))
    return blocks


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", MODELS)
def test_kflr(name: str, loss: str) -> None:
    """B is the exact GGN of the bias, A the second moment of the inputs."""
    model, x, y = made(name)
    expected = factored(model, x, ggn_of_biases(model, LOSSES[loss], x, y))
    compare(kronecker_factors(model, LOSSES[loss], x, y, "kflr"), expected, model)


def test_kflr_of_one_sample_is_the_ggn() -> None:
    model, x, y = made("mlp", n=1)
    case = Case(model, x, y, cross_entropy)
    dense = case.ggn()
    start = 0
    for product in kronecker_factors(model, F.cross_entropy, x, y, "kflr").values():
        rows = slice(start, start := start + product.shape[0])
        close(product.dense(), dense[rows, rows])


@pytest.mark.parametrize("mc_samples", [1, 5])
@pytest.mark.parametrize("name", MODELS)
def test_kfac(name: str, mc_samples: int) -> None:
    """B is that of KFLR in expectation, within four standard errors; A is that of KFLR."""
    model, x, y = made(name)
    exact = kronecker_factors(model, F.cross_entropy, x, y, "kflr")
    arguments = (model, F.cross_entropy, x.repeat(25, *[1] * (x.dim() - 1)), y.repeat(25), "kfac")
    generator = torch.Generator().manual_seed(0)
    draws = [kronecker_factors(*arguments, mc_samples, generator) for _ in range(20)]
    for parameter, truth in exact.items():
        products = torch.stack([draw[parameter].factors[0] for draw in draws])
        error = products.std(0) / len(products) ** 0.5
        assert ((products.mean(0) - truth.factors[0]).abs() <= 4 * error + 1e-12).all()
        for factor, true_factor in zip(
            draws[0][parameter].factors[1:], truth.factors[1:], strict=True
        ):
            close(factor, true_factor)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", MODELS)
def test_kfra(name: str, loss: str) -> None:
    """The recursion M ← mean of J_nᵀ M J_n with dense Jacobians, from the sum of the loss's Hessians."""
    model, x, y = made(name)
    values, layers = states(model, x), flat(model)
    M = loss_hessians(LOSSES[loss], values[-1], y).sum(0)
    biases: list[Tensor] = []
    for layer, inputs, outputs in reversed(list(zip(layers, values, values[1:], strict=False))):
        if list(layer.parameters()):
            channels = outputs.shape[1]
            P = torch.eye(channels).repeat_interleave(outputs[0].numel() // channels, 0).double()
            biases.insert(0, P.T @ M @ P)
        J = jacobians(layer, inputs)
        M = torch.stack([j.T @ M @ j for j in J]).mean(0)
    found = kronecker_factors(model, LOSSES[loss], x, y, "kfra")
    compare(found, factored(model, x, biases), model)


@pytest.mark.parametrize(("approximation", "extension"), [("kflr", KFLR), ("kfra", KFRA)])
def test_factors_of_backpack(approximation: str, extension: Any) -> None:
    model, x, y = made("mlp")
    found = kronecker_factors(model, F.cross_entropy, x, y, approximation)
    twin, module = extend(model), extend(nn.CrossEntropyLoss())
    with backpack(extension()):
        module(twin(x.requires_grad_()), y).backward()
    for name, parameter in twin.named_parameters():
        for factor, theirs in zip(
            found[name].factors, getattr(parameter, approximation), strict=True
        ):
            close(factor, theirs)


def test_tokens_and_models_that_are_no_chains() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(3, 2), nn.LayerNorm(2), nn.Linear(2, 3)
            self.unused = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = F.relu(self.first(x), inplace=True)
            return self.last((h + self.norm(h)).mean(1))

    torch.manual_seed(0)
    model, x, y = Net().double(), torch.randn(N, 2, 3).double(), torch.randint(3, (N,))
    found = kronecker_factors(model, F.cross_entropy, x, y, "kflr")
    assert list(found) == ["first.weight", "first.bias", "last.weight", "last.bias"]
    B = dict(
        zip(["first", "norm", "last"], ggn_of_biases(model, F.cross_entropy, x, y), strict=False)
    )
    for name, inputs in (("first", x), ("last", None)):
        for product in (found[f"{name}.weight"], found[f"{name}.bias"]):
            close(product.factors[0], B[name])
        if inputs is not None:
            close(found["first.weight"].factors[1], torch.einsum("nti,ntj->ij", x, x) / N)
    with pytest.raises(Unsupported, match=r"no chain of layers.*'kfac'"):
        kronecker_factors(model, F.cross_entropy, x, y, "kfra")


def test_batch_normalisation() -> None:
    """In training mode the factors, which are made of parts by sample, are refused."""
    model, x, y = normalised()
    for approximation in ("kfac", "kflr", "kfra"):
        with pytest.raises(Unsupported, match=r"1 normalises.*eval\(\).*block_products"):
            kronecker_factors(model, F.cross_entropy, x, y, approximation)
    model.eval()
    names = ["0.weight", "0.bias", "3.weight", "3.bias"]
    for approximation in ("kfac", "kflr", "kfra"):
        assert list(kronecker_factors(model, F.cross_entropy, x, y, approximation)) == names


def test_nothing_is_left_behind() -> None:
    model = nn.Sequential(mlp(), nn.Dropout(0.5)).double()
    x, y = torch.randn(N, 4).double(), torch.randint(3, (N,))
    random = torch.get_rng_state()
    for approximation in ("kfac", "kflr", "kfra"):
        kronecker_factors(model, F.cross_entropy, x, y, approximation)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_what_cannot_be_served_is_refused() -> None:
    model, x, y = made("mlp")
    with pytest.raises(ValueError, match=r"no approximation 'kfak'.*'kfac', 'kflr', 'kfra'"):
        kronecker_factors(model, F.cross_entropy, x, y, "kfak")
    residual = CASES["residual, shared and unused parts"]()
    with pytest.raises(Unsupported, match="convolution is called several times"):
        kronecker_factors(residual.model, F.cross_entropy, residual.x, residual.y)
    assert not any(module._forward_hooks for module in residual.model.modules())
    tied = CASES["language model with tied weights"]()
    with pytest.raises(Unsupported, match=r"head.weight are one parameter.*kind='ggn'"):
        kronecker_factors(tied.model, F.cross_entropy, tied.x, tied.y)
    grouped = nn.Sequential(nn.Conv1d(2, 2, 1, groups=2), nn.Flatten())
    with pytest.raises(Unsupported, match="0 has 2 groups"):
        kronecker_factors(grouped, F.cross_entropy, torch.randn(N, 2, 2), y)
