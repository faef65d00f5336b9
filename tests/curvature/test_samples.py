"""Curvature of a part of the mini-batch, from a closure, against the dense matrices of that part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from curvature.networks import CASES, Case, flat_gradient, mlp
from torch import Tensor, nn

from cockpit import Cockpit, CockpitWarning
from cockpit.quantities import (
    CriticalSharpness,
    DirectionalCurvature,
    HessianSpectrum,
    HessMaxEV,
    HessTrace,
    PreconditionedSharpness,
    Quantity,
)

M = 3

REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": Tensor.mean,
    "sum": Tensor.sum,
    "weighted mean": lambda losses: (
        (losses * torch.arange(1, 1 + len(losses))).sum() / torch.arange(1, 1 + len(losses)).sum()
    ),
}


def closure_of(case: Case, reduce: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def closure(samples: slice = slice(None)) -> Tensor:
        return reduce(case.losses(case.model(case.x[samples]), case.y[samples]))

    return closure


def watched(case: Case, *quantities: Quantity, reduction: str = "mean", **options: Any) -> Cockpit:
    reduce = REDUCTIONS[reduction]
    watch = Cockpit(case.model, quantities, **options)
    losses = case.individual_losses()
    loss = reduce(losses)
    with watch(0, loss=loss, individual_losses=losses, closure=closure_of(case, reduce)):
        loss.backward()
    watch.close()
    return watch


def part_of(case: Case) -> Case:
    return Case(case.model, case.x[:M], case.y[:M], case.losses)


def value_of(watch: Cockpit, name: str) -> Any:
    return watch.get_output()[0][name]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", CASES)
def test_largest_eigenvalue(name: str, reduction: str) -> None:
    case = CASES[name]()
    quantities = [HessMaxEV(tol=1e-9, max_samples=M), HessMaxEV(tol=1e-9)]
    watch = watched(case, *quantities, reduction=reduction)
    for found, truth in (("HessMaxEV", part_of(case)), ("HessMaxEV-2", case)):
        expected = torch.linalg.eigvalsh(truth.hessian())[-1].item()
        assert value_of(watch, found) == pytest.approx(expected, rel=1e-6)
    samples = [watch.run().series(q, "samples")[0] for q in ("HessMaxEV", "HessMaxEV-2")]
    assert samples == [M, len(case.x)]


def test_weights_of_the_samples() -> None:
    case = mlp()
    watch = watched(case, HessMaxEV(tol=1e-9, max_samples=M), reduction="weighted mean")
    weights = torch.arange(1.0, M + 1).double()
    part = part_of(case)
    part.losses = lambda z, y: case.losses(z, y) * weights * M / weights.sum()
    expected = torch.linalg.eigvalsh(part.hessian())[-1].item()
    assert value_of(watch, "HessMaxEV") == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("curvature", ["hutchinson", "hutch++"])
def test_trace(curvature: str, reduction: str) -> None:
    case = mlp()
    quantity = HessTrace(curvature=curvature, probes=60, max_samples=M)
    watch = watched(case, quantity, reduction=reduction)
    expected = [b.sum().item() for b in case.by_parameter(part_of(case).hessian().diagonal())]
    rows = watch.run().scalars()
    errors = rows[rows["part"].str.startswith("standard_error/")]["value"]
    for found, truth, error in zip(value_of(watch, "HessTrace"), expected, errors, strict=True):
        assert found == pytest.approx(truth, abs=4 * error + 1e-9)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_spectrum(reduction: str) -> None:
    case = mlp()
    D = sum(p.numel() for p in case.parameters().values())
    quantity = HessianSpectrum(probes=2, steps=D, max_samples=M)
    found = value_of(watched(case, quantity, reduction=reduction), "HessianSpectrum")
    eigenvalues = torch.linalg.eigvalsh(part_of(case).hessian())
    assert found["largest"] == pytest.approx(eigenvalues[-1].item(), rel=1e-6)
    assert found["smallest"] == pytest.approx(eigenvalues[0].item(), rel=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_along_the_gradient(reduction: str) -> None:
    """With the gradient of the same samples."""
    case = mlp()
    watch = watched(case, DirectionalCurvature(max_samples=M), reduction=reduction)
    part = part_of(case)
    g = flat_gradient(part.individual_losses().mean(), list(case.parameters().values()))
    expected = (g @ part.hessian() @ g / (g @ g)).item()
    found = value_of(watch, "DirectionalCurvature")["gradient"]
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_sharpness_in_the_metric_of_the_optimizer(reduction: str) -> None:
    case = mlp()
    opt = torch.optim.SGD(case.model.parameters(), lr=0.1)
    quantity = PreconditionedSharpness(tol=1e-9, max_samples=M)
    watch = watched(case, quantity, reduction=reduction, optimizer=opt)
    expected = torch.linalg.eigvalsh(part_of(case).hessian())[-1].item()
    found = value_of(watch, "PreconditionedSharpness")["sharpness"]
    assert found == pytest.approx(expected, rel=1e-6)


class Quadratics(nn.Module):
    """A loss (w·x_n)² for every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.w).square()


