"""Products of a parameter's block of the curvature, against dense matrices, in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from backpack import backpack, extend
from backpack.extensions import GGNMP, HMP
from curvature.chains import (
    LOSSES,
    MODELS,
    N,
    V,
    close,
    flat,
    hessian,
    jacobian,
    made,
    mlp,
    normalised,
    states,
)
from curvature.networks import CASES, Case, cross_entropy, squared_error
from torch import Tensor, nn

from cockpit.curvature import block_products
from cockpit.errors import Unsupported


@pytest.mark.parametrize("kind", ["hessian", "ggn"])
@pytest.mark.parametrize("name", CASES)
def test_blocks(name: str, kind: str) -> None:
    case = CASES[name]()
    dense = case.hessian() if kind == "hessian" else case.ggn()
    start = 0
    for parameter_name, parameter in case.parameters().items():
        rows = slice(start, start := start + parameter.numel())
        M = torch.randn(V, *parameter.shape, dtype=torch.float64)
        found = block_products(
            case.model,
            lambda z, y: case.losses(z, y).mean(),
            case.x,
            case.y,
            parameter_name,
            M,
            kind,
        )
        assert found.shape == M.shape
        close(found.flatten(1), M.flatten(1) @ dense[rows, rows])


def positive_curvature(
    model: nn.Module, loss: Any, x: Tensor, y: Tensor, modify: str
) -> list[Tensor]:
    """Jᵀ H J + residual, from layer to layer, with dense matrices for the whole batch; by parameter."""
    values, layers = states(model, x), flat(model)
    z = values[-1]
    H = hessian(lambda z: loss(z, y), z).reshape(z.numel(), z.numel())
    g = jacobian(lambda z: loss(z, y), z).flatten()
    blocks: list[Tensor] = []
    for layer, inputs in reversed(list(zip(layers, values, strict=False))):
        named = [(n, p.detach()) for n, p in layer.named_parameters()]
        for name, parameter in reversed(named):
            J = jacobian(
                lambda p, layer=layer, name=name, inputs=inputs: torch.func.functional_call(
                    layer, {name: p}, (inputs,)
                ),
                parameter,
            ).reshape(len(H), -1)
            blocks.insert(0, J.T @ H @ J)
        R = hessian(lambda s, layer=layer, g=g: (g * layer(s).flatten()).sum(), inputs).reshape(
            inputs.numel(), -1
        )
        R = R.clamp(min=0) if modify == "clip" else R.abs()
        J = jacobian(layer, inputs).reshape(len(H), -1)
        H, g = J.T @ H @ J + R, g @ J
    return blocks


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("modify", ["clip", "abs"])
@pytest.mark.parametrize("name", MODELS)
def test_positive_curvature_blocks(name: str, modify: str, loss: str) -> None:
    model, x, y = made(name)
    blocks = positive_curvature(model, LOSSES[loss], x, y, modify)
    different = False
    for (parameter_name, parameter), block in zip(model.named_parameters(), blocks, strict=True):
        M = torch.randn(V, *parameter.shape, dtype=torch.float64)
        arguments = (model, LOSSES[loss], x, y, parameter_name, M)
        found = block_products(*arguments, kind="pch", modify=modify)
        close(found.flatten(1), M.flatten(1) @ block)
        assert torch.linalg.eigvalsh(block)[0] > -1e-12
        ggn = block_products(*arguments, kind="ggn")
        different |= not torch.allclose(found, ggn)
    assert different == (name != "maximum pooling")  # where all is piecewise linear, it is the GGN


@pytest.mark.parametrize(("kind", "extension"), [("hessian", HMP), ("ggn", GGNMP)])
def test_blocks_of_backpack(kind: str, extension: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Sigmoid(), nn.Linear(3, 3)
    ).double()
    x, y = torch.randn(N, 2, 3, 3).double(), torch.randint(3, (N,))
    matrices = {n: torch.randn(V, *p.shape).double() for n, p in model.named_parameters()}
    found = {
        name: block_products(model, F.cross_entropy, x, y, name, M, kind)
        for name, M in matrices.items()
    }
    twin, module = extend(model), extend(nn.CrossEntropyLoss())
    with backpack(extension()):
        module(twin(x.requires_grad_()), y).backward()
        for name, parameter in twin.named_parameters():
            theirs = getattr(parameter, extension().savefield)(matrices[name])
            close(found[name], theirs.detach())


def test_batch_normalisation_in_training_mode() -> None:
    """The products are exact, positive curvature is refused."""
    model, x, y = normalised()
    case = Case(model, x, y, cross_entropy)
    weight = model[0].weight
    M = torch.randn(V, *weight.shape, dtype=torch.float64)
    dense = case.hessian()[:20, :20]
    running = model[1].running_mean.clone()
    found = block_products(model, F.cross_entropy, x, y, "0.weight", M)
    assert torch.equal(model[1].running_mean, running)
    close(found.flatten(1), M.flatten(1) @ dense)
    with pytest.raises(Unsupported, match=r"1 normalises.*kind='hessian'"):
        block_products(model, F.cross_entropy, x, y, "0.weight", M, "pch")
    model.eval()
    blocks = positive_curvature(model, F.cross_entropy, x, y, "clip")
    found = block_products(model, F.cross_entropy, x, y, "0.weight", M, "pch")
    close(found.flatten(1), M.flatten(1) @ blocks[0])


def test_nothing_is_left_behind() -> None:
    model = nn.Sequential(mlp(), nn.Dropout(0.5)).double()
    x, y = torch.randn(N, 4).double(), torch.randint(3, (N,))
    random = torch.get_rng_state()
    M = torch.ones(1, 3, 4, dtype=torch.float64)
    for kind in ("hessian", "ggn", "pch"):
        first = block_products(model, F.cross_entropy, x, y, "0.0.weight", M, kind)
        close(block_products(model, F.cross_entropy, x, y, "0.0.weight", M, kind), first)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in model.parameters())


def test_what_cannot_be_served_is_refused() -> None:
    model, x, y = made("mlp")
    weight = torch.ones(1, 3, 4)
    with pytest.raises(ValueError, match=r"no kind 'fisher'.*'hessian', 'ggn', 'pch'"):
        block_products(model, F.cross_entropy, x, y, "0.weight", weight, "fisher")
    with pytest.raises(ValueError, match=r"no modify 'square'.*'clip', 'abs'"):
        block_products(model, F.cross_entropy, x, y, "0.weight", weight, "pch", "square")
    with pytest.raises(ValueError, match=r"no parameter '9.weight'.*'0.weight'"):
        block_products(model, F.cross_entropy, x, y, "9.weight", weight)
    with pytest.raises(ValueError, match=r"must have \[V, 3, 4\]"):
        block_products(model, F.cross_entropy, x, y, "0.weight", weight[0])
    normed = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)).double()
    with pytest.raises(Unsupported, match=r"LayerNorm is neither linear nor elementwise.*'ggn'"):
        block_products(normed, F.cross_entropy, x, y, "0.weight", weight, "pch")
    residual = CASES["residual, shared and unused parts"]()
    M = torch.ones(1, 2)
    with pytest.raises(Unsupported, match=r"within a Block.*'ggn'"):
        block_products(
            residual.model, F.cross_entropy, residual.x, residual.y, "convolution.bias", M, "pch"
        )


def test_squared_errors_by_sample() -> None:
    """The mean of the samples' losses, as training loops have it, is served as well."""
    model, x, y = made("mlp")
    case = Case(model, x, y, squared_error)
    M = torch.randn(V, 3, 4, dtype=torch.float64)
    found = block_products(
        model, lambda z, y: squared_error(z, y).mean(), x, y, "0.weight", M, "ggn"
    )
    close(found.flatten(1), M.flatten(1) @ case.ggn()[:12, :12])
