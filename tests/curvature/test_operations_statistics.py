"""Diagonals of the curvature and second moments of individual gradients, element by element, for Conv and Linear."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from backpack import extend
from curvature.networks import Case, cross_entropy, flat_gradient
from torch import Tensor, nn

from cockpit import Cockpit
from cockpit.engine.curvature import DIAGONALS, diagonal
from cockpit.engine.step import Step
from cockpit.quantities import Quantity
from cockpit.transforms import Gram, Need, SquareNorms, SumOfSquares

N = 4
ROOT = Path(__file__).parents[2]


def case(n: int = N) -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 2, padding=1),
        nn.Sigmoid(),
        nn.Conv2d(3, 2, 2, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(8, 3),
    ).double()
    x, y = torch.randn(N, 2, 3, 3, dtype=torch.float64), torch.randint(3, (N,))
    return Case(model, x.repeat(n // N, 1, 1, 1), y.repeat(n // N), cross_entropy)


@dataclass(frozen=True)
class Whole(Quantity):
    """A need as it is, for every parameter."""

    need: Need = field(default_factory=SumOfSquares)

    def needs(self) -> tuple[Need, ...]:
        return (self.need,)

    def compute(self, step: Step) -> Any:
        return step[self.need]


def tracked(case: Case, need: Need, reduction: str) -> list[Tensor]:
    """What a need gives for each parameter, flat."""
    extend(case.model)
    module = extend(nn.CrossEntropyLoss(reduction=reduction))
    watch = Cockpit(case.model, [Whole(need=need)])
    outputs = case.model(case.x.requires_grad_())
    loss, losses = module(outputs, case.y), case.losses(outputs, case.y)
    with watch(0, loss=loss, individual_losses=losses):
        loss.backward()
    found = watch.get_output()[0]["Whole"]
    watch.close()
    return [torch.as_tensor(values, dtype=torch.float64).flatten() for values in found]


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("curvature", ["diag_ggn_exact", "diag_h"])
def test_exact_diagonals(curvature: str, reduction: str) -> None:
    truth = case().ggn() if curvature == "diag_ggn_exact" else case().hessian()
    found = tracked(case(), diagonal(curvature), reduction)
    for values, expected in zip(found, case().by_parameter(truth.diagonal()), strict=True):
        close(values, expected)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_sampled_diagonal(reduction: str) -> None:
    """Within four standard errors, from independent draws for copies of the samples."""
    copies, draws = 50, 20
    watched = case(copies * N)
    watch = Cockpit(watched.model, [Whole(need=diagonal("auto"))])
    for step in range(draws):
        losses = watched.individual_losses()
        loss = losses.mean() if reduction == "mean" else losses.sum()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
    samples = [
        torch.cat([torch.as_tensor(v, dtype=torch.float64).flatten() for v in output["Whole"]])
        for output in watch.get_output().values()
    ]
    watch.close()
    values = torch.stack(samples)  # [draws, D]
    error = values.std(0) / draws**0.5
    assert ((values.mean(0) - case().ggn().diagonal()).abs() <= 4 * error + 1e-12).all()


MOMENTS: dict[str, tuple[Need, Callable[[Tensor], Tensor]]] = {
    "second moment": (SumOfSquares(), lambda g: g.square().sum(0)),
    "norms": (SquareNorms(), lambda g: g.square().sum(1)),
    "pairwise products": (Gram(), lambda g: g @ g.T),
}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", MOMENTS)
def test_moments_of_individual_gradients(name: str, reduction: str) -> None:
    need, formula = MOMENTS[name]
    truth = case()
    parameters = list(truth.parameters().values())
    G = torch.stack([flat_gradient(loss, parameters) for loss in truth.individual_losses()])
    sizes = [p.numel() for p in parameters]
    found = tracked(case(), need, reduction)
    for values, gradients in zip(found, G.split(sizes, dim=1), strict=True):
        close(values, formula(gradients).flatten())


# -- the table in the docs


def rows() -> list[list[str]]:
    text = (ROOT / "docs" / "curvature-operations.md").read_text()
    cells = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return cells[2:]  # without the head


def test_the_table_has_every_operation() -> None:
    assert len(rows()) == 17
    for operation, where, tests in rows():
        assert operation.strip()
        assert "`" in where
        assert "`" in tests


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0].strip()[:40])
def test_what_the_table_names_is_there(row: list[str]) -> None:
    _, where, tests = row
    for name in re.findall(r"`([A-Za-z_]\w*(?:\.\w+)+)`", where):
        module, _, attribute = name.rpartition(".")
        try:
            owner: Any = import_module(module)
        except ModuleNotFoundError:  # a method
            package, _, kind = module.rpartition(".")
            owner = getattr(import_module(package), kind)
        assert hasattr(owner, attribute), name
    for setting in re.findall(r'`curvature="(\w+)"`', where):
        assert setting in DIAGONALS
    for file, name in re.findall(r"`(tests/\S+\.py)::(\w+)`", tests):
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), name
