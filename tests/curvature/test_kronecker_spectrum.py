"""Kronecker-factored curvature in the training loop, against dense factors and BackPACK's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from backpack import backpack, extend, extensions
from curvature.chains import LOSSES, MODELS, made
from curvature.networks import CASES
from torch import Tensor, nn

from cockpit import Cockpit, CockpitWarning
from cockpit.curvature import Kronecker, kronecker_factors
from cockpit.quantities import KroneckerSpectrum, Quantity

KEYS = ("largest", "trace", "effective_rank", "condition")


def spectrum(product: Kronecker) -> dict[str, float]:
    """The values of one parameter, from the dense product."""
    values = torch.linalg.eigvalsh(product.dense()).clamp(min=0)
    share = values / values.sum()
    return {
        "largest": values[-1].item(),
        "trace": values.sum().item(),
        "effective_rank": torch.special.entr(share).sum().exp().item(),
        "condition": ((values[-1] + 1e-3) / (values[0] + 1e-3)).item(),
    }


def tracked(
    model: nn.Module, forward: Callable[[], Tensor], quantity: Quantity, reduction: str = "mean"
) -> dict[str, Any]:
    watch = Cockpit(model, [quantity], reduction=reduction)
    random = torch.get_rng_state()
    loss = forward()
    with watch(0, loss=loss):
        loss.backward()
    watch.close()
    assert torch.equal(random, torch.get_rng_state())
    return watch.get_output()[0]["KroneckerSpectrum"]


def compare(found: dict[str, Any], products: dict[str, Kronecker]) -> None:
    for key in KEYS:
        expected = [spectrum(product)[key] for product in products.values()]
        assert found[key] == pytest.approx(expected, rel=1e-6), key


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("approximation", ["kflr", "kfra"])
def test_exact_factors_on_the_graph(approximation: str, name: str, loss: str) -> None:
    """Those that `kronecker_factors`, which is tested against dense matrices, gets by running the model."""
    model, x, y = made(name)
    expected = kronecker_factors(model, LOSSES[loss], x, y, approximation)
    quantity = KroneckerSpectrum(approximation=approximation)
    compare(tracked(model, lambda: LOSSES[loss](model(x), y), quantity), expected)


@pytest.mark.parametrize("approximation", ["kfac", "kflr", "kfra"])
def test_a_sum_gives_the_curvature_of_the_mean(approximation: str) -> None:
    model, x, y = made("mlp")
    found = []
    for reduction in ("mean", "sum"):
        quantity = KroneckerSpectrum(approximation=approximation)
        forward = partial(lambda r: F.cross_entropy(model(x), y, reduction=r), reduction)
        found.append(tracked(model, forward, quantity, reduction))
    for key in KEYS:
        assert found[1][key] == pytest.approx(found[0][key], rel=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_sampled_factors(name: str) -> None:
    """The trace is that of KFLR in expectation, within four standard errors."""
    model, x, y = made(name)
    exact = kronecker_factors(model, F.cross_entropy, x, y, "kflr")
    x, y = x.repeat(40, *[1] * (x.dim() - 1)), y.repeat(40)
    watch = Cockpit(model, [KroneckerSpectrum()])
    for step in range(20):
        loss = F.cross_entropy(model(x), y)
        with watch(step, loss=loss):
            loss.backward()
    output = watch.get_output()
    traces = torch.tensor([output[s]["KroneckerSpectrum"]["trace"] for s in range(20)]).double()
    error = traces.std(0) / 20**0.5
    expected = torch.stack([product.trace() for product in exact.values()])
    assert ((traces.mean(0) - expected).abs() <= 4 * error).all()


class Pooled(nn.Sequential):
    """Convolutions with padding and stride, and max-pooling."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 3, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(3, 2, 2, stride=2),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(2, 3),
        )


