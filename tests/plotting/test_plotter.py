"""The matplotlib renderer and the plotter: marks are counted and labels read."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import cockpit.plotter
from cockpit.errors import CockpitWarning, InvalidArgument, InvalidType
from cockpit.instruments import Band, Bars, Heat, Line, Panel, Points, Reference, instrument
from cockpit.instruments.thinning import cell_edges, thin_cells, thin_line
from cockpit.log import ParameterInfo, Row, RunWriter
from cockpit.plotter import CockpitPlotter
from cockpit.plotting import draw, draw_figure
from cockpit.plotting.layout import arrange
from cockpit.plotting.letters import shorten, shorten_all, tick_text, tick_texts, width_of, wrap
from cockpit.plotting.theme import THEMES, theme_of
from cockpit.run import Run, open_run

NAMES = [f"blocks.{i}.attention.projection.weight" for i in range(4)]
X = np.arange(10.0)


def record(writer: RunWriter, steps: range) -> None:
    rng = np.random.default_rng(0)
    for step in steps:
        rows = [Row(q, 0.5 + rng.random()) for q in ("Loss", "NormTest", "InnerTest", "OrthoTest")]
        rows += [Row("GradNorm", rng.random(), parameter=name) for name in NAMES]
        rows += [Row("Alpha", rng.normal()), Row("learning_rate", 0.1), Row("Mine", rng.random())]
        rows += [Row("GradHist1d", rng.integers(0, 99, 20), key="hist")]
        rows += [Row("GradHist1d", np.linspace(-1, 1, 21), key="edges")]
        writer.record(step, rows)


@pytest.fixture
def writer(tmp_path: Path) -> RunWriter:
    parameters = [ParameterInfo(name, (2,), "float32") for name in NAMES]
    return RunWriter(tmp_path / "first.db", parameters=parameters)


@pytest.fixture
def run(writer: RunWriter) -> Run:
    record(writer, range(30))
    writer.close()
    return open_run(writer.path)


@pytest.fixture
def axes() -> mpl.axes.Axes:
    figure = Figure(figsize=(5, 4))
    FigureCanvasAgg(figure)
    return figure.add_subplot()


def panel(*marks: object, **settings: object) -> Panel:
    return Panel("Title", "GRADIENTS", "Read it like this.", marks, **settings)  # type: ignore[arg-type]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(mpl.text.Text) if text.get_text()]


def titles(figure: Figure) -> list[str]:
    return [title for axes in figure.axes if (title := axes.get_title("left"))]


# drawing one panel


def test_draw_writes_title_labels_unit_and_how_to_read(axes: mpl.axes.Axes) -> None:
    shown = panel(
        Line(X, X, "one"), Line(X, X + 1, "two"), y_label="time", unit="s", headline="7 s"
    )
    assert draw(shown, axes, how_to_read=True) is axes
    assert axes.get_title("left") == "Title"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "time [s]")
    assert {"Read it like this.", "7 s", "one", "two"} <= set(texts(axes.figure))


def test_draw_leaves_how_to_read_to_whoever_owns_the_axes(axes: mpl.axes.Axes) -> None:
    draw(panel(Line(X, X)), axes)
    assert "Read it like this." not in texts(axes.figure)


def test_draw_draws_every_kind_of_mark(axes: mpl.axes.Axes) -> None:
    shown = panel(
        Line(X, X),
        Band(X, X, X + 1),
        Points(X, X),
        Bars(np.arange(11.0), X),
        Reference(2.0, "two"),
        Reference(3.0, "three", axis="x"),
    )
    draw(shown, axes)
    assert len(axes.lines) == 4, "line, points and two references"
    assert len(axes.collections) == 1, "band"
    assert len(axes.patches) == 1, "bars"
    assert {"two", "three"} <= set(texts(axes.figure))
    with pytest.raises(TypeError, match="str is no mark"):
        draw(panel("scribble"), axes)


@pytest.mark.parametrize("scale", ["linear", "log", "symlog"])
def test_draw_uses_the_scale_where_the_values_allow_it(axes: mpl.axes.Axes, scale: str) -> None:
    draw(panel(Line(X, X - 3), scale=scale), axes)
    assert axes.get_yscale() == scale
    other = axes.figure.add_subplot()
    draw(panel(Line(X, 0 * X), scale=scale), other)
    assert other.get_yscale() == "linear"


def test_gaps_stay_gaps_and_lonely_values_become_dots(axes: mpl.axes.Axes) -> None:
    draw(panel(Line(X, np.where(X == 4, np.nan, X))), axes)
    assert np.isnan(axes.lines[0].get_ydata()).sum() == 1
    draw(panel(Line(X[:1], X[:1] + 1)), axes)
    assert axes.lines[-1].get_marker() == "o"


def test_infinities_and_what_lies_beyond_are_marked_at_the_edges(axes: mpl.axes.Axes) -> None:
    y = X.copy()
    y[[2, 3, 4]] = np.inf, -np.inf, 99
    draw(panel(Line(X, y), y_range=(-1.0, 10.0)), axes)
    marked = {line.get_marker(): list(line.get_xdata()) for line in axes.lines[1:]}
    assert marked["^"] == [2, 4]
    assert marked["v"] == [3]


@pytest.mark.parametrize("mark", [Line(X, X * np.nan), Heat(X, np.full((2, 10), np.nan), "value")])
def test_nothing_finite_is_said_so(axes: mpl.axes.Axes, mark: object) -> None:
    draw(panel(mark), axes)
    assert "no finite values" in texts(axes.figure)
    assert axes.child_axes == [], "colours of nothing need no scale"
    assert isinstance(mark, Heat) or len(axes.get_yticks()) == 0, "numbers would be made up"


def test_heat_map_names_rows_from_top_to_bottom(axes: mpl.axes.Axes) -> None:
    values = np.arange(30.0).reshape(3, 10)
    draw(panel(Heat(X, values, "norm", names=("a", "b", "c"), scale="log")), axes)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]
    assert axes.yaxis_inverted()
    (mesh,) = (c for c in axes.collections if isinstance(c, QuadMesh))
    assert mesh.get_array().shape == (3, 10)
    assert "norm" in texts(axes.figure)


def test_heat_map_on_edges_and_with_both_signs(axes: mpl.axes.Axes) -> None:
    values = np.array([[-1.0, 2.0, np.inf], [0.0, np.nan, 1.0]])
    draw(panel(Heat(X[:3], values, "value", edges=np.array([-1.0, 0.0, 5.0]))), axes)
    assert axes.get_ylim() == (-1, 5)
    mesh, infinities = (c for c in axes.collections if isinstance(c, QuadMesh))
    assert np.ma.getmaskarray(infinities.get_array()).tolist() == [
        [True, True, False],
        [True, True, True],
    ]
    assert to_hex(infinities.get_cmap()(0.5)) == THEMES["light"].infinite
    assert np.ma.getmaskarray(mesh.get_array()).sum() == 2, "neither NaN nor infinity has a number"
    assert "∞" in texts(axes.figure)
    assert (mesh.norm.vmin, mesh.norm.vmax) == (-2, 2)


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize("ends", [(1.0, 1.2), (1.0, 3.0), (3.0, 90.0), (1e-7, 1e3), (70.0, 2e4)])
def test_colours_have_a_scale_of_numbers_written_alike(
    axes: mpl.axes.Axes, scale: str, ends: tuple[float, float]
) -> None:
    draw(panel(Heat(X, np.linspace(*ends, 10)[None], "value", names=("a",), scale=scale)), axes)
    (bar,) = axes.child_axes
    low, high = bar.get_ylim()
    seen = [
        label.get_text()
        for label, tick in zip(bar.get_yticklabels(), bar.get_yticks(), strict=True)
        if low <= tick <= high
    ]
    assert len(seen) >= 2
    assert len(set(seen)) == len(seen)
    assert len({"10" in text and text[-1] in "⁰¹²³⁴⁵⁶⁷⁸⁹" for text in seen if text != "0"}) == 1


@pytest.mark.parametrize(
    ("values", "texts_"),
    [
        ([0.01, 0.1, 1.0], ["0.01", "0.1", "1"]),
        ([1e-5, 0.01, 10.0], ["10⁻⁵", "10⁻²", "10¹"]),
        ([500.0, 2000.0, 1e4], ["500", "2k", "10k"]),
        ([0.0, -2e-4], ["0", "−2·10⁻⁴"]),
    ],
)
def test_numbers_of_one_scale_are_written_alike(values: list[float], texts_: list[str]) -> None:
    assert tick_texts(values) == texts_


def test_a_circle_is_round_where_units_are_equal() -> None:
    shown = panel(
        Line(X, X), x_label="x", x_range=(-1.0, 2.0), y_range=(-1.0, 1.0), equal=True, y_label="y"
    )
    own = Figure(figsize=(9, 3), layout="constrained")
    draw(shown, own.subplots(1, 3)[1])
    for figure, at in ((own, 1), (draw_figure([shown], Figure(figsize=(5, 4))), 0)):
        FigureCanvasAgg(figure).draw()
        axes = figure.axes[at]
        origin, right, up = axes.transData.transform([(0, 0), (1, 0), (0, 1)])
        assert right[0] - origin[0] == pytest.approx(up[1] - origin[1], rel=1e-3)
        (left, end), (low, high) = axes.get_xlim(), axes.get_ylim()
        assert left <= -1
        assert end >= 2
        assert low <= -1
        assert high >= 1


def test_ticks_end_where_marginals_begin(axes: mpl.axes.Axes) -> None:
    heat = Heat(X[:4] + 0.5, np.ones((3, 4)), "count", edges=np.linspace(-1, 1, 4))
    draw(
        panel(heat, Line(X + 4.5, 0 * X), x_label="x", x_range=(0.0, 9.0), y_range=(-1.0, 3.0)),
        axes,
    )
    assert max(axes.get_xticks()) == 4
    assert max(axes.get_yticks()) == 1


def test_places_may_have_names(axes: mpl.axes.Axes) -> None:
    names = tuple(f"module{i}" for i in range(40))
    for count in (2, 40):
        axes.clear()
        places = np.arange(1.0, count + 1)
        many = {"x_label": "module", "x_range": (0.5, count + 0.5), "x_names": names[:count]}
        draw(panel(Line(places, places), **many), axes)
        labels = axes.get_xticklabels()
        assert labels[0].get_text() == "module0"
        assert [label.get_rotation() for label in labels[:1]] == [0 if count == 2 else 90]
        assert len(labels) <= 40


def test_style_is_checked() -> None:
    with pytest.raises(InvalidArgument, match="'light', 'dark', got 'pink'"):
        theme_of("pink")
    with pytest.raises(InvalidArgument):
        CockpitPlotter(style="pink")


# thinning


def test_thin_lines_keep_every_spike_and_every_gap() -> None:
    x, y = np.arange(100_000.0), np.sin(np.arange(100_000) / 500)
    y[[777, 55_555]], y[33_333] = (50, -50), np.nan
    keep = thin_line(x, y)
    assert len(keep) <= 2000
    assert {0, 777, 33_333, 55_555, 99_999} <= set(keep)
    assert (np.diff(keep) > 0).all()
    early = thin_line(x, y, logarithmic=True)
    assert (early < 100).sum() > (keep < 100).sum(), "columns are even where they are seen"


def test_thin_cells_keep_the_largest() -> None:
    values = np.zeros((2, 5000))
    values[1, 4321] = 7
    edges, thin = thin_cells(np.arange(5000.0), values)
    assert thin.shape[1] <= 600
    assert len(edges) == thin.shape[1] + 1
    assert thin[1].max() == 7
    np.testing.assert_array_equal(cell_edges(np.array([0.0, 1.0, 3.0])), [-0.5, 0.5, 2.0, 4.0])


# letters


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.25"), (-2, "−2"), (1000, "1000"), (20_000, "20k"), (1.5e6, "1.5M"),
     (1e-7, "10⁻⁷"), (2e-5, "2·10⁻⁵"), (-1e12, "−10¹²")],
)  # fmt: skip
def test_tick_text(value: float, text: str) -> None:
    assert tick_text(value) == text


def test_wrap_and_shorten_respect_the_width() -> None:
    lines = wrap("a sentence that is longer than one line can hold", 60, 8)
    assert len(lines) > 2
    assert all(width_of(line, 8) <= 60 for line in lines)
    short = shorten("transformer.h.11.attention.weight", 70, 8)
    assert short.startswith("trans")
    assert short.endswith("weight")
    assert "…" in short
    assert width_of(short, 8) <= 70


def test_names_lose_first_what_they_share() -> None:
    names = ["model.layers.0.weight", "model.layers.1.weight"]
    assert shorten_all(names, 80, 8) == ["…0.weight", "…1.weight"]
    assert shorten_all(names, 800, 8) == names
    assert shorten_all(names[:1], 800, 8) == names[:1]


def test_names_can_still_be_told_apart_when_they_are_short() -> None:
    names = ["encoder.norm1.weight", "encoder.linear2.weight", "blocks.0.proj.weight", "head"]
    short = shorten_all(names, 80, 8)
    assert [name[-6:] for name in short[:3]] == ["weight"] * 3
    assert len(set(short)) == 4, "cut in the middle, the first two would be the same"
    assert shorten_all([names[0], names[2]], 80, 8) == ["encoder.….weight", "blocks.0….weight"]
    assert all(width_of(name, 8) <= 80 for name in short)
    layers = [f"blocks.{i}.attention.projection.weight" for i in range(4)] + ["head"]
    assert len(set(shorten_all(layers, 80, 8))) == 5  # cut in the middle they would be the same
    assert all(width_of(name, 8) <= 40 for name in shorten_all(names, 40, 8))


# the whole figure


def test_figure_has_a_heading_per_group_and_a_title_per_panel(run: Run) -> None:
    figure = CockpitPlotter().plot(run)
    assert {"STEP SIZE", "GRADIENTS", "PERFORMANCE", "HYPERPARAMETERS"} <= set(texts(figure))
    assert {"Step length α", "Gradient noise", "Loss", "Learning rate", "Mine"} <= set(
        titles(figure)
    )
    assert "first" in texts(figure)
    assert any("30 steps tracked" in text for text in texts(figure))


def test_run_without_data_says_so(writer: RunWriter) -> None:
    writer.close()
    assert "Nothing recorded yet" in texts(CockpitPlotter().plot(writer.path))


@pytest.mark.parametrize("size", [(8, 5), (10, 6), (16, 9), (24, 14), (7, 12)])
def test_no_text_meets_another(run: Run, size: tuple[float, float]) -> None:
    figure = CockpitPlotter(figsize=size).plot(run)
    FigureCanvasAgg(figure).draw()
    words = [t for t in figure.findobj(mpl.text.Text) if t.get_text() and t.get_visible()]
    ticks = [label for a in figure.findobj(mpl.axes.Axes) for label in _unseen_ticks(a)]
    boxes = [(t, t.get_window_extent()) for t in words if t not in ticks]
    page = figure.bbox
    for text, box in boxes:
        assert page.x0 <= box.x0 <= box.x1 <= page.x1, text.get_text()
        assert page.y0 <= box.y0 <= box.y1 <= page.y1, text.get_text()
    for (one, a), (two, b) in combinations(boxes, 2):
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        up = min(a.y1, b.y1) - max(a.y0, b.y0)
        slack = 0.35 * min(a.height, b.height)  # a box is taller than its letters
        assert across < 2 or up < slack, (one.get_text(), two.get_text())


def _unseen_ticks(axes: mpl.axes.Axes) -> list[mpl.text.Text]:
    """Return the tick labels outside the limits, which matplotlib does not draw."""
    unseen = []
    for axis in (axes.xaxis, axes.yaxis):
        place = axis.get_transform().transform
        low, high = sorted(place(np.array(axis.get_view_interval())))
        air = 1e-6 * (high - low)
        for tick in axis.get_major_ticks() + axis.get_minor_ticks():
            if not low - air <= place(tick.get_loc()) <= high + air:
                unseen += [tick.label1, tick.label2]
    return unseen


def test_step_axes_are_shared_and_may_be_logarithmic(run: Run) -> None:
    over_steps = [a for a in CockpitPlotter().plot(run).axes if a.get_xlabel() == "step"]
    assert len({a.get_xlim() for a in over_steps}) == 1
    logged = CockpitPlotter().plot(run, show_log_iter=True)
    assert {a.get_xscale() for a in logged.axes if a.get_xlabel() == "step"} == {"symlog"}
    assert {a.get_xscale() for a in logged.axes if a.get_xlabel() == "α"} == {"linear"}


def test_discard_leaves_out_what_came_later(run: Run) -> None:
    figure = CockpitPlotter().plot(run, discard=9)
    assert any("step 9  ·  10 steps tracked" in text for text in texts(figure))
    longest = max(len(line.get_xdata()) for axes in figure.axes for line in axes.lines)
    assert longest < 130, "121 points draw the valley"
    assert all(a.get_xlim()[1] < 12 for a in figure.axes if a.get_xlabel() == "step")


def test_dark_theme_by_plotter_or_by_call(run: Run) -> None:
    dark = THEMES["dark"]
    for figure in (
        CockpitPlotter(style="dark").plot(run),
        CockpitPlotter().plot(run, style="dark"),
    ):
        assert to_hex(figure.get_facecolor()) == dark.background
        assert {to_hex(a.get_facecolor()) for a in figure.axes if a.get_title("left")} == {
            dark.card
        }


def test_nothing_global_changes(run: Run, tmp_path: Path) -> None:
    backend = mpl.get_backend()
    before, figures = mpl.rcParams.copy(), plt.get_fignums()
    CockpitPlotter().plot(run, save_plot=True, savedir=tmp_path, style="dark")
    assert mpl.rcParams == before
    assert plt.get_fignums() == figures
    assert mpl.get_backend() == backend


def test_save_names_and_folders(run: Run, tmp_path: Path) -> None:
    plotter = CockpitPlotter(figsize=(8, 5))
    plotter.plot(run, save_plot=True)
    assert (tmp_path / "cockpit.png").read_bytes().startswith(b"\x89PNG")
    plotter.plot(
        run, save_plot=True, savedir=tmp_path / "a" / "b", savename="p", savename_append="_1"
    )
    assert (tmp_path / "a" / "b" / "p_1.png").is_file()
    plotter.plot(run, save_plot=True, savename="q", savefig_kwargs={"format": "svg"})
    assert (tmp_path / "q.svg").is_file()


def test_sources(run: Run) -> None:
    class Watch:
        def run(self) -> Run:
            return run

    expected = titles(CockpitPlotter().plot(run))
    for source in (run.path, str(run.path), Watch()):
        assert titles(CockpitPlotter().plot(source)) == expected
    with pytest.raises(InvalidType, match=r"source must be a run.*got int"):
        CockpitPlotter().plot(3)


def test_title(run: Run) -> None:
    assert "My run" in texts(CockpitPlotter().plot(run, plot_title="My run"))


def test_failing_instrument_warns_or_raises_with_debug(run: Run) -> None:
    @instrument("Loss")
    def broken(run: object) -> Panel | None:
        raise ArithmeticError("division by nothing")

    plotter = CockpitPlotter(instruments=(broken,))
    with pytest.warns(CockpitWarning, match="no picture of Loss: ArithmeticError: division"):
        plotter.plot(run)
    with pytest.raises(ArithmeticError):
        plotter.plot(run, debug=True)


def test_a_live_run_is_drawn_anew_in_the_same_window(
    writer: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []
    monkeypatch.setattr(cockpit.plotter, "_has_windows", lambda: True)
    monkeypatch.setattr(plt, "show", lambda block: shown.append(block))
    record(writer, range(5))
    writer.flush()
    live, plotter = open_run(writer.path), CockpitPlotter()
    try:
        first = plotter.plot(live)
        assert any("step 4" in text for text in texts(first))
        record(writer, range(5, 10))
        writer.flush()
        second = plotter.plot(live, block=True)
        assert second is first
        assert any("step 9" in text for text in texts(second))
        assert shown == [False, True]
        plt.close(first)
        assert plotter.plot(live) is not first, "a closed window is opened again"
    finally:
        plt.close("all")
        writer.close()


def test_without_windows_showing_does_nothing(run: Run) -> None:
    with mpl.rc_context({"backend": "agg"}):
        figures = plt.get_fignums()
        CockpitPlotter().plot(run, show_plot=True)
        assert plt.get_fignums() == figures


@pytest.mark.parametrize("count", [1, 2, 3, 5, 13, 24, 40])
def test_arrange_places_every_panel_once_in_order(count: int) -> None:
    groups = ("STEP SIZE", "GRADIENTS", "PERFORMANCE")
    items = [replace(panel(), group=groups[3 * i // count]) for i in range(count)]
    rows = arrange(items, 16, 9)
    placed = [p for row in rows for section in row for p in section.panels]
    assert placed == items
    assert all(section.panels for row in rows for section in row)


# single pictures


def test_one_picture_on_your_own_axes(run: Run) -> None:
    figure = Figure(figsize=(10, 4))
    left, right = figure.subplots(1, 2)
    assert run.plot("alpha", ax=left) is left
    assert run.plot("Loss", ax=right, style="dark", show_log_iter=True) is right
    assert titles(figure) == ["Step length α", "Loss"]
    assert (left.get_xscale(), right.get_xscale()) == ("linear", "symlog")
    assert to_hex(right.get_facecolor()) == THEMES["dark"].card


def test_one_picture_on_a_figure_of_its_own(run: Run) -> None:
    before, figures = mpl.rcParams.copy(), plt.get_fignums()
    figure = run.plot("alpha", discard=9)
    assert titles(figure) == ["Step length α"]
    assert max(len(line.get_xdata()) for line in figure.axes[0].lines) == 10
    assert CockpitPlotter(figsize=(3, 2)).plot_panel(run.path, "loss").figure.get_figwidth() == 3
    assert mpl.rcParams == before
    assert plt.get_fignums() == figures


def test_one_picture_that_there_is_not(run: Run) -> None:
    with pytest.raises(InvalidArgument, match="Did you mean 'alpha'"):
        run.plot("alpah")
    with pytest.raises(InvalidArgument, match="no data for a picture of 'cabs'"):
        run.plot("cabs")
    with pytest.raises(InvalidArgument, match="ax is for a single picture"):
        run.plot(ax=Figure().add_subplot())


def test_all_pictures_without_a_name(run: Run) -> None:
    assert titles(run.plot(style="dark")) == titles(CockpitPlotter().plot(run))


# in a notebook


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    shell = SimpleNamespace(execution_count=1, kernel=object(), places=[])

    def display(data: dict, raw: bool, display_id: bool = False) -> SimpleNamespace:
        place = [data["image/png"]]
        shell.places.append(place)
        return SimpleNamespace(update=lambda data, raw: place.append(data["image/png"]))

    ipython = SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr(cockpit.plotter, "_has_windows", lambda: False)
    return shell


def test_a_notebook_shows_one_place_per_cell_and_draws_it_anew(
    run: Run, shell: SimpleNamespace
) -> None:
    plotter = CockpitPlotter(figsize=(8, 5))
    for step in (5, 10, 20):
        figure = plotter.plot(run, discard=step)
    ((first, second, third),) = shell.places
    assert first.startswith(b"\x89PNG")
    assert len({first, second, third}) == 3
    figure._ipython_display_()
    assert len(shell.places) == 1, "as the result of its cell, it is not shown a second time"
    shell.execution_count = 2
    plotter.plot(run)
    assert [len(place) for place in shell.places] == [3, 1]


def test_a_notebook_shows_what_is_not_shown_yet(run: Run, shell: SimpleNamespace) -> None:
    run.plot("loss")
    assert shell.places == []
    run.plot("loss")._ipython_display_()
    assert [len(place) for place in shell.places] == [1]


def test_draw_figure_takes_any_panels() -> None:
    figure = draw_figure([panel(Line(X, X))], Figure(figsize=(5, 4)), title="One")
    assert titles(figure) == ["Title"]
