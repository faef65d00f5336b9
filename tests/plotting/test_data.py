"""Panels as plain data: ready for JSON, thinned without losing a spike, computed one by one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from cockpit.errors import InvalidArgument
from cockpit.instruments import (
    INSTRUMENTS,
    Band,
    Bars,
    Heat,
    Line,
    Panel,
    Points,
    Reference,
    available,
    panel_data,
    panel_of,
    panels,
    thinned,
)
from cockpit.instruments.thinning import thin_cells, thin_line, thin_points
from cockpit.log import ParameterInfo, Row, RunWriter
from cockpit.run import Run, open_run

X = np.arange(10.0)
LONG = 50_000


def panel(*marks: object, **settings: object) -> Panel:
    return Panel("Title", "GRADIENTS", "Read it like this.", marks, **settings)  # type: ignore[arg-type]


def write(path: Path, *steps: list[Row], parameters: tuple[str, ...] = ("a", "b")) -> Run:
    writer = RunWriter(path, parameters=[ParameterInfo(p, (2,), "float32") for p in parameters])
    for step, rows in enumerate(steps):
        writer.record(step, rows)
    writer.close()
    return open_run(path)


# names


def test_names_are_unique_and_fit_into_an_address() -> None:
    names = [item.name for item in INSTRUMENTS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)
    assert {"alpha", "grad-norm", "hess-max-ev", "loss"} <= set(names)


def test_a_panel_has_the_name_and_the_quantities_of_its_instrument(tmp_path: Path) -> None:
    run = write(tmp_path / "run.db", [Row("Loss", 1.0), Row("mine", 2.0)])
    loss, mine = panels(run)
    assert (loss.name, loss.quantities[0]) == ("loss", "Loss")
    assert (mine.name, mine.quantities) == ("quantity:mine", ("mine",))


def test_one_panel_by_its_name_or_by_its_quantity(tmp_path: Path) -> None:
    run = write(tmp_path / "run.db", [Row("Alpha", 0.5), Row("mine", 2.0)])
    assert panel_of(run, "alpha").title == "Step length α"
    assert panel_of(run, "Alpha").name == "alpha"
    assert panel_of(run, "mine").name == "quantity:mine"
    with pytest.raises(InvalidArgument, match=r"no picture 'alpa'; .* alpha.*Did you mean 'alpha'"):
        panel_of(run, "alpa")
    with pytest.raises(InvalidArgument, match="no data for a picture of 'loss'"):
        panel_of(run, "loss")
    with pytest.raises(InvalidArgument, match="no data for a picture of 'alpha-fit'"):
        panel_of(run, "alpha-fit")


def test_the_list_of_panels_reads_no_values_and_one_panel_only_its_own(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    rows = [Row("Loss", 1.0), Row("Alpha", 0.5), *(Row("GradNorm", 1.0, "", p) for p in "ab")]
    write(path, rows, rows)
    read: list[tuple[str, str]] = []

    class Counting(Run):
        def curve(self, quantity: str, part: str = "") -> tuple[np.ndarray, np.ndarray]:
            read.append((quantity, part))
            return super().curve(quantity, part)

        def scalars(self, quantity: str | None = None) -> object:
            raise AssertionError("frames are for people")

    run = Counting(path)
    names = [item.name for item in available(run)]
    assert names == [
        "alpha",
        "alpha-distribution",
        "alpha-fit",
        "grad-norm",
        "grad-norm-layers",
        "loss",
    ]
    assert read == []
    panel_of(run, "loss")
    assert read == [("Loss", "")]


# plain data


def test_every_kind_of_mark_is_plain_data() -> None:
    shown = panel(
        Line(X, X, "one", "green", "dashed"),
        Band(X, X, X + 1),
        Points(X, X, faint=True),
        Bars(np.arange(11.0), X, outline=True),
        Heat(X, np.ones((2, 10)), "norm", names=("a", "b"), limits=(0.0, 1.0)),
        Heat(X, np.ones((2, 10)), "count", edges=np.arange(3.0), scale="log"),
        Reference(2.0, "two", "x"),
        unit="s",
        x_range=(0.0, 5.0),
    )
    data = json.loads(json.dumps(panel_data(shown), allow_nan=False))
    kinds = ["line", "band", "points", "bars", "heat", "heat", "reference"]
    assert [mark["kind"] for mark in data["marks"]] == kinds
    assert data["marks"][0] == {
        "kind": "line",
        "x": X.tolist(),
        "y": X.tolist(),
        "label": "one",
        "color": "green",
        "style": "dashed",
    }
    assert data["marks"][4]["names"] == ["a", "b"]
    assert data["marks"][4]["edges"] is None
    assert data["marks"][5]["edges"] == [0, 1, 2]
    assert data["marks"][6] == {"kind": "reference", "value": 2.0, "label": "two", "axis": "x"}
    assert (data["title"], data["unit"], data["x_range"]) == ("Title", "s", [0.0, 5.0])
    assert data["over_steps"] is True


def test_json_has_no_nan_and_no_infinities() -> None:
    y = np.array([1.0, np.nan, np.inf, -np.inf])
    heat = Heat(X[:2], np.array([[np.nan, 1.0], [np.inf, 2.0]]), "value", names=("a", "b"))
    data = panel_data(panel(Line(X[:4], y), heat, Reference(np.inf), x_range=(0.0, np.inf)))
    line, cells, reference = json.loads(json.dumps(data, allow_nan=False))["marks"]
    assert line["y"] == [1.0, None, "inf", "-inf"]
    assert cells["values"] == [[None, 1.0], ["inf", 2.0]]
    assert reference["value"] == "inf"
    assert data["x_range"] == [0.0, "inf"]


def test_values_have_seven_digits_and_steps_all_of_theirs() -> None:
    x, y = np.array([0.0, 123_456_789.0]), np.array([1 / 3, -2e-300 / 3])
    (line,) = panel_data(panel(Line(x, y)))["marks"]
    assert line["x"] == [0.0, 123_456_789.0]
    np.testing.assert_allclose(line["y"], y, rtol=1e-6)
    assert len(repr(line["y"][0])) <= 10


# thinning


def noisy() -> np.ndarray:
    y = np.random.default_rng(0).normal(size=LONG)
    y[[777, 31_415]], y[22_222], y[40_000] = (50, -50), np.nan, np.inf
    return y


def test_thinned_lines_and_bands_keep_spikes_and_gaps() -> None:
    x, y = np.arange(float(LONG)), noisy()
    line, band = thinned(panel(Line(x, y), Band(x, y - 1, y + 1)), width=300).marks
    assert len(line.x) <= 900
    assert len(band.x) <= 1800
    assert {0, 777, 31_415, 22_222, LONG - 1} <= set(line.x)
    assert {777, 31_415} <= set(band.x)
    assert np.isnan(line.y[line.x == 22_222]).all()


@pytest.mark.parametrize("limit", [10, 100, 2000])
def test_thinning_keeps_both_ends_of_every_column(limit: int) -> None:
    x, y = np.arange(float(LONG)), noisy()
    keep = thin_line(x, y, limit=limit)
    assert len(keep) <= limit
    columns = (limit - 2) // 3
    of = np.minimum(x / x[-1] * columns, columns - 1).astype(int)
    for column in range(columns):
        inside, kept = y[of == column], y[keep][of[keep] == column]
        inside, kept = inside[np.isfinite(inside)], kept[np.isfinite(kept)]
        assert (inside.min(), inside.max()) == (kept.min(), kept.max())


def test_a_zoom_shows_all_within_and_a_neighbour_on_either_side() -> None:
    x, y = np.arange(float(LONG)), noisy()
    heat = Heat(x, y[None], "value", names=("a",))
    zoomed = thinned(panel(Line(x, y), heat, Points(x, y)), width=300, x_range=(100.5, 110.0))
    line, cells, points = zoomed.marks
    assert line.x.tolist() == cells.x.tolist() == list(range(100, 112))
    assert points.x.tolist() == list(range(101, 111))
    assert zoomed.x_range == (100.5, 110.0)
    beyond = thinned(panel(Line(x, y)), x_range=(1e6, 2e6)).marks[0]
    assert beyond.x.tolist() == [LONG - 1]


@pytest.mark.parametrize("arguments", [{"width": 0}, {"x_range": (2.0, 1.0)}])
def test_no_width_and_no_range_are_refused(arguments: dict) -> None:
    with pytest.raises(InvalidArgument, match="got"):
        thinned(panel(Line(X, X)), **arguments)


def test_heat_maps_of_many_layers_keep_their_names_and_their_spikes() -> None:
    names = tuple(f"blocks.{i}.weight" for i in range(250))
    values = np.random.default_rng(0).random((250, 5000))
    values[249, 4321] = 99.0
    shown = panel(Heat(np.arange(5000.0), values, "norm", names=names))
    (heat,) = thinned(shown, width=200).marks
    assert heat.values.shape == (250, len(heat.x))
    assert len(heat.x) <= 200
    assert heat.names == names
    row, column = np.unravel_index(heat.values.argmax(), heat.values.shape)
    assert row == 249
    assert abs(heat.x[column] - 4321) < 25
    json.dumps(panel_data(thinned(shown, width=200)), allow_nan=False)


def test_merged_cells_show_the_largest_magnitude_also_of_negative_values() -> None:
    values = np.zeros((1, 4000))
    values[0, [100, 3000]] = -7.0, 5.0
    _, thin = thin_cells(np.arange(4000.0), values, limit=100)
    assert (thin.min(), thin.max()) == (-7.0, 5.0)


def test_points_that_cover_each_other_are_one() -> None:
    x, y = np.random.default_rng(0).random((2, LONG))
    x[5], y[5] = 3.0, 3.0
    keep = thin_points(x, y, 60, 40)
    assert len(keep) <= 60 * 40
    assert 5 in keep
    assert thin_points(x[:10], y[:10], 60, 40).tolist() == list(range(10))
    bad = np.where(np.arange(LONG) == 9, np.inf, y)
    assert 9 in thin_points(x, bad, 60, 40)
