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
from cockpit.errors import Unsupported
from cockpit.quantities import HessMaxEV, HessTrace


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


class Rounded(nn.Module):
    """A layer on both sides of a tanh that has a second derivative, or none."""

    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.first, self.last, self.activation = nn.Linear(6, 8), nn.Linear(8, 3), activation

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.activation(self.first(x))).float()


@pytest.mark.parametrize("inside", [True, False], ids=["closure", "step"])
def test_differences_under_autocast(inside: bool) -> None:
    """The step is wide enough for the precision that is computed in, and autocast keeps no copy of the weights."""
    torch.manual_seed(0)
    exact, model = Rounded(torch.tanh), Rounded(Opaque.apply)
    model.load_state_dict(exact.state_dict())
    x, y = torch.randn(32, 6), torch.randint(3, (32,))
    hessian = Hessian(F.cross_entropy(exact(x), y), list(exact.parameters()))
    dense = torch.stack([hessian @ row for row in torch.eye(hessian.size)])
    watch = Cockpit(model, [HessMaxEV(), HessTrace(curvature="hutchinson")])

    def closure() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x), y)

    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        loss = closure()
        with watch(0, loss=loss, closure=closure, batch_size=32):
            loss.backward()
    output = watch.get_output()[0]
    assert output["HessMaxEV"] == pytest.approx(torch.linalg.eigvalsh(dense)[-1].item(), rel=0.03)
    assert sum(output["HessTrace"]) == pytest.approx(dense.trace().item(), rel=0.15)


def test_the_width_follows_the_coarsest_precision() -> None:
    torch.manual_seed(0)
    model = Rounded(torch.tanh)
    x, y = torch.randn(32, 6), torch.randint(3, (32,))

    def loss() -> Tensor:
        return F.cross_entropy(model(x), y)

    def coarse() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss()

    parameters = list(model.parameters())
    exact, matrix = Hessian(loss(), parameters), Differences(coarse, parameters)
    for _ in range(3):
        expected = exact @ (v := torch.randn(exact.size))
        assert torch.linalg.vector_norm(matrix @ v - expected) < 0.1 * expected.norm()


def test_changes_that_are_nothing_but_noise_are_refused() -> None:
    parameter = nn.Parameter(torch.ones(3))

    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.sum()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * torch.randn(3)

    torch.manual_seed(0)
    matrix = Differences(lambda: Noisy.apply(parameter), [parameter])
    with pytest.raises(Unsupported, match=r"too unevenly along a direction.*higher precision"):
        matrix @ torch.randn(3)


def test_a_gradient_that_does_not_change_has_no_curvature() -> None:
    parameter = nn.Parameter(torch.ones(3))
    matrix = Differences(lambda: 2 * parameter.sum(), [parameter])
    assert not (matrix @ torch.randn(3)).any()


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
    with watch(0, loss=loss, closure=closure, batch_size=len(case.x)):
        loss.backward()
    expected = torch.linalg.eigvalsh(case.hessian())[-1].item()
    assert watch.get_output()[0]["HessMaxEV"] == pytest.approx(expected, rel=1e-3)
    assert "source: differences" in watch.run().events()["message"][0]