def test_factors_of_backpack() -> None:
    """KFLR of a convolutional network in double precision; without hooks, and with BackPACK's."""
    torch.manual_seed(0)
    model, x, y = Pooled().double(), torch.randn(5, 1, 4, 4).double(), torch.randint(3, (5,))
    quantity = KroneckerSpectrum(approximation="kflr")
    found = tracked(model, lambda: F.cross_entropy(model(x), y), quantity)
    extend(model)
    module, x = extend(nn.CrossEntropyLoss()), x.requires_grad_()
    hooked = tracked(model, lambda: module(model(x), y), quantity)
    with backpack(extensions.KFLR()):
        module(model(x), y).backward()
    expected = {n: Kronecker(*p.kflr) for n, p in model.named_parameters()}
    compare(found, expected)
    compare(hooked, expected)


def test_kfra_with_max_pooling() -> None:
    """Which BackPACK does not have in double precision."""
    torch.manual_seed(0)
    model, x, y = Pooled().double(), torch.randn(5, 1, 4, 4).double(), torch.randint(3, (5,))
    expected = kronecker_factors(model, F.cross_entropy, x, y, "kfra")
    quantity = KroneckerSpectrum(approximation="kfra")
    compare(tracked(model, lambda: F.cross_entropy(model(x), y), quantity), expected)


@pytest.mark.parametrize(("approximation", "source"), [("kflr", "graph"), ("kfra", "backpack")])
def test_bare_parameters_of_an_extended_model(approximation: str, source: str) -> None:
    model, x, y = made("mlp")
    expected = kronecker_factors(model, F.cross_entropy, x, y, approximation)
    twin, module = extend(model), extend(nn.CrossEntropyLoss())
    loss = module(twin(x.requires_grad_()), y)
    watch = Cockpit(twin.named_parameters(), [KroneckerSpectrum(approximation=approximation)])
    with watch(0, loss=loss):
        loss.backward()
    compare(watch.get_output()[0]["KroneckerSpectrum"], expected)
    assert watch.run().events()["message"][0] == f"curvature: {approximation}; source: {source}"
    assert not any(hasattr(p, approximation) for p in twin.parameters())


@pytest.mark.parametrize("approximation", ["kfac", "kflr"])
def test_what_has_no_factors_is_left_out(approximation: str) -> None:
    """The convolution that is called twice, normalisations, embeddings, shared weights."""
    case = CASES["residual, shared and unused parts"]()
    watch = Cockpit(case.model, [KroneckerSpectrum(approximation=approximation)])
    loss = case.individual_losses().mean()
    with watch(0, loss=loss):
        loss.backward()
    parts = watch.run().scalars("KroneckerSpectrum")["part"]
    names = {part.removeprefix("largest/") for part in parts if part.startswith("largest/")}
    assert names == {"head.weight", "head.bias"}


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.first(x))


@pytest.mark.parametrize(
    ("make", "approximation", "message"),
    [
        (normalised, "kfac", r"1 normalises with the statistics of the batch"),
        (Branches, "kfra", r"no chain of layers.*'kfac' or 'kflr'"),
        (lambda: nn.Linear(4, 600), "kflr", r"each of the 600 outputs.*approximation='kfac'"),
        (lambda: nn.PReLU(), "kfac", "no parameter has Kronecker factors"),
    ],
)
def test_what_cannot_be_had_is_not_checked(make: Any, approximation: str, message: str) -> None:
    torch.manual_seed(0)
    model, x = make(), torch.randn(5, 4)
    watch = Cockpit(model, [KroneckerSpectrum(approximation=approximation)])
    z = model(x)
    loss = F.mse_loss(z, torch.zeros_like(z)) if len(z[0]) > 10 else z.square().mean()
    with pytest.warns(CockpitWarning, match=message), watch(0, loss=loss):
        loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_kfra_refuses_large_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cockpit.engine.kronecker.MOST_ELEMENTS", 10)
    model, x, y = made("mlp")
    watch = Cockpit(model, [KroneckerSpectrum(approximation="kfra")])
    loss = F.cross_entropy(model(x), y)
    with (
        pytest.warns(CockpitWarning, match=r"the Jacobian of layer 1.*'kfac'"),
        watch(0, loss=loss),
    ):
        loss.backward()
