"""Axes: their scales, what part of them is seen, and their ticks."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    MaxNLocator,
    NullLocator,
)

from cockpit.instruments.panel import Array, Band, Bars, Heat, Line, Panel, Points, Reference
from cockpit.instruments.thinning import cell_edges
from cockpit.plotting.letters import tick_text
from cockpit.plotting.marks import Pen

__all__ = ["has_data", "heights", "set_limits", "set_scale", "set_steps", "set_ticks", "step_range"]


def heights(panel: Panel) -> Array:
    """Return all finite values on the y axis."""
    found: list[Array] = [np.zeros(0)]
    for mark in panel.marks:
        if isinstance(mark, Line | Points):
            found.append(np.asarray(mark.y, float))
        elif isinstance(mark, Band):
            found += [np.asarray(mark.low, float), np.asarray(mark.high, float)]
        elif isinstance(mark, Bars):
            found.append(np.asarray(mark.heights, float))
    joined = np.concatenate(found)
    return joined[np.isfinite(joined)]


def has_data(panel: Panel) -> bool:
    """Return whether there is anything finite to see."""
    heat = [m for m in panel.marks if isinstance(m, Heat)]
    return bool(heights(panel).size) or any(np.isfinite(m.values).any() for m in heat)


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
        axes.set_ylim(_limits(np.append(values, words), axes.get_yscale(), bars, named))
    if panel.x_range is not None:
        axes.set_xlim(panel.x_range)
    if panel.over_steps:
        steps = step_range(panel)
        if steps is not None:
            set_steps(axes, *steps, pen)


def step_range(panel: Panel) -> tuple[float, float, float] | None:
    """Return the first, the first positive, and the last step of a panel; `None` without steps."""
    found: list[Array] = []
    for mark in panel.marks:
        if isinstance(mark, Line | Points | Band | Heat):
            found.append(np.asarray(mark.x, float))
        if isinstance(mark, Heat):
            found.append(cell_edges(np.asarray(mark.x, float)))
    steps = np.concatenate([np.zeros(0), *found])
    if not steps.size:
        return None
    whole = steps[(steps >= 1) & (steps == np.round(steps))]
    return float(steps.min()), float(whole.min(initial=max(steps.max(), 1.0))), float(steps.max())


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


def _limits(values: Array, scale: str, bars: bool, named: bool) -> tuple[float, float]:
    """Return the y limits: all values, some air, and room for words above bars."""
    if scale == "log":
        low, high = np.log10(values[values > 0].min()), np.log10(values.max())
        if bars:
            return 0.5, float(10 ** (high + 0.08 * (high - np.log10(0.5))))
        air = max(0.06 * (high - low), 0.05)
        return float(10 ** (low - air)), float(10 ** (high + air))
    low, high = float(values.min()), float(values.max())
    if bars:
        return 0.0, (high or 1.0) * (1.35 if named else 1.06)
    air = 0.07 * (high - low) or 0.1 * abs(high) or 0.5
    return (low * 1.6 if scale == "symlog" and low < 0 else low - air), (
        high * 1.6 if scale == "symlog" and high > 0 else high + air
    )


def set_ticks(panel: Panel, axes: Axes, pen: Pen) -> None:
    """Set few, round ticks."""
    across = int(np.clip(pen.width / (pen.letters * 4.2), 2, 8))
    up = int(np.clip(pen.height / (pen.letters * 2.6), 2, 7))
    if not panel.over_steps:
        counted = [np.asarray(m.x, float) for m in panel.marks if isinstance(m, Line)]
        whole = bool(counted) and all((x == np.round(x)).all() for x in counted)
        steps = [1, 2, 5, 10] if whole else [1, 2, 2.5, 5, 10]
        axes.xaxis.set_major_locator(MaxNLocator(nbins=across, steps=steps, integer=whole))
        axes.xaxis.set_major_formatter(FuncFormatter(tick_text))
        axes.xaxis.set_minor_locator(NullLocator())
    if any(isinstance(m, Heat) and m.names for m in panel.marks):
        return
    scale, limits = axes.get_yscale(), axes.get_ylim()
    if scale == "log" and np.log10(limits[1] / limits[0]) > 0.6:
        axes.yaxis.set_major_locator(FixedLocator(_log_ticks(*limits, up)))
    elif scale == "symlog":
        size = np.log10(np.max(np.abs(limits)))
        decades = np.arange(np.ceil(size) - 1, _smallest(axes), -max(1, np.ceil(2 * size / up)))
        both = [*-(10.0**decades), 0.0, *10.0 ** decades[::-1]]
        axes.yaxis.set_major_locator(FixedLocator([v for v in both if limits[0] <= v <= limits[1]]))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=up, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(tick_text))
    axes.yaxis.set_minor_locator(NullLocator())


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers from `low` to `high`: 1, 2, 5, 10, ..., or decades, at most so many."""
    first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
    options = [[m * 10.0**d for d in range(first, last + 1) for m in (1, 2, 5)]]
    options += [[10.0**d for d in range(first, last + 1)[::-every][::-1]] for every in range(1, 9)]
    options = [[v for v in option if low <= v <= high] for option in options]
    return next((option for option in options if len(option) <= most), options[-1][:most])


def _smallest(axes: Axes) -> float:
    """Return the decade at which the linear part of a symlog axis ends."""
    return float(np.log10(axes.yaxis.get_transform().linthresh))  # type: ignore[attr-defined]
