"""The axes of a figure of plotly.js: scales, ranges, ticks."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from cockpit.instruments.panel import Array, Heat, Panel
from cockpit.plotting.plotly_canvas import Canvas
from cockpit.plotting.theme import Theme

__all__ = ["LETTERS", "scale_of", "x_axis", "y_axis"]

LETTERS = 11
"""Size of the letters in pixels."""


def scale_of(panel: Panel, values: Array) -> tuple[Any, float]:
    """Return the scale of the y axis, as far as the values allow it, and where symlog is linear."""
    if panel.scale == "log" and (values > 0).any():
        return "log", 1.0
    if panel.scale == "symlog" and (values != 0).any():
        size = np.abs(values[values != 0])
        threshold = max(float(np.quantile(size, 0.05)), float(size.max()) * 1e-6)
        return "symlog", float(10 ** np.floor(np.log10(threshold)))
    return "linear", 1.0


def x_axis(panel: Panel, theme: Theme, window: tuple[float, float] | None) -> dict[str, Any]:
    """Return the x axis, which shows the window if it counts steps."""
    axis = _axis(theme, "" if panel.over_steps else panel.x_label)
    axis |= {"showgrid": not panel.over_steps, "showline": True, "nticks": 6}
    if panel.over_steps:
        axis |= {"unifiedhovertitle": {"text": "step %{x:.0f}"}, "hoverformat": ".0f"}
        axis |= {"tickformat": ",~r" if window is None else ",~f"}
    if panel.over_steps and window is not None:
        axis["range"] = list(window)
    elif panel.x_range is not None:
        axis["range"] = list(panel.x_range)
    return axis


def y_axis(panel: Panel, canvas: Canvas, values: Array) -> dict[str, Any]:
    """Return the y axis for finite values, or for the named rows of a heat map."""
    unit = f" [{panel.unit}]" if panel.unit else ""
    axis = _axis(canvas.theme, f"{panel.y_label}{unit}" if panel.y_label else panel.unit)
    heat = [mark for mark in panel.marks if isinstance(mark, Heat)]
    axis |= {"nticks": 6, "fixedrange": bool(heat and heat[0].names)}
    if heat and heat[0].names:
        size = len(heat[0].values)
        return axis | {
            "type": "category",
            "range": [size - 0.5, -0.5],
            "showticklabels": False,
            "showgrid": False,
        }
    if canvas.scale == "log":
        decades = _decades(values)
        few = "D1" if decades < 0.5 else "D2" if decades < 1 else max(1, int(np.ceil(decades / 5)))
        axis |= {"type": "log", "dtick": few}
        axis |= {"exponentformat": "power"}
        if values[values > 0].min() >= 1e-4 and values.max() < 1e5:
            axis["tickformat"] = "~g"
    elif canvas.scale == "symlog":
        axis |= _symlog_ticks(values, canvas)
    else:
        axis |= {"tickformat": "~g", "exponentformat": "power"}
        largest = np.abs(values).max(initial=0.0)
        if largest >= 1e4 or 0 < largest < 1e-3:
            axis["tickformat"] = "~s" if largest >= 1e4 else ".1~e"
    if panel.y_range is not None:
        bounds = np.array(panel.y_range, float)
        if canvas.scale == "log":
            bounds = np.log10(np.maximum(bounds, 1e-300))
        axis["range"] = canvas.place(bounds).tolist()
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


def _decades(values: Array) -> float:
    positive = values[values > 0]
    return float(np.log10(positive.max() / positive.min()))


def _symlog_ticks(values: Array, canvas: Canvas) -> dict[str, Any]:
    """Return round values of both signs, where they are on the linear axis."""
    low, high = np.log10(canvas.threshold), np.log10(np.abs(values).max())
    decades = 10.0 ** np.arange(low, high + 1, max(1, np.ceil((high - low) / 3)))
    ticks = np.array([*-decades[::-1], 0.0, *decades])
    ticks = ticks[(ticks >= values.min() * 1.05) & (ticks <= values.max() * 1.05) | (ticks == 0)]
    shown = [f"{tick:g}".replace("-", "−") for tick in ticks]
    return {"tickmode": "array", "tickvals": canvas.place(ticks).tolist(), "ticktext": shown}
