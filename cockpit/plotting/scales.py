"""Axes: their scales, what part of them is seen, and their ticks."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    MaxNLocator,
    NullLocator,
)

from cockpit.instruments.panel import Array, Bars, Heat, Line, Panel, Reference
from cockpit.instruments.thinning import cell_edges
from cockpit.plotting.extents import (
    has_data,
    heights,
    limits,
    round_ticks,
    step_range,
)
from cockpit.plotting.letters import shorten_all, tick_text, width_of
from cockpit.plotting.marks import Pen, apart

__all__ = ["has_data", "heights", "set_limits", "set_scale", "set_steps", "set_ticks", "step_range"]


def set_scale(panel: Panel, axes: Axes, values: Array) -> None:
    """Set the scale of the y axis, as far as the values allow it."""
    if panel.scale == "log" and (values > 0).any():
        axes.set_yscale("log")
    elif panel.scale == "symlog" and (values != 0).any():
        size = np.abs(values[values != 0])
        threshold = max(float(np.quantile(size, 0.05)), float(size.max()) * 1e-6)
        axes.set_yscale("symlog", linthresh=10 ** np.floor(np.log10(threshold)), linscale=0.5)


def set_limits(panel: Panel, axes: Axes, values: Array, pen: Pen) -> None:
    """Set what part of the axes is seen; call it when the marks are drawn."""
    if panel.y_range is not None:
        axes.set_ylim(panel.y_range)
    elif values.size and not any(isinstance(m, Heat) for m in panel.marks):
        words = [m.value for m in panel.marks if isinstance(m, Reference) and m.axis == "y"]
        bars = any(isinstance(m, Bars) for m in panel.marks)
        named = any(isinstance(m, Reference) and m.axis == "x" for m in panel.marks)
        axes.set_ylim(limits(np.append(values, words), axes.get_yscale(), bars, named))
    if panel.x_range is not None:
        axes.set_xlim(panel.x_range)
    if panel.over_steps:
        steps = step_range(panel)
        if steps is not None:
            set_steps(axes, *steps, pen)


def set_steps(axes: Axes, low: float, first: float, high: float, pen: Pen) -> None:
    """Set the step axis: from `low` to `high`; if logarithmic, `first` is the first after 0."""
    across = int(np.clip(pen.width / (pen.letters * 4.2), 2, 8))
    if not pen.log_steps:
        air = 0.015 * (high - low) or 0.5
        axes.set_xlim(low - air, high + air)
        steps = [1, 2, 2.5, 5, 10] if high - low > 20 else [1, 2, 5, 10]
        axes.xaxis.set_major_locator(
            MaxNLocator(nbins=across, integer=True, steps=steps, min_n_ticks=1)
        )
    else:
        low = max(low, 0.0)
        axes.set_xscale("symlog", linthresh=first, linscale=0.4)
        axes.set_xlim(low, max(high, 1.1 * first))
        decades = np.arange(np.ceil(np.log10(first)), np.floor(np.log10(max(high, first))) + 1)
        shown = decades[:: max(1, int(np.ceil(len(decades) / across)))]
        axes.xaxis.set_major_locator(FixedLocator([*([0.0] if low == 0 else []), *10.0**shown]))
    axes.xaxis.set_major_formatter(FuncFormatter(tick_text))
    axes.xaxis.set_minor_locator(NullLocator())


def set_ticks(panel: Panel, axes: Axes, pen: Pen) -> None:
    """Set few, round ticks."""
    across = int(np.clip(pen.width / (pen.letters * 4.2), 2, 8))
    up = int(np.clip(pen.height / (pen.letters * 2.6), 2, 7))
    if panel.equal:
        _equal_limits(panel, axes, pen)
    if panel.x_names:
        _name_places(panel.x_names, axes, pen)
    elif not panel.over_steps:
        counted = [np.asarray(m.x, float) for m in panel.marks if isinstance(m, Line)]
        whole = bool(counted) and all((x == np.round(x)).all() for x in counted)
        steps = [1, 2, 5, 10] if whole else [1, 2, 2.5, 5, 10]
        axes.xaxis.set_major_locator(MaxNLocator(nbins=across, steps=steps, integer=whole))
        axes.xaxis.set_major_formatter(FuncFormatter(tick_text))
        axes.xaxis.set_minor_locator(NullLocator())
    if any(isinstance(m, Heat) and m.names for m in panel.marks):
        return
    if panel.y_range is None and not has_data(panel):
        axes.set_yticks([])  # numbers beside nothing would be made up
        return
    surrounded = next((m for m in panel.marks if isinstance(m, Heat) and m.edges is not None), None)
    if surrounded is not None and panel.y_range is not None:
        _ticks_along(surrounded, axes, pen, max(2, across * 2 // 3), max(2, up * 2 // 3))
        return
    scale, limits = axes.get_yscale(), axes.get_ylim()
    if scale == "log":
        ticks = round_ticks(*limits, up, logarithmic=True)
        seen = apart(ticks, LogNorm(*limits), 1.9 * pen.letters / pen.height)
        axes.yaxis.set_major_locator(FixedLocator(seen or ticks))
    elif scale == "symlog":
        size = np.log10(np.max(np.abs(limits)))
        decades = np.arange(np.ceil(size) - 1, _smallest(axes), -max(1, np.ceil(2 * size / up)))
        both = [*-(10.0**decades), 0.0, *10.0 ** decades[::-1]]
        axes.yaxis.set_major_locator(FixedLocator([v for v in both if limits[0] <= v <= limits[1]]))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=up, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(tick_text))
    axes.yaxis.set_minor_locator(NullLocator())


def _equal_limits(panel: Panel, axes: Axes, pen: Pen) -> None:
    """Widen one of the ranges until one unit is equally long on both axes."""
    ranges, sizes = (axes.get_xlim(), axes.get_ylim()), (pen.width, pen.height)
    if panel.x_range is not None and panel.y_range is not None:  # as they were before they grew
        ranges = panel.x_range, panel.y_range
    unit = max((high - low) / size for (low, high), size in zip(ranges, sizes, strict=True))
    (left, right), (bottom, top) = (
        ((low + high - unit * size) / 2, (low + high + unit * size) / 2)
        for (low, high), size in zip(ranges, sizes, strict=True)
    )
    axes.set(xlim=(left, right), ylim=(bottom, top))
    axes.set_aspect("equal", adjustable="box")  # also when a layout gives it another shape later


def _ticks_along(heat: Heat, axes: Axes, pen: Pen, across: int, up: int) -> None:
    """Set ticks along a heat map only, as marginals beside it are on a scale of their own."""
    assert heat.edges is not None
    columns = cell_edges(np.asarray(heat.x, float))
    gaps = 3.2 * pen.letters / pen.width, 1.5 * pen.letters / pen.height
    for axis, ends, most, gap in zip(
        (axes.xaxis, axes.yaxis), (columns, heat.edges), (across, up), gaps, strict=True
    ):
        ticks = round_ticks(float(ends[0]), float(ends[-1]), most)
        seen = apart(ticks, Normalize(*axis.get_view_interval()), gap)
        axis.set_major_locator(FixedLocator(seen or ticks))
        axis.set_major_formatter(FuncFormatter(tick_text))
        axis.set_minor_locator(NullLocator())


def _name_places(names: tuple[str, ...], axes: Axes, pen: Pen) -> None:
    """Write names below the places 1, 2, ..., upright where they would touch, as many as have room."""
    apart = pen.width / len(names)
    widest = max(width_of(name, pen.letters) for name in names)
    upright = widest + 0.5 * pen.letters > apart
    every = max(1, int(np.ceil(1.35 * pen.letters / apart))) if upright else 1
    shown = range(0, len(names), every)
    room = min(5.5 * pen.letters, 0.4 * pen.height) if upright else apart
    labels = shorten_all([names[i] for i in shown], room, pen.letters)
    places = [i + 1.0 for i in shown]
    axes.set_xticks(places, labels, rotation=90 if upright else 0, parse_math=False)
    axes.xaxis.set_minor_locator(NullLocator())


def _smallest(axes: Axes) -> float:
    """Return the decade at which the linear part of a symlog axis ends."""
    return float(np.log10(axes.yaxis.get_transform().linthresh))  # type: ignore[attr-defined]
