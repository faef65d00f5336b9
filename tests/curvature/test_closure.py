"""Curvature of a loss that has to be computed anew."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from curvature.networks import Case, flat_gradient, mlp
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from cockpit import Cockpit, CockpitWarning
from cockpit.curvature import Differences, Hessian, extremes
from cockpit.quantities import HessMaxEV


def encoder() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(4, 2, 3, dropout=0.2, batch_first=True).double()
    return model, torch.randn(2, 5, 4).double()


def test_the_flash_kernel_with_a_closure() -> None:
    model, x = encoder()
    model.eval()
    watch = Cockpit(model, [HessMaxEV(tol=1e-9)])
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.self_attn.dropout = 0.0
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    random = torch.get_rng_state()

    def closure() -> Tensor:
        return model(x).square().mean()

    loss = closure()
    with watch(0, loss=loss, closure=closure):
        loss.backward()
    assert torch.equal(random, torch.get_rng_state())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
    case = Case(model, x, x, lambda z, y: z.square().flatten(1).mean(1))
    expected = torch.linalg.eigvalsh(case.hessian())[-1].item()
    assert watch.get_output()[0]["HessMaxEV"] == pytest.approx(expected, rel=1e-6)


class Opaque(torch.autograd.Function):
    """tanh without a second derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return grad * (1 - y**2)


class WithOpaque(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(Opaque.apply(F.dropout(self.norm(self.first(x)), 0.2, self.training)))


def test_differences_where_no_kernel_helps() -> None:
    torch.manual_seed(0)
    model = WithOpaque().double()
    x, y = torch.randn(6, 4).double(), torch.randint(3, (6,))

    def closure() -> Tensor:
        return F.cross_entropy(model(x), y)

    watch = Cockpit(model, [HessMaxEV()])
    loss = closure()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    random = torch.get_rng_state()
    expected = flat_gradient(loss, list(model.parameters()))
    with watch(0, loss=loss, closure=closure):
        loss.backward()
    assert torch.equal(torch.cat([p.grad.flatten() for p in model.parameters()]), expected)
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert all(torch.equal(b, buffers[n]) for n, b in model.named_buffers())
    assert watch.get_output()[0]["HessMaxEV"] != 0


def test_central_differences() -> None:
    case = mlp()
    parameters = list(case.parameters().values())
    matrix = Differences(lambda: case.individual_losses().mean(), parameters)
    v = torch.randn(matrix.size).double()
    torch.testing.assert_close(matrix @ v, case.hessian() @ v, rtol=1e-6, atol=1e-8)
    assert not (matrix @ torch.zeros_like(v)).any()


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float64, 1e-8), (torch.float32, 1e-3)], ids=["double", "single"]
)
@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU, nn.Hardswish])
def test_differences_of_large_and_kinked_networks(
    activation: Any, dtype: torch.dtype, error: float
) -> None:
    """The width does not grow with the parameters, and shrinks where there is a kink on the way."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, 32), activation()]
    for _ in range(2):
        layers += [nn.Linear(32, 32), activation()]
    model = nn.Sequential(*layers, nn.Linear(32, 5))
    x, y = torch.randn(32, 8), torch.randint(5, (32,))

    def loss() -> Tensor:
        return F.cross_entropy(model(x), y)

    model, x = model.double(), x.double()
    exact = Hessian(loss(), list(model.parameters()))
    start = torch.randn(exact.size).double()
    top = extremes(exact.__matmul__, start).upper
    vectors = [exact.flat(exact.gradient()), start, top]
    expected = [exact @ vector for vector in vectors]
    model, x = copy.deepcopy(model).to(dtype), x.to(dtype)
    matrix = Differences(loss, list(model.parameters()))
    for vector, product in zip(vectors, expected, strict=True):
        apart = torch.linalg.vector_norm((matrix @ vector.to(dtype)).double() - product)
        assert apart <= error * torch.linalg.vector_norm(product)


def test_the_hint_of_attention_is_for_attention() -> None:
    model, x = encoder()
    watch = Cockpit(model.eval(), [HessMaxEV()])
    loss = model.self_attn(x, x, x, need_weights=False)[0].square().mean()
    with pytest.warns(CockpitWarning, match=r"attention.*MATH.*closure"), watch(0, loss=loss):
        loss.backward()
    other = nn.Sequential(nn.Linear(4, 5), nn.Hardsigmoid())
    watch = Cockpit(other, [HessMaxEV()])
    loss = other(torch.randn(3, 4)).square().mean()
    with pytest.warns(CockpitWarning) as warned, watch(0, loss=loss):
        loss.backward()
    (message,) = [str(warning.message) for warning in warned]
    assert "hardsigmoid" in message
    assert "closure" in message
    assert "attention" not in message


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of the compiler
def test_a_compiled_model_has_differences() -> None:
    """Its backward pass cannot be differentiated again."""
    case = mlp()
    compiled = torch.compile(case.model, backend="aot_eager")
    watch = Cockpit(case.model, [HessMaxEV()])

    def closure() -> Tensor:
        return F.cross_entropy(compiled(case.x), case.y)

    loss = closure()
    with watch(0, loss=loss, closure=closure):
        loss.backward()
    expected = torch.linalg.eigvalsh(case.hessian())[-1].item()
    assert watch.get_output()[0]["HessMaxEV"] == pytest.approx(expected, rel=1e-3)
    assert "source: differences" in watch.run().events()["message"][0]
