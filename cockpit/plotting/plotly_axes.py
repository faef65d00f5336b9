"""The axes of a figure of plotly.js: scales, ranges, ticks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from cockpit.instruments.panel import Array, Bars, Heat, Panel, Reference
from cockpit.plotting.extents import limits, round_ticks, step_range, step_ticks
from cockpit.plotting.letters import shorten_all, tick_texts
from cockpit.plotting.plotly_canvas import Canvas
from cockpit.plotting.theme import Theme

__all__ = ["LETTERS", "scale_of", "seen_range", "texts_of", "x_axis", "y_axis"]

LETTERS = 11
"""Size of the letters in pixels."""

NAME_WIDTH = 72.0
"""Width in pixels that a name below the x axis may have."""


def scale_of(panel: Panel, values: Array) -> tuple[Any, float]:
    """Return the scale of the y axis, as far as the values allow it, and where symlog is linear."""
    if panel.scale == "log" and (values > 0).any():
        return "log", 1.0
    if panel.scale == "symlog" and (values != 0).any():
        size = np.abs(values[values != 0])
        threshold = max(float(np.quantile(size, 0.05)), float(size.max()) * 1e-6)
        return "symlog", float(10 ** np.floor(np.log10(threshold)))
    return "linear", 1.0


def seen_range(panel: Panel, scale: str, values: Array) -> tuple[float, float] | None:
    """Return what part of the y axis is seen; `None` for the named rows of a heat map."""
    heat = next((mark for mark in panel.marks if isinstance(mark, Heat)), None)
    if heat is not None and heat.edges is None:
        return None
    wanted = panel.y_range
    if wanted is None and heat is not None and heat.edges is not None:
        wanted = float(heat.edges[0]), float(heat.edges[-1])
    if wanted is not None and (scale != "log" or wanted[0] > 0):
        return wanted
    references = [mark for mark in panel.marks if isinstance(mark, Reference)]
    values = np.append(values, [mark.value for mark in references if mark.axis == "y"])
    if not values.size:
        return None
    bars = any(isinstance(mark, Bars) for mark in panel.marks)
    return limits(values, scale, bars, named=False)  # words stand above the picture


def x_axis(panel: Panel, canvas: Canvas, window: tuple[float, float] | None) -> dict[str, Any]:
    """Return the x axis, which shows the window if it counts steps."""
    axis = _axis(canvas.theme, panel.x_label)
    axis |= {"type": "linear", "showgrid": not panel.over_steps, "showline": True, "nticks": 6}
    if panel.over_steps:
        axis |= {"unifiedhovertitle": {"text": "step %{x:.0f}"}, "hoverformat": ".0f"}
        axis |= {"tickformat": ",~r" if window is None else ",~f"}
        shown = window or panel.x_range or _steps(panel)
        if shown is None:
            return axis
        most = int(np.clip(canvas.across / (LETTERS * 3.6), 2, 8))
        return axis | {"range": list(shown)} | _ticks(step_ticks(*shown, most))
    if panel.x_names:
        axis.pop("type")  # a page that makes room for more ticks leaves these as they are
        axis |= _named_places(panel.x_names, canvas.across)
    if panel.x_range is not None:
        axis["range"] = list(panel.x_range)
    return axis


def _steps(panel: Panel) -> tuple[float, float] | None:
    """Return the steps that are seen; cells of a heat map reach to the edge, lines have some air."""
    found = step_range(panel)
    if found is None:
        return None
    low, _, high = found
    heat = any(isinstance(mark, Heat) for mark in panel.marks)
    air = 0.0 if heat else 0.015 * (high - low) or 0.5
    return low - air, high + air


def _named_places(names: Sequence[str], across: float) -> dict[str, Any]:
    """Return ticks with words, upright, as many as there is room for."""
    every = max(1, int(np.ceil(len(names) * 1.5 * LETTERS / across)))
    shown = list(range(0, len(names), every))
    short = shorten_all([names[place] for place in shown], NAME_WIDTH, LETTERS)
    return {
        "tickmode": "array",
        "tickvals": [place + 1 for place in shown],
        "ticktext": list(map(escape, short)),
    }


def y_axis(panel: Panel, canvas: Canvas, values: Array) -> dict[str, Any]:
    """Return the y axis for finite values, or for the named rows of a heat map."""
    unit = f" [{panel.unit}]" if panel.unit else ""
    axis = _axis(canvas.theme, f"{panel.y_label}{unit}" if panel.y_label else panel.unit)
    heat = [mark for mark in panel.marks if isinstance(mark, Heat)]
    axis |= {"nticks": 6, "fixedrange": bool(heat and heat[0].names)}
    if heat and heat[0].edges is None:
        size = len(heat[0].values)
        return axis | {
            "type": "category",
            "range": [size - 0.5, -0.5],
            "showticklabels": False,
            "showgrid": False,
        }
    if canvas.scale != "symlog":
        axis["type"] = canvas.scale
    axis |= {"tickformat": "~g", "exponentformat": "power"}
    largest = np.abs(values).max(initial=0.0)
    if largest >= 1e4 or 0 < largest < 1e-3:
        axis["tickformat"] = "~s" if largest >= 1e4 else ".1~e"
    if canvas.seen is None:
        return axis
    axis["range"] = canvas.axis(canvas.seen)
    most = int(np.clip(canvas.up / (LETTERS * 2.6), 2, 7))
    if canvas.scale == "symlog":
        axis |= _symlog_ticks(values, canvas)
    elif canvas.scale == "log":
        ticks = round_ticks(*canvas.seen, most, logarithmic=True)
        axis |= _ticks(ticks) | {"fixedrange": True}
    elif panel.over_steps:  # where one can zoom into the values, plotly finds ticks for all of it
        axis |= _ticks(round_ticks(*canvas.seen, most))
    if panel.equal:
        axis |= {"scaleanchor": "x", "scaleratio": 1}
    return axis


def _axis(theme: Theme, title: str) -> dict[str, Any]:
    return {
        "title": {"text": escape(title), "standoff": 4, "font": {"size": LETTERS}},
        "gridcolor": theme.grid,
        "linecolor": theme.border,
        "tickfont": {"size": LETTERS, "color": theme.muted},
        "zeroline": False,
        "ticks": "",
        "automargin": True,
    }


def _ticks(ticks: Sequence[float]) -> dict[str, Any]:
    return {"tickmode": "array", "tickvals": list(ticks), "ticktext": texts_of(ticks)}


def texts_of(ticks: Sequence[float]) -> list[str]:
    """Return numbers as they stand beside an axis, with as many digits as tell them apart."""
    shown = tick_texts(ticks)
    digits = 5
    while len(set(shown)) < len(set(ticks)) and digits < 17:
        shown = [f"{tick:.{digits}g}".replace("-", "−") for tick in ticks]
        digits += 1
    return shown


def _symlog_ticks(values: Array, canvas: Canvas) -> dict[str, Any]:
    """Return round values of both signs, where they are on the linear axis."""
    low, high = np.log10(canvas.threshold), np.log10(np.abs(values).max())
    decades = 10.0 ** np.arange(low, high + 1, max(1, np.ceil((high - low) / 3)))
    ticks = np.array([*-decades[::-1], 0.0, *decades])
    ticks = ticks[(ticks >= values.min() * 1.05) & (ticks <= values.max() * 1.05) | (ticks == 0)]
    return _ticks(ticks.tolist()) | {"tickvals": canvas.place(ticks).tolist()}
