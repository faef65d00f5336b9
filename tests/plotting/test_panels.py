"""The panels of single quantities, as data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from cockpit.instruments import Band, Heat, Line, Panel, Points, Reference, panels
from cockpit.instruments.reading import before, curve, newest, scale_of, stacked, table
from cockpit.log import ParameterInfo, Row, RunWriter
from cockpit.plotting import draw_figure
from cockpit.run import Run, open_run

NAMES = ("fc1.weight", "fc1.bias")


def write(folder: Path, *steps: list[Row]) -> Run:
    parameters = [ParameterInfo(name, (2,), "float32") for name in NAMES]
    folder.mkdir(exist_ok=True)
    writer = RunWriter(folder / "run.db", parameters=parameters)
    for step, rows in enumerate(steps):
        writer.record(step, rows)
    writer.close()
    return open_run(writer.path)


def shown(run: Run, title: str) -> Panel:
    return {panel.title: panel for panel in panels(run)}[title]


def of_kind(panel: Panel, kind: type) -> list:
    return [mark for mark in panel.marks if isinstance(mark, kind)]


def keyed(quantity: str, **values: float) -> list[Row]:
    return [Row(quantity, value, key=key) for key, value in values.items()]


def named(quantity: str, *values: float, key: str = "") -> list[Row]:
    return [Row(quantity, v, key, name) for v, name in zip(values, NAMES, strict=True)]


# reading


def test_tables_by_module_keep_the_order_of_the_calls(tmp_path: Path) -> None:
    rows = [Row("A", v, "std", module) for module, v in (("z", 1.0), ("a", 2.0), ("", 3.0))]
    found = table(write(tmp_path, [*rows, Row("A", 9.0, "stdev", "z")]), "A", "std")
    assert found is not None
    assert found.names == ("z", "a", "(whole model)")
    np.testing.assert_array_equal(found.values, [[1.0], [2.0], [3.0]])


def test_tables_by_key_and_parameter_are_in_model_order(tmp_path: Path) -> None:
    rows = [Row("A", 2.0, "std", NAMES[1]), Row("A", 1.0, "std", NAMES[0])]
    found = table(write(tmp_path, rows), "A", "std")
    assert found is not None
    assert found.names == NAMES


def test_before_is_the_last_value_known(tmp_path: Path) -> None:
    rate = curve(write(tmp_path, [Row("lr", 1.0)], [], [Row("lr", 2.0)]), "lr")
    assert rate is not None
    np.testing.assert_array_equal(before(rate, np.array([-1.0, 0, 1, 2, 9])), [1, 1, 1, 2, 2])


def test_stacked_fills_short_arrays_and_newest_has_one_step(tmp_path: Path) -> None:
    run = write(tmp_path, *([Row("A", np.ones(k), "x"), Row("A", np.ones(1), "y")] for k in (2, 1)))
    found = stacked(run, "A", "x")
    assert found is not None
    np.testing.assert_array_equal(found[1], [[1, 1], [1, np.nan]])
    latest = newest(run, "A")
    assert latest is not None
    assert (latest[0], set(latest[1])) == (1, {"x", "y"})


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1.0, 3.0], "linear"),
        (list(np.logspace(0, 4)), "log"),
        ([-1.0, *np.logspace(0, 4)], "symlog"),
        ([], "linear"),
    ],
)
def test_scale_of(values: list[float], scale: str) -> None:
    assert scale_of(np.array(values)) == scale


# panels


def test_noise_scale_is_a_ratio_of_averages_with_gaps(tmp_path: Path) -> None:
    signals = [1.0] * 20 + [-1.0] * 20
    rows = [
        keyed("GradientNoiseScale", noise_scale=8 / s, trace=8.0, squared_norm=s) for s in signals
    ]
    raw, smooth = of_kind(shown(write(tmp_path, *rows), "Noise scale"), Line)
    assert raw.style == "faint"
    np.testing.assert_allclose(raw.y[[0, -1]], [8, -8])
    assert smooth.y[0] == pytest.approx(8)
    assert np.isnan(smooth.y[-1])


def test_the_batch_size_in_use_stands_beside_the_suggested_one(tmp_path: Path) -> None:
    noise = keyed("GradientNoiseScale", noise_scale=8.0, trace=8.0, squared_norm=1.0)
    steps = [[Row("CABS", 2.0), *noise] for _ in range(3)]
    steps[1].append(Row("batch_size", 64))
    run = write(tmp_path, *steps)
    for title in ("Batch size by CABS", "Noise scale"):
        (used,) = (line for line in of_kind(shown(run, title), Line) if line.style == "dashed")
        assert used.label == "in use"
        np.testing.assert_array_equal((used.x, used.y), ([0, 1, 2], [64, 64, 64]))
    without = write(tmp_path / "without", [Row("CABS", 2.0)])
    assert [line.style for line in of_kind(shown(without, "Batch size by CABS"), Line)] == ["solid"]


@pytest.mark.parametrize("rate", [0.0, np.inf, np.nan])
def test_a_learning_rate_that_is_none_bounds_nothing(tmp_path: Path, rate: float) -> None:
    run = write(tmp_path, [Row("HessMaxEV", 3.0), Row("learning_rate", rate)])
    assert [line.label for line in of_kind(shown(run, "Sharpness"), Line)] == ["largest eigenvalue"]
    usual = keyed("CriticalSharpness", bound=20.0)
    off = keyed("CriticalSharpness", bound=0.0)
    sharp = [Row("CriticalSharpness", 3.0)]
    run = write(tmp_path / "critical", [*sharp, *usual], [*sharp, *off])
    (bound,) = (
        line for line in of_kind(shown(run, "Critical sharpness"), Line) if line.label == "2/η"
    )
    np.testing.assert_array_equal(bound.y, [20.0, np.nan])


@pytest.mark.parametrize("rate", [True, False])
def test_sharpness_has_a_bound_where_the_learning_rate_is_logged(
    tmp_path: Path, rate: bool
) -> None:
    steps = [
        [Row("HessMaxEV", 3.0), Row("HessMaxEV", s != 1, "converged", "", True)] for s in (0, 1)
    ]
    if rate:
        steps[0].append(Row("learning_rate", 0.1))
    panel = shown(write(tmp_path, *steps), "Sharpness")
    bounds = [line for line in of_kind(panel, Line) if line.label == "2/η"]
    assert len(bounds) == rate
    for bound in bounds:
        np.testing.assert_allclose(bound.y, 20)
    (rough,) = of_kind(panel, Points)
    np.testing.assert_array_equal(rough.x, [1])


def test_traces_are_summed_and_missing_ones_stay_missing(tmp_path: Path) -> None:
    run = write(tmp_path, named("HessTrace", 1, -3), named("HessTrace", np.nan, np.nan))
    (line,) = of_kind(shown(run, "Trace of the curvature"), Line)
    np.testing.assert_array_equal(line.y, [-2, np.nan])
    (heat,) = of_kind(shown(run, "Trace by parameter"), Heat)
    assert heat.scale == "linear", "negative values have no logarithm"


def test_outliers_have_their_threshold_and_infinite_scores(tmp_path: Path) -> None:
    rows = [[Row("PerSampleOutliers", np.array([np.inf, 2.0, 1.0]), "scores")]] * 3
    panel = shown(write(tmp_path, *rows), "Outliers in the batch")
    assert [r.value for r in of_kind(panel, Reference)] == [3.5]
    (others,) = of_kind(panel, Points)
    np.testing.assert_array_equal(others.x, [0, 0, 1, 1, 2, 2])
    assert np.isinf(of_kind(panel, Line)[-1].y).all()
    assert panel.headline == "100 % with an outlier"


def test_updates_have_median_range_and_rule_of_thumb(tmp_path: Path) -> None:
    panel = shown(write(tmp_path, named("UpdateRatio", 1e-3, np.inf)), "Update ratio")
    (band,), (line,) = of_kind(panel, Band), of_kind(panel, Line)
    np.testing.assert_allclose([*band.low, *band.high, *line.y], 1e-3)
    assert [r.value for r in of_kind(panel, Reference)] == [1e-3]


def test_shares_are_coloured_from_none_to_all(tmp_path: Path) -> None:
    run = write(
        tmp_path, [*named("LostUpdates", 0.0, 0.2), Row("ActivationStats", 0.1, "dormant", "a")]
    )
    for title, everything in (("Lost updates", 100.0), ("Dormant units", 1.0)):
        (heat,) = of_kind(shown(run, title), Heat)
        assert heat.limits == (0.0, everything)
    lost = shown(run, "Lost updates")
    assert lost.headline == "~20 %"
    np.testing.assert_allclose(of_kind(lost, Heat)[0].values, [[0.0], [20.0]])


def test_only_modules_with_zeros_are_listed(tmp_path: Path) -> None:
    rows = [Row("ActivationStats", v, "zeros", m) for m, v in (("relu", 0.5), ("fc", 0.0))]
    (heat,) = of_kind(shown(write(tmp_path, rows), "Zeros in the activations"), Heat)
    assert heat.names == ("relu",)


def test_attention_has_a_row_per_head_even_when_modules_differ(tmp_path: Path) -> None:
    rows = [Row("AttentionStats", np.arange(k) + 1.0, "entropy", f"m{k}") for k in (2, 1)]
    (heat,) = of_kind(shown(write(tmp_path, rows), "Attention entropy by head"), Heat)
    assert heat.names == ("m2 0", "m2 1", "m1 0")
    np.testing.assert_array_equal(heat.values, [[1], [2], [1]])
    assert heat.limits == (0.0, 2.0)


def test_joint_histogram_has_marginals_beside_it(tmp_path: Path) -> None:
    counts = np.zeros((4, 6), int)
    counts[1:3, 2:5] = 5
    x, y = np.linspace(-2, 2, 5), np.linspace(-3, 3, 7)
    rows = [
        Row("GradHist2d", c, key=k) for k, c in (("hist", counts), ("edges/0", x), ("edges/1", y))
    ]
    rows += [Row("GradHist2d", counts, "hist", name, True) for name in NAMES]
    run = write(tmp_path, rows)
    panel = shown(run, "Gradients and parameters")
    (heat,) = of_kind(panel, Heat)
    np.testing.assert_array_equal(
        heat.values, np.full((3, 2), 5)
    )  # rows: parameters, only the filled bins
    np.testing.assert_array_equal(heat.edges, [-1, 0, 1, 2])
    above, beside = of_kind(panel, Line)
    assert above.y.min() > 2
    assert beside.x.min() > 1
    (layers,) = of_kind(shown(run, "Values of the parameters"), Heat)
    np.testing.assert_allclose(layers.values.sum(1), 100)


def test_joint_histograms_lie_layer_by_layer_each_in_its_own_shares(tmp_path: Path) -> None:
    x, y = np.linspace(-2, 2, 5), np.linspace(-3, 3, 7)
    first, second = np.zeros((4, 6), int), np.zeros((4, 6), int)
    first[1, 2], first[2, 3], second[2, 5] = 30, 10, 7
    rows = [Row("GradHist2d", v, k) for k, v in (("edges/0", x), ("edges/1", y))]
    rows += [Row("GradHist2d", first + second, "hist")]
    rows += [
        Row("GradHist2d", c, "hist", n, True) for c, n in zip((first, second), NAMES, strict=True)
    ]
    (heat,) = of_kind(shown(write(tmp_path, rows), "Gradients and parameters by layer"), Heat)
    assert [name for name in heat.names if name] == list(NAMES)
    gap = int(np.flatnonzero(np.isnan(heat.values).all(1))[0])
    above, below = heat.values[:gap], heat.values[gap + 1 :]
    assert len(above) == len(below) == 15
    assert heat.names.index(NAMES[0]) == 7
    assert heat.x.tolist() == [-0.5, 0.5], "empty bins of the gradient at both ends are left out"
    assert (np.unique(above[0]).tolist(), np.unique(above[-1]).tolist()) == ([0, 25], [0, 75])
    assert above[0].argmax() == 1, "large parameters lie on top"
    assert (below[:, 1] == 100).all()


@pytest.mark.parametrize("layers", [1, 12, 300])
def test_joint_histograms_of_any_number_of_layers(tmp_path: Path, layers: int) -> None:
    names = [f"layer{i}.weight" for i in range(layers)]
    writer = RunWriter(
        tmp_path / "run.db", parameters=[ParameterInfo(n, (2,), "float32") for n in names]
    )
    counts = np.random.default_rng(0).integers(0, 9, (10, 12))
    rows = [
        Row("GradHist2d", np.linspace(0, 1, n + 1), f"edges/{i}") for i, n in enumerate((10, 12))
    ]
    rows += [Row("GradHist2d", counts, "hist", name, True) for name in names]
    writer.record(0, [*rows, Row("GradHist2d", counts * layers, "hist")])
    writer.close()
    panel = shown(open_run(writer.path), "Gradients and parameters by layer")
    (heat,) = of_kind(panel, Heat)
    assert len(heat.names) == len(heat.values) <= max(160, layers)
    assert [name for name in heat.names if name] == names
    figure = draw_figure([panel], Figure(figsize=(5, 4)))
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels
    assert all(labels), "only rows with a name are named"


def test_nothing_but_finite_values_is_said_so(tmp_path: Path) -> None:
    fine = keyed("NonFinite", modules=0, gradients=0, samples=0)
    panel = shown(write(tmp_path, fine), "NaN and infinities")
    assert panel.headline == "all finite"
    assert [line.label for line in of_kind(panel, Line)] == ["modules"], "one line of zeros will do"


def test_only_what_was_hit_has_a_curve(tmp_path: Path) -> None:
    rows = keyed("NonFinite", modules=0, gradients=3, samples=1)
    panel = shown(write(tmp_path, rows), "NaN and infinities")
    assert [line.label for line in of_kind(panel, Line)] == ["gradients", "samples"]


def test_modules_are_named_over_depth(tmp_path: Path) -> None:
    rows = [
        Row("ActivationStats", v, key, module)
        for module, v in (("conv1", 1.0), ("fc", 2.0))
        for key in ("std", "mean")
    ]
    panel = shown(write(tmp_path, rows, rows), "Activations over depth")
    assert panel.x_names == ("conv1", "fc")
    assert [line.label for line in of_kind(panel, Line)] == [
        "|mean|, step 1",
        "std, step 0",
        "std, step 1",
    ]


def test_the_first_value_that_is_not_finite_is_located(tmp_path: Path) -> None:
    fine, bad = (keyed("NonFinite", modules=n, gradients=n) for n in (0, 2))
    for place, (module, count) in enumerate((("a", 0), ("b", 3), ("c", 9))):
        bad += [Row("NonFinite", count, "values", module, True)]
        bad += [Row("NonFinite", place, "order", module, True)]
    assert shown(write(tmp_path, fine, bad, bad), "NaN and infinities").headline == "b, step 1"
