"""The plotly renderer: figures are checked as data, and by plotly's own schema."""

import base64
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cockpit.demo import train
from cockpit.errors import InvalidArgument
from cockpit.instruments import Band, Bars, Heat, Line, Panel, Points, Reference, panels
from cockpit.instruments.panel import Mark
from cockpit.plotting.plotly import figure
from cockpit.run import open_run

STEPS = np.arange(50.0)
WAVE = np.sin(STEPS / 5)
ROWS = ("conv1.weight", "conv1.bias", "fc.weight")
MARKS: dict[str, Mark] = {
    "line": Line(STEPS, WAVE, "wave"),
    "faint": Line(STEPS, WAVE, "", "orange", "faint"),
    "dashed": Line(STEPS, WAVE, "bound", "neutral", "dashed"),
    "band": Band(STEPS, WAVE - 1, WAVE + 1, "range"),
    "points": Points(STEPS, WAVE, "points", "vermillion"),
    "faint points": Points(STEPS, WAVE, "points", faint=True),
    "bars": Bars(np.linspace(-1, 1, 11), np.arange(10.0), "count"),
    "outline": Bars(np.linspace(-1, 1, 11), np.arange(10.0), "count", outline=True),
    "named heat": Heat(STEPS, np.outer([1, 10, 100], 1 + STEPS), "norm", ROWS, scale="log"),
    "heat": Heat(STEPS, np.outer([1, -1], WAVE), "value", edges=np.array([0.0, 1.0, 3.0])),
    "reference": Reference(0.5, "bound"),
    "upright reference": Reference(5.0, "start", "x"),
}


def panel(*marks: Mark, **settings: object) -> Panel:
    return Panel("Title", "GRADIENTS", "Lower is better.", marks, **settings)  # type: ignore[arg-type]


def values(spec: dict[str, str]) -> np.ndarray:
    flat = np.frombuffer(base64.b64decode(spec["bdata"]), spec["dtype"])
    return flat.reshape([int(n) for n in spec["shape"].split(",")]) if "shape" in spec else flat


@pytest.mark.parametrize("scale", ["linear", "log", "symlog"])
@pytest.mark.parametrize("style", ["light", "dark"])
@pytest.mark.parametrize("mark", MARKS.values(), ids=MARKS)
def test_every_mark_is_a_valid_figure(mark: Mark, style: str, scale: str) -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    drawn = figure(panel(Line(STEPS, WAVE), mark, scale=scale), style=style)
    assert json.loads(json.dumps(drawn, allow_nan=False)) == drawn
    assert len(graph_objects.Figure(drawn).data) == len(drawn["data"])
    seen = len(drawn["data"]) > 1 or bool(drawn["layout"]["shapes"])
    assert seen


@pytest.mark.filterwarnings("ignore::cockpit.errors.CockpitWarning")
def test_every_picture_of_a_real_training_is_a_valid_figure(tmp_path: Path) -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    train(tmp_path / "run.db", preset="full", max_steps=6)
    found = panels(open_run(tmp_path / "run.db"))
    assert len(found) > 15
    for one in found:
        for window in (None, (1.0, 4.0)):
            drawn = figure(one, width=300, window=window)
            json.dumps(drawn, allow_nan=False)
            assert graph_objects.Figure(drawn).data, one.title


def test_lines_keep_values_and_gaps() -> None:
    wave = WAVE.copy()
    wave[10], wave[20] = np.nan, np.inf
    trace, *rest = figure(panel(Line(STEPS, wave, "wave")))["data"]
    x, y = values(trace["x"]), values(trace["y"])
    assert np.array_equal(x, STEPS)
    assert np.flatnonzero(np.isnan(y)).tolist() == [10, 20]
    assert np.array_equal(np.delete(y, [10, 20]), np.delete(wave, [10, 20]))
    edge = rest[-1]
    assert values(edge["x"]).tolist() == [20]
    assert edge["marker"]["symbol"] == "triangle-up"
    assert edge["yaxis"] == "y2"


def test_long_lines_are_thinned_without_losing_a_spike() -> None:
    steps = np.arange(100_000.0)
    wave = np.sin(steps / 1000)
    wave[54_321] = 99.0
    trace = figure(panel(Line(steps, wave)), width=300)["data"][0]
    x, y = values(trace["x"]), values(trace["y"])
    assert len(x) <= 900
    assert y[np.searchsorted(x, 54_321)] == 99.0


def test_a_window_shows_its_steps_in_full_and_lines_run_to_its_edge() -> None:
    steps = np.arange(100_000.0)
    drawn = figure(panel(Line(steps, steps)), width=300, window=(500.5, 600.5))
    assert values(drawn["data"][0]["x"]).tolist() == list(range(500, 602))
    assert drawn["layout"]["xaxis"]["range"] == [500.5, 600.5]


def test_a_window_does_not_cut_what_is_not_over_steps() -> None:
    drawn = figure(panel(MARKS["bars"], x_label="value"), window=(500.0, 600.0))
    assert len(values(drawn["data"][0]["x"])) == 10


