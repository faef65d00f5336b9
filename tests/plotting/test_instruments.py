"""Panels, checked as data: runs are written with the run file's own writer and read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cockpit.instruments import (
    GROUPS,
    INSTRUMENTS,
    Band,
    Bars,
    Heat,
    Instrument,
    Line,
    Panel,
    Points,
    Reference,
    instrument,
    panels,
)
from cockpit.instruments.reading import moving, number, table
from cockpit.log import ParameterInfo, Row, RunWriter
from cockpit.run import Run, open_run

NAMES = ("fc1.weight", "fc1.bias", "fc2.weight")
EDGES = np.linspace(-1, 1, 11)
SCALARS = ("Loss", "NormTest", "InnerTest", "OrthoTest", "Time", "learning_rate", "valid_accuracy")


def write(path: Path, steps: dict[int, list[Row]]) -> Run:
    parameters = [ParameterInfo(name, (2,), "float32") for name in NAMES]
    writer = RunWriter(path, parameters=parameters)
    for step, rows in steps.items():
        writer.record(step, rows)
    writer.close()
    return open_run(path)


def economy(step: int, value: float = 1.0) -> list[Row]:
    rows = [Row(name, value * (step + 1)) for name in SCALARS]
    for name in ("GradNorm", "Distance", "UpdateSize"):
        rows += [Row(name, value * (i + 1), parameter=p) for i, p in enumerate(NAMES)]
    rows += [Row("Alpha", value * (0.1 * step - 0.5))]
    rows += [Row("Alpha", value, key="w2", detail=True)]
    counts = np.arange(10) + step
    rows += [Row("GradHist1d", counts, key="hist"), Row("GradHist1d", EDGES, key="edges")]
    return [*rows, Row("GradHist1d", 0.0, key="nonfinite", detail=True)]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write(tmp_path / "run.db", {step: economy(step) for step in range(20)})


def by_title(run: Run) -> dict[str, Panel]:
    return {panel.title: panel for panel in panels(run)}


def of_kind(panel: Panel, kind: type) -> list:
    return [mark for mark in panel.marks if isinstance(mark, kind)]


def test_economy_run_has_all_panels_in_the_order_of_the_groups(run: Run) -> None:
    found = panels(run)
    assert [panel.title for panel in found] == [
        "Step length α",
        "Where steps land",
        "Steps in the valley",
        "Distance and update size",
        "Gradient norm",
        "Gradient norm by parameter",
        "Gradient noise",
        "Gradient tests",
        "Individual gradients",
        "Gradients over time",
        "Loss",
        "Accuracy",
        "Time per step",
        "Learning rate",
    ]
    order = [GROUPS.index(panel.group) for panel in found]
    assert order == sorted(order)


def test_every_panel_says_what_it_is_and_how_to_read_it(run: Run) -> None:
    for panel in panels(run):
        assert panel.title
        assert panel.group in GROUPS
        assert panel.how_to_read.endswith(".")
        assert panel.how_to_read.count(". ") == 0, "one sentence"
        assert len(panel.how_to_read) <= 110, "it has to fit"
        assert panel.marks


def test_alpha_has_its_three_words_and_the_median(run: Run) -> None:
    panel = by_title(run)["Step length α"]
    words = {mark.value: mark.label for mark in of_kind(panel, Reference)}
    assert words == {-1.0: "no move", 0.0: "minimum", 1.0: "mirror point"}
    raw, median = of_kind(panel, Line)
    np.testing.assert_allclose(raw.y, 0.1 * np.arange(20) - 0.5)
    assert median.y[10] == pytest.approx(raw.y[10])
    assert panel.y_range is not None
    assert panel.y_range[0] <= -1 < 1 <= panel.y_range[1]


def test_alpha_distribution_counts_every_step_once(run: Run) -> None:
    everything, recent = of_kind(by_title(run)["Where steps land"], Bars)
    assert everything.heights.sum() == pytest.approx(100)
    assert recent.heights.sum() == pytest.approx(100)
    assert recent.label == "last 2"
    assert (recent.heights > 0).sum() <= 2


def test_steps_lie_in_the_valley(run: Run) -> None:
    for points in of_kind(by_title(run)["Steps in the valley"], Points):
        np.testing.assert_allclose(points.y, points.x**2)


def test_a_step_without_a_convex_fit_is_not_in_the_valley(tmp_path: Path) -> None:
    rows = {0: [Row("Alpha", -1.0), Row("Alpha", -2.0, key="w2", detail=True)]}
    assert "Steps in the valley" not in by_title(write(tmp_path / "run.db", rows))


def test_a_step_beyond_the_valley_is_marked_at_its_rim(tmp_path: Path) -> None:
    values = [*[0.0] * 9, 1.7, -7.0, 5.0]
    rows = {
        step: [Row("Alpha", value), Row("Alpha", 1.0, key="w2", detail=True)]
        for step, value in enumerate(values)
    }
    panel = by_title(write(tmp_path / "run.db", rows))["Steps in the valley"]
    everything = of_kind(panel, Points)[0]
    assert everything.x[-3:].tolist() == [1.7, -2.0, 2.0]
    np.testing.assert_allclose(everything.y[-3:], [1.7**2, np.inf, np.inf])
    assert panel.x_range == (-2.05, 2.05)


def test_totals_are_roots_of_sums_of_squares(run: Run) -> None:
    total = np.sqrt(1 + 4 + 9)
    (line,) = (m for m in of_kind(by_title(run)["Gradient norm"], Line) if m.style == "faint")
    np.testing.assert_allclose(line.y, total)
    labels = {m.label for m in of_kind(by_title(run)["Distance and update size"], Line)}
    assert labels == {"", "one update", "distance from the start"}


def test_heat_map_lists_parameters_in_model_order(run: Run) -> None:
    (heat,) = of_kind(by_title(run)["Gradient norm by parameter"], Heat)
    assert heat.names == NAMES
    np.testing.assert_allclose(heat.values, np.array([[1.0], [2.0], [3.0]]) * np.ones(20))


def test_a_nan_of_one_parameter_is_not_hidden_but_a_missing_one_is_none(tmp_path: Path) -> None:
    rows = {
        0: [Row("GradNorm", 3.0, parameter=NAMES[0]), Row("GradNorm", 4.0, parameter=NAMES[1])],
        1: [Row("GradNorm", 3.0, parameter=NAMES[0])],
        2: [Row("GradNorm", 3.0, parameter=NAMES[0]), Row("GradNorm", np.nan, parameter=NAMES[1])],
    }
    norms = table(write(tmp_path / "run.db", rows), "GradNorm")
    assert norms is not None
    np.testing.assert_allclose(norms.total.values, [5.0, 3.0, np.nan])


def test_gradient_tests_share_a_picture_with_their_threshold(run: Run) -> None:
    panel = by_title(run)["Gradient noise"]
    assert [m.value for m in of_kind(panel, Reference)] == [1.0]
    assert [m.label for m in of_kind(panel, Line) if m.label] == ["inner", "ortho", "norm"]


def test_gradient_tests_are_bands_and_a_circle_around_the_tip(tmp_path: Path) -> None:
    sizes = {"InnerTest": 0.3, "OrthoTest": 0.4, "NormTest": 0.5}
    rows = [Row(name, size) for name, size in sizes.items()]
    before = [Row(name, 9.0) for name in sizes]
    run = write(tmp_path / "run.db", {s: rows if s > 9 else before for s in range(20)})
    panel = by_title(run)["Gradient tests"]
    inner, ortho = of_kind(panel, Band)
    assert (inner.x.tolist(), inner.label) == ([0.7, 1.3], "inner")
    assert ((ortho.low == -0.4).all(), (ortho.high == 0.4).all(), ortho.label) == (
        True,
        True,
        "ortho",
    )
    circle = next(line for line in of_kind(panel, Line) if line.label == "norm")
    np.testing.assert_allclose(np.hypot(circle.x - 1, circle.y), 0.5)
    (origin,) = of_kind(panel, Reference)
    assert (origin.value, origin.axis) == (0.0, "x")
    assert (panel.headline, panel.equal) == ("~0.500", True)
    assert panel.x_range is not None
    assert panel.x_range[0] < 0 < circle.x.max() < panel.x_range[1]
    (only,) = of_kind(by_title(write(tmp_path / "one.db", {0: rows[:1]}))["Gradient tests"], Band)
    assert only.label == "inner"


def test_histogram_shows_last_and_first_with_log_counts(run: Run) -> None:
    panel = by_title(run)["Individual gradients"]
    last, first = of_kind(panel, Bars)
    assert (last.label, first.label) == ("step 19", "step 0")
    np.testing.assert_array_equal(last.heights, np.arange(10) + 19)
    assert panel.scale == "log"
    assert panel.headline == ""


def test_histogram_says_how_many_values_are_not_finite(tmp_path: Path) -> None:
    rows = [*economy(0)[:-1], Row("GradHist1d", 7.0, key="nonfinite", detail=True)]
    panel = by_title(write(tmp_path / "run.db", {0: rows}))["Individual gradients"]
    assert panel.headline == "7 not finite"


def test_histogram_history_keeps_the_counts_when_the_range_changes(tmp_path: Path) -> None:
    counts = np.array([0, 1, 5, 9, 9, 5, 1, 1, 1, 0])
    steps = {
        step: [
            Row("GradHist1d", counts, key="hist"),
            Row("GradHist1d", EDGES * scale, key="edges"),
        ]
        for step, scale in enumerate((1.0, 0.5, 2.0))
    }
    panel = by_title(write(tmp_path / "run.db", steps))["Gradients over time"]
    (heat,) = of_kind(panel, Heat)
    assert heat.edges is not None
    assert len(heat.edges) == len(heat.values) + 1
    np.testing.assert_allclose(heat.values.sum(axis=0), counts.sum())


def test_loss_shows_what_is_logged_and_accuracy_names_its_set(tmp_path: Path) -> None:
    rows = {s: [Row("train_loss", 2.0 - s), Row("valid_loss", 2.5 - s)] for s in range(4)}
    loss = by_title(write(tmp_path / "run.db", rows))["Loss"]
    assert [m.label for m in of_kind(loss, Line)] == ["train", "valid"]
    assert loss.scale == "linear", "a loss below zero has no logarithm"


def test_time_is_per_step_also_when_few_steps_are_tracked(tmp_path: Path) -> None:
    rows = {step: [Row("Time", 100.0 + 0.5 * step)] for step in (0, 10, 30)}
    (line,) = of_kind(by_title(write(tmp_path / "run.db", rows))["Time per step"], Line)
    np.testing.assert_allclose(line.y, 0.5)
    np.testing.assert_array_equal(line.x, [10, 30])


def test_no_steps_no_panels(tmp_path: Path) -> None:
    assert panels(write(tmp_path / "run.db", {})) == []


@pytest.mark.parametrize("value", [1.0, np.nan, np.inf, -np.inf])
def test_one_step_of_any_value_gives_panels(tmp_path: Path, value: float) -> None:
    titles = by_title(write(tmp_path / "run.db", {5: economy(5, value)}))
    assert {"Loss", "Gradient norm", "Step length α", "Individual gradients"} <= set(titles)
    assert "Gradients over time" not in titles


@pytest.mark.parametrize("item", INSTRUMENTS, ids=lambda item: item.read.__module__)
def test_missing_data_give_no_panel(tmp_path: Path, item: Instrument) -> None:
    assert item(write(tmp_path / "run.db", {0: [Row("Other", 1.0)]})) is None
    detail = [Row(q, 1.0, key="something", detail=True) for q in item.quantities]
    assert item(write(tmp_path / "details.db", {0: detail})) is None


def test_unknown_quantities_get_a_line_with_a_moving_average(tmp_path: Path) -> None:
    run = write(tmp_path / "run.db", {s: [Row("MyQuantity", float(s))] for s in range(10)})
    (panel,) = panels(run)
    raw, average = of_kind(panel, Line)
    assert (panel.title, panel.group, average.label) == (
        "MyQuantity",
        "GRADIENTS",
        "moving average",
    )
    np.testing.assert_array_equal(raw.y, np.arange(10))
    assert panel.how_to_read.endswith(".")


def test_unknown_quantities_per_parameter_get_a_heat_map(tmp_path: Path) -> None:
    rows = [Row("Mine", float(i), parameter=name) for i, name in enumerate(NAMES)]
    (panel,) = panels(write(tmp_path / "run.db", {0: rows, 1: rows}))
    (heat,) = panel.marks
    assert isinstance(heat, Heat)
    assert heat.names == NAMES


def test_unknown_quantities_with_keys_get_a_line_each_without_details(tmp_path: Path) -> None:
    rows = [Row("Mine", 1.0, key=k) for k in ("first", "second")]
    rows.append(Row("Mine", 1.0, key="hidden", detail=True))
    (panel,) = panels(write(tmp_path / "run.db", {0: rows}))
    assert [line.label for line in of_kind(panel, Line)] == ["first", "second"]


def test_metrics_are_sorted_into_groups_and_parameters_have_no_picture(tmp_path: Path) -> None:
    rows = [
        Row("f1_score", 1.0),
        Row("momentum", 0.9),
        Row("HessMaxEV", 2.0),
        Row("epoch_count", 1.0),
    ]
    rows.append(Row("Parameters", np.zeros(2), parameter=NAMES[0]))
    groups = {p.title: p.group for p in panels(write(tmp_path / "run.db", {0: rows}))}
    assert groups == {
        "Sharpness": "CURVATURE",
        "F1 score": "PERFORMANCE",
        "Momentum": "HYPERPARAMETERS",
    }


def test_own_instruments_and_failing_ones(run: Run) -> None:
    @instrument("Loss")
    def broken(run: object) -> Panel | None:
        raise ArithmeticError("no")

    @instrument("Loss")
    def mine(run: object) -> Panel | None:
        return Panel("Mine", "PERFORMANCE", "Low is good.", (Reference(0.0),))

    failed: list[str] = []
    found = panels(run, (broken, mine), on_error=lambda name, error: failed.append(name))
    assert "Mine" in [panel.title for panel in found]
    assert failed == ["Loss"]
    with pytest.raises(ArithmeticError):
        panels(run, (broken,))


def test_moving_keeps_gaps_and_ignores_infinities() -> None:
    smooth = moving(np.array([1.0, np.nan, 1.0, np.inf, 1.0, 1.0]))
    np.testing.assert_array_equal(smooth, [1, np.nan, 1, np.nan, 1, 1])


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (3.0, "3"), (0.03123, "0.0312"), (-12.34, "−12.3"), (6.17e-6, "6.17·10⁻⁶"),
     (np.nan, "NaN"), (np.inf, "∞"), (-np.inf, "−∞")],
)  # fmt: skip
def test_numbers_as_people_write_them(value: float, text: str) -> None:
    assert number(value) == text
