"""Products with Hessian and GGN, against the dense matrices."""

from __future__ import annotations

import pytest
import torch
from curvature.networks import CASES
from torch import nn

from cockpit.curvature import GGN, Hessian
from cockpit.errors import Unsupported


@pytest.mark.parametrize("name", CASES)
def test_hessian(name: str) -> None:
    case = CASES[name]()
    parameters = list(case.parameters().values())
    hessian = Hessian(case.individual_losses().sum(), parameters, 1 / len(case.x))
    dense = case.hessian()
    V = torch.randn(hessian.size, 3, dtype=torch.float64)
    for v in V.T:
        torch.testing.assert_close(hessian @ v, dense @ v, rtol=1e-9, atol=1e-12)
    start = 0
    for index, parameter in enumerate(parameters):
        rows = slice(start, start := start + parameter.numel())
        product = hessian.block(index, V[rows, 0].reshape(parameter.shape))
        torch.testing.assert_close(
            product.flatten(), dense[rows, rows] @ V[rows, 0], rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("name", CASES)
def test_ggn(name: str) -> None:
    case = CASES[name]()
    outputs = case.outputs()
    ggn = GGN(case.losses(outputs, case.y).mean(), outputs, list(case.parameters().values()))
    dense = case.ggn()
    for v in torch.randn(3, ggn.size, dtype=torch.float64):
        torch.testing.assert_close(ggn @ v, dense @ v, rtol=1e-9, atol=1e-12)


def test_what_is_linear_has_no_hessian() -> None:
    layer = nn.Linear(3, 1)
    hessian = Hessian(layer(torch.randn(4, 3)).mean(), list(layer.parameters()))
    assert not (hessian @ torch.randn(4)).any()


def test_one_parameter() -> None:
    weight = nn.Parameter(torch.tensor(2.0))
    assert (Hessian(weight**3, [weight]) @ torch.ones(1)).item() == 12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions(dtype: torch.dtype) -> None:
    case = CASES["mlp"]()
    dense = case.hessian()
    case.model.to(dtype)
    case.x = case.x.to(dtype)
    hessian = Hessian(case.individual_losses().mean(), list(case.parameters().values()))
    v = torch.randn(hessian.size)
    product = hessian @ v
    assert product.dtype == torch.float32
    tolerance = torch.finfo(dtype).eps * 20
    assert (product - dense.float() @ v).norm() < tolerance * (dense.float() @ v).norm()


def test_a_kernel_without_second_derivative_is_refused_with_both_ways_out() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
    hessian = Hessian(layer(torch.randn(2, 5, 8)).square().sum(), list(layer.parameters()))
    with pytest.raises(Unsupported, match=r"flash.*SDPBackend\.MATH.*'closure'"):
        _ = hessian @ torch.randn(hessian.size)