def test_sharpness_along_the_update() -> None:
    """2/η_c with η_c such that L(θ − η_c g) = L(θ), for L of the first samples and g of all."""
    torch.manual_seed(0)
    model, x = Quadratics(), torch.randn(6, 3).double()
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = Cockpit(model, [CriticalSharpness(max_samples=M)], optimizer=opt)
    loss = model(x).mean()
    (g,) = torch.autograd.grad(loss, model.w, retain_graph=True)
    (of_part,) = torch.autograd.grad(model(x[:M]).mean(), model.w)
    H = 2 * x[:M].T @ x[:M] / M
    with watch(0, loss=loss, closure=lambda samples=slice(None): model(x[samples]).mean()):
        loss.backward()
    opt.step()
    critical = 2 * (g @ of_part) / (g @ H @ g)
    found = watch.get_output()[0]["CriticalSharpness"]
    assert found == pytest.approx(2 / critical.item(), rel=1e-6)


def test_small_mini_batches_are_taken_whole() -> None:
    """From the graph, without a closure."""
    case = mlp()
    watch = Cockpit(case.model, [HessMaxEV(tol=1e-9, max_samples=len(case.x))])
    loss = case.individual_losses().mean()
    with watch(0, loss=loss):
        loss.backward()
    expected = torch.linalg.eigvalsh(case.hessian())[-1].item()
    assert value_of(watch, "HessMaxEV") == pytest.approx(expected, rel=1e-6)
    assert "source: graph" in watch.run().events()["message"][0]


def test_a_closure_that_has_to_be_given_its_samples() -> None:
    """Serves for the whole mini-batch, too."""
    case = mlp()
    watch = Cockpit(case.model, [HessMaxEV(tol=1e-9, max_samples=M)])
    loss = case.individual_losses().mean()
    closure = closure_of(case, Tensor.mean)
    with watch(0, loss=loss, closure=lambda samples: closure(samples)):
        loss.backward()
    expected = torch.linalg.eigvalsh(part_of(case).hessian())[-1].item()
    assert value_of(watch, "HessMaxEV") == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("closure", "message"),
    [
        (None, r"max_samples=3 needs info\['closure'\].*def closure\(samples=slice\(None\)\)"),
        (lambda case: lambda: case.individual_losses().mean(), r"takes none; write it as def"),
        (
            lambda case: lambda samples=None: case.individual_losses().mean(),
            r"called the model with all of it; write it as def closure",
        ),
    ],
)
def test_closures_that_do_not_serve(closure: Any, message: str) -> None:
    case = mlp()
    watch = Cockpit(case.model, [HessMaxEV(max_samples=M)])
    loss = case.individual_losses().mean()
    given = None if closure is None else closure(case)
    with pytest.warns(CockpitWarning, match=message), watch(0, loss=loss, closure=given):
        loss.backward()
    assert watch.get_output() == {}
    assert all(p.grad is not None for p in case.model.parameters())


def test_a_number_of_samples_that_is_not_known() -> None:
    case = mlp()
    watch = Cockpit(list(case.model.named_parameters()), [HessMaxEV(max_samples=M)])
    loss = case.individual_losses().mean()
    with (
        pytest.warns(CockpitWarning, match="number of samples is not known; give it as info="),
        watch(0, loss=loss, closure=closure_of(case, Tensor.mean)),
    ):
        loss.backward()


def test_settings_are_checked() -> None:
    for make, message in (
        (lambda: HessMaxEV(max_samples=0), "HessMaxEV needs max_samples of at least 1, or None"),
        (lambda: CriticalSharpness(max_samples=-1), "CriticalSharpness needs max_samples"),
        (lambda: HessTrace(max_samples=3), "max_samples must be None.*'hutchinson'"),
        (lambda: HessMaxEV(matrix="fisher"), "no matrix 'fisher'.*'hessian', 'ggn'"),
        (lambda: HessianSpectrum(matrix="fisher"), "no matrix 'fisher'"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
