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
    assert len(set(labels)) == len(labels)


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


def test_words_for_lines_stand_beside_the_picture_where_they_hide_nothing() -> None:
    drawn = figure(panel(Line(STEPS, WAVE), Reference(0.5, "a rather long bound")), width=340)
    (word,) = drawn["layout"]["annotations"]
    assert (word["xref"], word["x"], word["xanchor"]) == ("paper", 1, "left")
    assert "<br>" in word["text"]
    assert drawn["layout"]["margin"]["r"] >= 50


@pytest.mark.parametrize("y", [1e-3, 0.1, 5.0, 12345.0])
def test_a_single_value_on_a_log_axis_has_ticks_that_can_be_read(y: float) -> None:
    layout = figure(panel(Line(np.array([0.0]), np.array([y])), scale="log"), width=340)["layout"]
    x, y_axis = layout["xaxis"], layout["yaxis"]
    assert x["tickvals"] == [0.0]
    low, high = y_axis["range"]
    places = np.log10(y_axis["tickvals"])
    assert 1 <= len(places) <= 7
    assert (np.diff(places, append=np.inf) > 0.1 * (high - low)).all()
    assert ((places >= low) & (places <= high)).all()
    assert len(set(y_axis["ticktext"])) == len(places)


@pytest.mark.parametrize("span", [1.01, 1.3, 3.0, 50.0, 1e6])
def test_log_axes_of_any_length_have_ticks(span: float) -> None:
    axis = figure(panel(Line(STEPS, np.geomspace(2.3, 2.3 * span, 50)), scale="log"))["layout"][
        "yaxis"
    ]
    assert 2 <= len(axis["tickvals"]) <= 7


@pytest.mark.parametrize("high", [1.3, 4.3, 30.0, 1e7])
@pytest.mark.parametrize("scale", ["linear", "log"])
def test_a_scale_of_colours_has_at_least_two_ticks_in_one_notation(scale: str, high: float) -> None:
    heat = Heat(STEPS, np.linspace(1.2, high, 50)[None], "norm", ("w",), scale=scale)  # type: ignore[arg-type]
    bar = figure(panel(heat))["data"][-1]["marker"]["colorbar"]
    assert 2 <= len(bar["tickvals"]) == len(set(bar["ticktext"]))
    assert len({"10" in text and "·" in text for text in bar["ticktext"]}) == 1


def test_names_of_rows_are_those_of_rows_that_have_one() -> None:
    names = tuple("w" if row % 5 == 3 else "" for row in range(100))
    words = figure(panel(Heat(STEPS, np.ones((100, 50)), "norm", names)))["layout"]["annotations"]
    assert len(words) > 5
    assert all(names[word["y"]] == "w" for word in words)


def test_names_of_rows_are_whole_where_there_is_room() -> None:
    names = ("encoder.self_attention.in_proj_weight", "decoder.bias")
    heat = panel(Heat(STEPS, np.ones((2, 50)), "norm", names))
    wide, narrow = (
        [word["text"] for word in figure(heat, width=width)["layout"]["annotations"]]
        for width in (900, 300)
    )
    assert wide == list(names)
    assert "…" in narrow[0]
    assert figure(heat, width=300)["layout"]["margin"]["l"] < 0.45 * 300


def test_a_picture_without_finite_values_says_so() -> None:
    layout = figure(panel(Line(STEPS, np.full(50, np.inf)), scale="log"))["layout"]
    assert [one["text"] for one in layout["annotations"]] == ["no finite values"]
    assert layout["yaxis"]["showticklabels"] is False


def test_infinities_in_a_heat_map_have_a_colour_of_their_own() -> None:
    cells = np.array([[1.0, np.inf, 3.0], [-np.inf, np.nan, 2.0]])
    heat, missing, above, below, _ = figure(
        panel(Heat(np.arange(3.0), cells, "norm", ("a", "b"))), style="dark"
    )["data"]
    assert np.array_equal(values(heat["z"]), np.where(np.isfinite(cells), cells, np.nan), True)
    for trace, which in ((missing, np.isnan), (above, np.isposinf), (below, np.isneginf)):
        assert np.array_equal(np.isfinite(values(trace["z"])), which(cells))
    assert above["colorscale"] == below["colorscale"] != missing["colorscale"]


def test_zero_and_negative_values_are_marked_below_a_log_axis() -> None:
    y = np.where(STEPS == 7, 0.0, np.where(STEPS == 9, -1.0, 1 + STEPS))
    edge = figure(panel(Line(STEPS, y), scale="log"))["data"][-1]
    assert values(edge["x"]).tolist() == [7, 9]
    assert edge["marker"]["symbol"] == "triangle-down"


def test_many_marks_at_the_edge_do_not_touch() -> None:
    steps = np.arange(5000.0)
    edge = figure(panel(Line(steps, np.where(steps > 0, np.inf, 1.0))), width=400)["data"][-1]
    assert len(values(edge["x"])) <= 400 / 8


def test_steps_stand_below_each_other_whatever_a_picture_shows() -> None:
    one = figure(panel(Line(STEPS, WAVE), y_label="a"))["layout"]
    two = figure(panel(Line(STEPS, 1e5 * WAVE, "wave"), y_label="long name", unit="s"))["layout"]
    for part in ("l", "r"):
        assert one["margin"][part] == two["margin"][part]
    assert one["xaxis"]["range"] == two["xaxis"]["range"]


def test_a_circle_is_round() -> None:
    circle = Line(np.cos(STEPS), np.sin(STEPS))
    assert figure(panel(circle, x_label="x", equal=True))["layout"]["yaxis"]["scaleanchor"] == "x"
    assert "scaleanchor" not in figure(panel(circle, x_label="x"))["layout"]["yaxis"]


def test_places_may_have_names() -> None:
    drawn = figure(
        panel(Line(np.arange(1.0, 4), WAVE[:3]), x_label="layer", x_names=("a", "<b>", "c"))
    )
    axis = drawn["layout"]["xaxis"]
    assert (axis["tickvals"], axis["ticktext"]) == ([1, 2, 3], ["a", "&lt;b&gt;", "c"])


def test_a_dense_screen_gets_more_points() -> None:
    steps = np.arange(100_000.0)
    plain, dense = (
        len(values(figure(panel(Line(steps, np.sin(steps))), width=300, density=d)["data"][0]["x"]))
        for d in (1.0, 2.0)
    )
    assert 1.8 < dense / plain < 2.2