def test_a_window_the_wrong_way_round_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="low < high"):
        figure(panel(Line(STEPS, WAVE)), window=(5.0, 5.0))


def test_an_unknown_style_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'light', 'dark'"):
        figure(panel(), style="red")


def test_a_band_leaves_its_gaps_open() -> None:
    low = WAVE - 1
    low[[10, 11, 30]] = np.nan
    trace = figure(panel(Band(STEPS, low, WAVE + 1)))["data"][0]
    x = values(trace["x"])
    pieces = np.split(x, np.flatnonzero(np.isnan(x)))
    assert [len(p[np.isfinite(p)]) // 2 for p in pieces][:-1] == [10, 18, 19]
    assert trace["fill"] == "toself"


def test_symlog_is_placed_by_us_and_read_as_it_is() -> None:
    y = np.array([-100.0, -1.0, 0.0, 1.0, 100.0])
    trace = figure(panel(Line(np.arange(5.0), y), scale="symlog"))["data"][0]
    placed = values(trace["y"])
    assert np.array_equal(values(trace["customdata"]), y)
    assert (np.diff(placed) > 0).all()
    assert np.allclose(placed, -placed[::-1])
    assert "customdata" in trace["hovertemplate"]


def test_colours_of_a_logarithmic_heat_map_differ_by_ratios() -> None:
    heat = Heat(
        np.arange(5.0), np.array([[1.0, 10.0, 100.0, 1e3, 1e4]]), "norm", ("w",), scale="log"
    )
    trace, scale = figure(panel(heat))["data"]
    assert values(trace["z"]).tolist() == [[1.0, 10.0, 100.0, 1e3, 1e4]]  # what one points at
    at = [stop for stop, _ in trace["colorscale"]]
    colors = [color for _, color in trace["colorscale"]]
    middle = at.index(min(at, key=lambda stop: abs(stop * (1e4 - 1) + 1 - 100)))
    plain = scale["marker"]["colorscale"]
    half = plain[len(plain) // 2][1]
    expected = tuple(int(half[i : i + 2], 16) for i in (1, 3, 5))
    found = tuple(int(c) for c in colors[middle][4:-1].split(","))
    assert np.abs(np.subtract(found, expected)).max() <= 1
    assert (scale["marker"]["cmin"], scale["marker"]["cmax"]) == (0.0, 4.0)


def test_rows_keep_their_full_names_where_labels_are_short() -> None:
    names = tuple(f"model.transformer.layers.{i}.attention.projection.weight" for i in range(40))
    drawn = figure(panel(Heat(STEPS, np.ones((40, 50)), "norm", names)))
    assert tuple(drawn["data"][0]["y"]) == names
    labels = [one["text"] for one in drawn["layout"]["annotations"]]
    assert len(labels) <= 20
    assert max(map(len, labels)) <= 22


def test_rows_of_one_name_stay_rows() -> None:
    heat = Heat(STEPS, np.ones((3, 50)), "norm", ("a", "", ""))
    rows = figure(panel(heat))["data"][0]["y"]
    assert len(set(rows)) == 3


def test_nothing_of_a_panel_is_taken_for_markup() -> None:
    evil = '<a href="javascript:alert(1)">x</a>'
    marks = [replace(mark, label=evil) for mark in MARKS.values()]
    marks[8] = replace(marks[8], names=(evil, "b", "c"))
    drawn = figure(panel(*marks, y_label=evil, unit=evil, x_label=evil))
    text = json.dumps(drawn)
    assert "<a" not in text
    assert "&lt;a href" in text


def test_references_are_lines_with_words() -> None:
    drawn = figure(panel(Line(STEPS, WAVE), MARKS["reference"], MARKS["upright reference"]))
    lines = drawn["layout"]["shapes"]
    assert [(one["y0"], one["x0"]) for one in lines] == [(0.5, 0), (0, 5.0)]
    assert [one["text"] for one in drawn["layout"]["annotations"]] == ["bound", "start"]


def test_words_that_would_lie_on_each_other_are_left_out() -> None:
    close = (Reference(0.5, "one"), Reference(0.51, "two"), Reference(-0.5, "three"))
    drawn = figure(panel(Line(STEPS, WAVE), *close))
    assert [one["text"] for one in drawn["layout"]["annotations"]] == ["one", "three"]
    assert len(drawn["layout"]["shapes"]) == 3


def test_values_out_of_sight_are_marked_at_the_edge() -> None:
    y = np.where(STEPS == 7, 100.0, WAVE)
    drawn = figure(
        panel(Line(STEPS, y, "", "blue", "faint"), Line(STEPS, y, "mean"), y_range=(-2.0, 2.0))
    )
    edges = [trace for trace in drawn["data"] if trace.get("yaxis") == "y2"]
    assert [values(trace["x"]).tolist() for trace in edges] == [[7.0]]
    assert edges[0]["text"] == ["100"]
