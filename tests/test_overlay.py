"""Panels of several runs in one: colours of runs, pictures of curves, and what stands side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cockpit.instruments import Bars, Heat, Line, Panel, Points, Reference, panels
from cockpit.instruments.overlay import COLORS, colors_of, overlay
from cockpit.instruments.panel import Band
from cockpit.log import ParameterInfo, Row, RunWriter
from cockpit.run import open_run

X = np.arange(10.0)


def panel(*marks: object, **more: object) -> Panel:
    return Panel("Title", "GRADIENTS", "Read it so.", tuple(marks), name="it", **more)  # type: ignore[arg-type]


def lines_of(merged: Panel, style: str = "solid") -> dict[str, tuple[str, list[float]]]:
    return {
        m.label: (m.color, m.y.tolist())
        for m in merged.marks
        if isinstance(m, Line) and m.style == style
    }


def test_curves_of_runs_lie_on_top_of_each_other() -> None:
    one = panel(Line(X, X, "", "purple", "faint"), Line(X, X / 2, "moving average", "purple"))
    (merged,) = overlay({"a": [one], "b": [panel(Line(X, -X, "", "purple"))]})
    assert (merged.title, merged.name, merged.group) == ("Title", "it", "GRADIENTS")
    assert lines_of(merged) == {
        "a": ("blue", (X / 2).tolist()),
        "b": ("vermillion", (-X).tolist()),
    }
    assert lines_of(merged, "faint") == {"": ("blue", X.tolist())}


def test_several_curves_become_a_picture_each() -> None:
    a = panel(Line(X, X, "train", "blue"), Line(X, 2 * X, "test", "orange"), headline="3")
    b = panel(Line(X, 3 * X, "test", "orange"))
    train, test = overlay({"a": [a], "b": [b]})
    assert (train.title, train.name) == ("Title: train", "it/train")
    assert list(lines_of(train)) == ["a"]
    assert list(lines_of(test)) == ["a", "b"]
    assert test.headline == ""


def test_curves_are_one_though_their_labels_count() -> None:
    bars = [panel(Bars(np.arange(3.0), np.ones(2), f"step {n}")) for n in (5, 7)]
    (merged,) = overlay({"a": [bars[0]], "b": [bars[1]]})
    assert [(m.label, m.outline) for m in merged.marks if isinstance(m, Bars)] == [
        ("a", True),
        ("b", True),
    ]


def test_references_stand_once_and_bounds_have_their_run_s_colour() -> None:
    ones = [
        panel(
            Reference(1.0, "one"),
            Line(X, X * n, "value"),
            Line(X, np.full(10, n), "2/η", "neutral", "dashed"),
        )
        for n in (1, 2)
    ]
    (merged,) = overlay({"a": [ones[0]], "b": [ones[1]]})
    assert [m for m in merged.marks if isinstance(m, Reference)] == [Reference(1.0, "one")]
    dashed = [m for m in merged.marks if isinstance(m, Line) and m.style == "dashed"]
    assert [(m.color, m.label, m.y[0]) for m in dashed] == [
        ("blue", "2/η", 1),
        ("vermillion", "", 2),
    ]


def test_heat_maps_stand_side_by_side_with_the_same_colours() -> None:
    maps = [panel(Heat(X, np.full((2, 10), v), "value", ("p", "q"))) for v in (1.0, 9.0)]
    merged = overlay({"a": [maps[0]], "b": [maps[1]]})
    assert [one.title for one in merged] == ["Title: a", "Title: b"]
    assert [one.name for one in merged] == ["it/a", "it/b"]
    assert [one.marks[0].limits for one in merged] == [(1.0, 9.0)] * 2


def test_colours_of_nothing_are_left_alone() -> None:
    maps = [panel(Heat(X, np.full((1, 10), v), "value", ("p",))) for v in (1.0, np.nan)]
    merged = overlay({"a": [maps[0]], "b": [maps[1]]})
    assert [one.marks[0].limits for one in merged] == [None, None]


def test_colours_of_both_signs_have_zero_in_their_middle() -> None:
    maps = [panel(Heat(X, np.full((1, 10), v), "value", ("p",))) for v in (-3.0, 1.0)]
    merged = overlay({"a": [maps[0]], "b": [maps[1]]})
    assert [one.marks[0].limits for one in merged] == [(-3.0, 3.0)] * 2


def test_heat_maps_side_by_side_show_the_same_part_of_their_axes() -> None:
    def heat(x: np.ndarray, edges: np.ndarray) -> Panel:
        return panel(Heat(x, np.ones((2, len(x))), "value", edges=edges))

    merged = overlay(
        {"a": [heat(X, np.array([0.0, 1, 2]))], "b": [heat(X[:4] + 8, np.array([-4.0, 0, 1]))]}
    )
    assert [one.x_range for one in merged] == [(-0.5, 11.5)] * 2
    assert [one.y_range for one in merged] == [(-4.0, 2.0)] * 2


def test_bands_are_left_out_and_points_stay() -> None:
    a = panel(Band(X, X, X + 1), Points(X, X, "all", faint=True), Points(X, X, "last 3"))
    (merged,) = overlay({"a": [a], "b": [a]})
    points = [m for m in merged.marks if isinstance(m, Points)]
    assert [(m.label, m.color) for m in points] == [("a", "blue"), ("b", "vermillion")]
    assert len(merged.marks) == 2


def test_ranges_and_scales_suit_all() -> None:
    a = panel(Line(X, X + 1, "v"), x_range=(0.0, 3.0), y_range=(0.0, 1.0), scale="linear")
    b = panel(Line(X, 10.0**X, "v"), x_range=(-1.0, 2.0), scale="log")
    (merged,) = overlay({"a": [a], "b": [b]})
    assert (merged.x_range, merged.y_range, merged.scale) == ((-1.0, 3.0), None, "log")


def test_an_outline_is_not_spoken_of() -> None:
    a = Panel("T", "GRADIENTS", "Left is good; the outline is new.", (Line(X, X, "v"),))
    assert overlay({"a": [a], "b": [a]})[0].how_to_read == "Left is good."


def test_the_background_reaches_as_far_as_any_run() -> None:
    """Such as the valley, which is drawn from the smallest to the largest step of a run."""
    ends = {"a": (-1.0, 2.0), "b": (-2.0, 1.0), "c": (-1.0, 2.0)}
    panels_ = {
        run: [
            panel(Line(np.array(x), np.square(x), "", "neutral"), Points(X, X, "last 3"), x_range=x)
        ]
        for run, x in ends.items()
    }
    (merged,) = overlay(panels_)
    behind = [m.x.tolist() for m in merged.marks if isinstance(m, Line)]
    assert behind == [[-1.0, 2.0], [-2.0, 1.0]], "each once"
    assert merged.x_range == (-2.0, 2.0)


def test_more_runs_than_colours() -> None:
    names = [f"run{n}" for n in range(9)]
    assert [colors_of(names)[name] for name in names] == [*COLORS, *COLORS[:2]]
    (merged,) = overlay({name: [panel(Line(X, X, "v"))] for name in names})
    assert list(lines_of(merged)) == names


def test_one_run_keeps_its_pictures(tmp_path: Path) -> None:
    assert [p.title for p in overlay({"a": [panel(Heat(X, np.ones((1, 10)), "v", ("p",)))]})] == [
        "Title"
    ]


def test_real_runs_lose_no_instrument(tmp_path: Path) -> None:
    parameters = [ParameterInfo(name, (2,), "float32") for name in ("w", "b")]
    for run, quantities in (("a", ("Alpha", "Loss")), ("b", ("Loss", "NormTest", "Mine"))):
        writer = RunWriter(tmp_path / f"{run}.db", parameters=parameters)
        for step in range(20):
            norms = [Row("GradNorm", 1.0 + step, parameter=name) for name in ("w", "b")]
            writer.record(step, [*norms, *(Row(name, 0.1 * step) for name in quantities)])
        writer.close()
    own = {run: panels(open_run(tmp_path / f"{run}.db")) for run in "ab"}
    merged = overlay(own)
    names = {panel.name.partition("/")[0] for panel in merged}
    assert names == {panel.name for run in own.values() for panel in run}
    assert len({panel.name for panel in merged}) == len(merged)
    order = [panel.group for panel in merged]
    assert order == sorted(order, key=["STEP SIZE", "GRADIENTS", "PERFORMANCE"].index)
