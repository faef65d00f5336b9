"""Curvature: the words for the matrix, and the bound that belongs to the optimizer of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cockpit import Cockpit, quantities
from cockpit.instruments import Line, Panel, panel_of
from cockpit.log import ParameterInfo, Row, RunWriter
from cockpit.run import Run, open_run

RATE = 0.1


def write(path: Path, rows: list[Row], *, optimizers: list[dict[str, Any]], **bases: str) -> Run:
    parameters = [ParameterInfo(name, (2,), "float32") for name in ("a", "b")]
    writer = RunWriter(path / "run.db", settings={"optimizers": optimizers}, parameters=parameters)
    for step in range(2):
        writer.record(step, [*rows, Row("learning_rate", RATE)])
    for quantity, basis in bases.items():
        writer.note(0, "basis", quantity, basis)
    writer.close()
    return open_run(writer.path)


def dashed(panel: Panel) -> list[Line]:
    return [mark for mark in panel.marks if isinstance(mark, Line) and mark.style == "dashed"]


def bounds(tmp_path: Path, name: str, *optimizers: dict[str, Any]) -> list[Line]:
    rows = [Row("HessMaxEV", 3.0), Row("DirectionalCurvature", 1.0, "gradient")]
    return dashed(panel_of(write(tmp_path, rows, optimizers=list(optimizers)), name))


@pytest.mark.parametrize(
    ("settings", "momentum", "dampening", "nesterov", "label"),
    [
        ({}, 0.0, 0.0, False, "2/η"),
        ({"momentum": 0.9}, 0.9, 0.0, False, "(2+2β)/η"),
        ({"momentum": 0.9, "dampening": 0.5}, 0.9, 0.5, False, "(2+2β)/((1−d)η)"),
        ({"momentum": 0.8, "nesterov": True}, 0.8, 0.0, True, "(2+2β)/((1+2β)η)"),
    ],
)
def test_the_bound_is_where_the_optimizer_begins_to_diverge(
    tmp_path: Path, settings: dict, momentum: float, dampening: float, nesterov: bool, label: str
) -> None:
    """Decided by the optimizer itself, on quadratics just below and above the bound."""
    (line,) = bounds(tmp_path, "hess-max-ev", {"class": "SGD", **settings})
    assert line.label == label
    for share, grows in ((0.98, False), (1.02, True)):
        theta = torch.ones(1, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.SGD([theta], lr=RATE, **settings)
        for _ in range(1500):
            optimizer.zero_grad()
            (0.5 * share * line.y[0] * theta.square()).sum().backward()
            optimizer.step()
        assert (abs(theta.item()) > 1) == grows


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Lion", "Adagrad"])
def test_adaptive_optimizers_have_no_bound_on_the_hessian(tmp_path: Path, name: str) -> None:
    assert bounds(tmp_path, "hess-max-ev", {"class": name, "lr": RATE}) == []
    assert bounds(tmp_path, "directional-curvature", {"class": name, "lr": RATE}) == []


def test_optimizers_that_differ_have_no_one_bound(tmp_path: Path) -> None:
    one, other = {"class": "SGD"}, {"class": "SGD", "momentum": 0.9}
    assert bounds(tmp_path, "hess-max-ev", one, other) == []
    assert len(bounds(tmp_path, "hess-max-ev", other, other)) == 1


def test_along_the_gradient_momentum_does_not_matter(tmp_path: Path) -> None:
    (line,) = bounds(tmp_path, "directional-curvature", {"class": "SGD", "momentum": 0.9})
    np.testing.assert_allclose(line.y, 2 / RATE)


def test_an_unknown_optimizer_gets_the_bound_of_gradient_descent(tmp_path: Path) -> None:
    (line,) = bounds(tmp_path, "hess-max-ev")
    assert line.label == "2/η"


@pytest.mark.parametrize(
    ("basis", "word"),
    [
        ("curvature: hessian; source: graph", "Hessian"),
        ("curvature: ggn; source: graph", "GGN"),
        ("curvature: ggn, sampled; source: graph", "GGN"),
        ("curvature: diag_h; source: backpack", "Hessian"),
        ("curvature: diag_ggn_exact; source: backpack", "GGN"),
    ],
)
def test_pictures_say_which_matrix_it_is(tmp_path: Path, basis: str, word: str) -> None:
    grid = np.linspace(-1, 4, 50)
    rows = [
        Row("HessMaxEV", 3.0),
        Row("HessianSpectrum", grid, "eigenvalues"),
        Row("HessianSpectrum", np.exp(-(grid**2)), "density"),
        Row("TICDiag", 1.0),
        *(Row("HessTrace", 3.0, "", name) for name in "ab"),
    ]
    shown = ("HessMaxEV", "HessTrace", "HessianSpectrum", "TICDiag")
    run = write(tmp_path, rows, optimizers=[], **dict.fromkeys(shown, basis))
    assert panel_of(run, "hess-max-ev").y_label == f"eigenvalue of the {word}"
    assert panel_of(run, "hess-trace").title == f"Trace of the {word}"
    assert panel_of(run, "hess-trace-layers").marks[0].label == f"trace of the {word}"  # type: ignore[union-attr]
    assert panel_of(run, "hessian-spectrum").title == f"Eigenvalues of the {word}"
    assert panel_of(run, "hessian-spectrum-history").y_label == f"eigenvalue of the {word}"
    assert panel_of(run, "tic").marks[0].label == f"diagonal of the {word}"  # type: ignore[union-attr]


@pytest.mark.parametrize(("matrix", "word"), [("hessian", "Hessian"), ("ggn", "GGN")])
def test_the_word_follows_the_setting_in_a_real_training(
    tmp_path: Path, matrix: str, word: str
) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    quantity = quantities.HessMaxEV(matrix=matrix)
    with Cockpit(model, [quantity], optimizer=optimizer, log=tmp_path / "run.db") as watch:
        losses = torch.nn.functional.cross_entropy(
            model(torch.randn(4, 3)), torch.arange(4) % 2, reduction="none"
        )
        loss = losses.mean()
        with watch(0, loss=loss, individual_losses=losses):
            loss.backward()
        watch.log(0, learning_rate=RATE)
    panel = panel_of(open_run(tmp_path / "run.db"), "hess-max-ev")
    assert panel.y_label == f"eigenvalue of the {word}"
    (line,) = dashed(panel)
    np.testing.assert_allclose(line.y, 2 / RATE)
