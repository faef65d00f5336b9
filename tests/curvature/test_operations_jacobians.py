"""Products with a layer's Jacobians and residual, against dense Jacobians by autograd, in double precision."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call

from cockpit.curvature import (
    jac_mat_prod,
    jac_t_mat_prod,
    param_jac_mat_prod,
    param_jac_t_mat_prod,
    residual_mat_prod,
)
from cockpit.errors import Unsupported

V, N = 3, 4

# A layer and the shape of one sample of its input.
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(3, 2), (3,)),
    "linear on tokens": (lambda: nn.Linear(3, 2), (5, 3)),
    "linear without bias": (lambda: nn.Linear(3, 2, bias=False), (3,)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, padding=1, stride=2), (2, 7)),
    "conv2d": (lambda: nn.Conv2d(2, 4, 3, padding="same", dilation=2, groups=2), (2, 4, 4)),
    "conv3d": (lambda: nn.Conv3d(2, 1, 2, bias=False), (2, 3, 3, 3)),
    "transposed convolution": (lambda: nn.ConvTranspose2d(2, 2, 2, stride=2), (2, 2, 2)),
    "relu": (nn.ReLU, (3, 2)),
    "relu, in place": (lambda: nn.ReLU(inplace=True), (3,)),
    "leaky relu": (nn.LeakyReLU, (3,)),
    "sigmoid": (nn.Sigmoid, (3,)),
    "tanh": (nn.Tanh, (3,)),
    "gelu": (nn.GELU, (3,)),
    "silu": (nn.SiLU, (3,)),
    "elu": (nn.ELU, (3,)),
    "selu": (nn.SELU, (3,)),
    "log-sigmoid": (nn.LogSigmoid, (3,)),
    "softplus": (nn.Softplus, (3,)),
    "mish": (nn.Mish, (3,)),
    "prelu": (lambda: nn.PReLU(3), (3,)),
    "max pooling 1d": (lambda: nn.MaxPool1d(2), (2, 5)),
    "max pooling 2d": (lambda: nn.MaxPool2d(3, stride=1, padding=1), (2, 3, 4)),
    "max pooling 3d": (lambda: nn.MaxPool3d(2), (1, 4, 2, 2)),
    "average pooling 1d": (lambda: nn.AvgPool1d(2), (2, 5)),
    "average pooling 2d": (lambda: nn.AvgPool2d(2, stride=1), (2, 3, 3)),
    "average pooling 3d": (lambda: nn.AvgPool3d(2), (1, 4, 2, 2)),
    "adaptive average pooling": (lambda: nn.AdaptiveAvgPool2d((2, 1)), (2, 3, 4)),
    "adaptive maximum pooling": (lambda: nn.AdaptiveMaxPool2d(2), (1, 3, 4)),
    "flatten": (nn.Flatten, (2, 3)),
    "zero padding": (lambda: nn.ZeroPad2d((1, 0, 2, 1)), (1, 2, 2)),
    "layer norm": (lambda: nn.LayerNorm(4), (4,)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 3)),
    "batch norm 1d, training": (lambda: nn.BatchNorm1d(3), (3,)),
    "batch norm 2d, training": (lambda: nn.BatchNorm2d(2), (2, 2, 3)),
    "batch norm, evaluation": (lambda: nn.BatchNorm1d(3).eval(), (3, 2)),
    "softmax": (lambda: nn.Softmax(1), (3,)),
    "dropout": (lambda: nn.Dropout(0.5), (6,)),
}

PARAMETERS = [
    (name, parameter)
    for name, (make, _) in LAYERS.items()
    for parameter, _ in make().named_parameters()
]


def made(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    module, x = make().double(), torch.randn(N, *shape, dtype=torch.float64)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and not module.training:
        assert module.running_mean is not None
        module.running_mean.copy_(torch.randn(module.num_features))
    return module, x


def rerun(module: nn.Module, x: Tensor, **parameters: Tensor) -> Tensor:
    """What a copy of the module makes of x; with the same random numbers as everybody else."""
    torch.manual_seed(1)
    twin = copy.deepcopy(module)
    return functional_call(twin, parameters, (x.clone(),))


def vectors(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(V, *shape, generator=generator, dtype=torch.float64)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", LAYERS)
def test_jacobian_of_the_input(name: str) -> None:
    module, x = made(name)
    y = rerun(module, x)
    J = jacobian(lambda x: rerun(module, x), x).reshape(y.numel(), x.numel())
    forward, backward = vectors(*x.shape), vectors(*y.shape)
    torch.manual_seed(1)
    found = jac_mat_prod(module, x, forward), jac_t_mat_prod(module, x, backward)
    assert found[0].shape == (V, *y.shape)
    assert found[1].shape == (V, *x.shape)
    close(found[0].flatten(1), forward.flatten(1) @ J.mT)
    close(found[1].flatten(1), backward.flatten(1) @ J)


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_jacobian_of_a_parameter(name: str, parameter: str) -> None:
    module, x = made(name)
    y, value = rerun(module, x), module.get_parameter(parameter).detach()
    J = jacobian(lambda p: rerun(module, x, **{parameter: p}), value)  # [*y.shape, *shape]
    J = J.reshape(N, -1, value.numel())
    forward, backward = vectors(*value.shape), vectors(*y.shape)
    product = param_jac_mat_prod(module, x, parameter, forward)
    assert product.shape == (V, *y.shape)
    close(product.flatten(2), torch.einsum("nyp,vp->vny", J, forward.flatten(1)))
    expected = torch.einsum("nyp,vny->vnp", J, backward.flatten(2))
    expected = expected.reshape(V, N, *value.shape)
    close(param_jac_t_mat_prod(module, x, parameter, backward), expected.sum(1))
    if "training" in name:
        with pytest.raises(Unsupported, match=r"statistics of the batch.*eval\(\).*GroupNorm.*sum"):
            param_jac_t_mat_prod(module, x, parameter, backward, sum_batch=False)
    else:
        close(param_jac_t_mat_prod(module, x, parameter, backward, sum_batch=False), expected)


@pytest.mark.parametrize("name", LAYERS)
def test_residual(name: str) -> None:
    """It is the Hessian of ⟨g, f(x)⟩."""
    module, x = made(name)
    y = rerun(module, x)
    g, v = vectors(*y.shape)[0], vectors(*x.shape)
    R = hessian(lambda x: (g * rerun(module, x)).sum(), x).reshape(x.numel(), x.numel())
    torch.manual_seed(1)
    found = residual_mat_prod(module, x, g, v)
    assert found.shape == v.shape
    close(found.flatten(1), v.flatten(1) @ R)


# By hand: g φ''(x).
SECOND: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.zeros_like,
    "sigmoid": lambda x: x.sigmoid() * (1 - x.sigmoid()) * (1 - 2 * x.sigmoid()),
    "tanh": lambda x: -2 * x.tanh() * (1 - x.tanh() ** 2),
    "elu": lambda x: torch.where(x > 0, 0, x.exp()),
    "log-sigmoid": lambda x: -x.sigmoid() * (1 - x.sigmoid()),
    "gelu": lambda x: (2 - x**2) * (-(x**2) / 2).exp() / (2 * torch.pi) ** 0.5,
    "silu": lambda x: (s := x.sigmoid()) * (1 - s) * (2 + x * (1 - 2 * s)),
}


@pytest.mark.parametrize("name", SECOND)
def test_residual_of_activations_by_hand(name: str) -> None:
    module, x = made(name)
    g, v = vectors(*x.shape)[0], vectors(*x.shape)
    close(residual_mat_prod(module, x, g, v), g * SECOND[name](x) * v)


@pytest.mark.parametrize("name", ["batch norm 1d, training", "dropout", "conv2d"])
def test_nothing_is_left_behind(name: str) -> None:
    module, x = made(name)
    calls: list[Any] = []
    module.register_forward_hook(lambda *_: calls.append(1))
    x.requires_grad_()
    before = {n: t.clone() for n, t in module.state_dict().items()}
    random = torch.get_rng_state()
    v = vectors(*rerun(module, x).shape)
    calls.clear()
    torch.set_rng_state(random)
    with torch.no_grad():
        jac_mat_prod(module, x, vectors(*x.shape))
        jac_t_mat_prod(module, x, v)
        residual_mat_prod(module, x, v[0], vectors(*x.shape))
        for parameter, _ in module.named_parameters():
            param_jac_t_mat_prod(module, x, parameter, v)
    assert torch.equal(torch.get_rng_state(), random)
    assert not calls
    assert module.training
    assert x.grad is None
    assert all(p.grad is None and p.requires_grad for p in module.parameters())
    assert all(torch.equal(before[n], t) for n, t in module.state_dict().items())


def test_parameters_of_an_embedding() -> None:
    module, x = nn.Embedding(5, 2).double(), torch.tensor([[0, 3], [3, 3], [1, 4]])
    v = vectors(3, 2, 2)
    parts = param_jac_t_mat_prod(module, x, "weight", v, sum_batch=False)
    one_hot = nn.functional.one_hot(x, 5).double()
    close(parts, torch.einsum("ntk,vntd->vnkd", one_hot, v))
    close(param_jac_t_mat_prod(module, x, "weight", v), parts.sum(1))
    w = vectors(5, 2)
    close(param_jac_mat_prod(module, x, "weight", w), w[:, x])
    with pytest.raises(ValueError, match=r"inputs of torch\.int64.*weight"):
        jac_mat_prod(module, x, v)


def test_parameters_of_submodules() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    x, v = torch.randn(N, 3, dtype=torch.float64), vectors(N, 2)
    J = jacobian(lambda p: functional_call(module, {"0.weight": p}, (x,)), module[0].weight)
    expected = torch.einsum("nkop,vnk->vop", J, v)
    with pytest.raises(Unsupported, match=r"0\.weight is frozen, or a submodule's"):
        param_jac_t_mat_prod(module, x, "0.weight", v, sum_batch=False)
    close(param_jac_t_mat_prod(module, x, "0.weight", v), expected)


def test_a_module_of_ones_own() -> None:
    class Coupled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(3, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return x * x.mean(0) * self.w.exp()

    module, x = Coupled(), torch.randn(N, 3, dtype=torch.float64)
    J = jacobian(module, x).reshape(3 * N, 3 * N)
    v = vectors(N, 3)
    close(jac_t_mat_prod(module, x, v).flatten(1), v.flatten(1) @ J)
    with pytest.raises(Unsupported, match="does not depend on that sample alone"):
        param_jac_t_mat_prod(module, x, "w", v, sum_batch=False)


def test_what_does_not_fit_is_refused() -> None:
    module, x = nn.Linear(3, 2), torch.randn(N, 3)
    with pytest.raises(ValueError, match=r"shape \[4, 3\]; they must have \[V, 4, 3\]"):
        jac_mat_prod(module, x, x)
    with pytest.raises(ValueError, match=r"must have \[V, 4, 2\]"):
        param_jac_t_mat_prod(module, x, "bias", torch.randn(V, N, 3), sum_batch=False)
    with pytest.raises(ValueError, match=r"no parameter 'wait'.*'weight', 'bias'"):
        param_jac_mat_prod(module, x, "wait", x)
    with pytest.raises(ValueError, match=r"upstream gradient has shape \[1\].*\[4, 2\]"):
        residual_mat_prod(module, x, torch.ones(1), x.unsqueeze(0))
    with pytest.raises(TypeError, match="must be a tensor"):
        jac_mat_prod(module, [x], x)  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match="returns a tuple"):
        jac_mat_prod(nn.MaxPool1d(2, return_indices=True), x, x.unsqueeze(0))
    module.requires_grad_(False)
    v = torch.randn(V, N, 2)
    assert param_jac_t_mat_prod(module, x, "weight", v).shape == (V, 2, 3)
    with pytest.raises(Unsupported, match="weight is frozen"):
        param_jac_t_mat_prod(module, x, "weight", v, sum_batch=False)
