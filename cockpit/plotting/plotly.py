"""The plotly renderer: turns one panel into one figure in plotly's JSON format.

The figure is a plain dictionary. A page hands it to plotly.js; ``plotly.graph_objects.Figure(figure)``
makes an object of it where the package plotly is installed, which nothing here needs. Every text of
a panel is escaped, so that a layer called ``<b>`` is shown by that name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cockpit.instruments.data import thinned
from cockpit.instruments.panel import Heat, Mark, Panel, Reference
from cockpit.plotting.extents import has_data, heights
from cockpit.plotting.letters import width_of
from cockpit.plotting.plotly_axes import LETTERS, scale_of, seen_range, x_axis, y_axis
from cockpit.plotting.plotly_canvas import Canvas, Trace
from cockpit.plotting.plotly_marks import edge_traces, traces
from cockpit.plotting.plotly_words import (
    WORDS,
    lines,
    nothing_finite,
    row_names,
    rows_of,
    width_of_rows,
    words,
)
from cockpit.plotting.theme import Theme, theme_of

__all__ = ["figure"]

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif'
HEIGHT = 240
"""Height of a picture in pixels that ticks and words are made for."""

LEFT, RIGHT, BESIDE = 58, 12, int(WORDS) + 10
"""Margins in pixels: without names of rows, without and with words or a scale of colours beside."""

TOP, BOTTOM = 8, 38
LEGEND, SYMBOL = 17, 44
"""Height of a row of the legend, and width of a symbol in it with the space around, in pixels."""

MIN_WIDTH = 100


def figure(
    panel: Panel,
    *,
    style: str = "light",
    width: int = 800,
    window: tuple[float, float] | None = None,
    density: float = 1.0,
) -> dict[str, Any]:
    """Return a panel as a figure of plotly.js: ``{"data": [...], "layout": {...}}``.

    Args:
        panel: What to draw.
        style: ``"light"`` or ``"dark"``.
        width: Width of the picture in pixels. Long series are thinned to the smallest and the
            largest value per column, so that no spike disappears.
        window: First and last step to show of a panel over steps, which is thinned within them
            only; everything by default.
        density: How many columns of the screen a pixel has.

    Raises:
        InvalidArgument: There is no such style, or the window is not an interval.
    """
    theme = theme_of(style)
    width = max(int(width), MIN_WIDTH)
    columns = int(width * density)
    panel = _arrays(thinned(panel, columns, window if panel.over_steps else None))
    values = heights(panel)
    scale, threshold = scale_of(panel, values)
    rows = rows_of(panel, width, HEIGHT - TOP - BOTTOM)
    margin = _margins(panel, width, width_of_rows(rows))
    canvas = Canvas(
        theme,
        columns,
        scale,
        threshold,
        panel.over_steps,
        max(width - margin["l"] - margin["r"], 1),
        HEIGHT - margin["t"] - margin["b"],
        seen_range(panel, scale, values),
    )
    shown: list[Trace] = [trace for mark in panel.marks for trace in traces(mark, canvas)]
    edges = edge_traces(panel, canvas)
    layout = _layout(panel, theme) | {
        "margin": margin,
        "xaxis": x_axis(panel, canvas, window),
        "yaxis": y_axis(panel, canvas, values),
        "shapes": lines(panel, canvas),
        "annotations": [*words(panel, canvas), *row_names(rows, canvas)],
    }
    if not has_data(panel):
        layout["annotations"].append(nothing_finite(canvas))
        layout["yaxis"] |= {"showticklabels": False, "showgrid": False}
    if edges:
        layout["yaxis2"] = {
            "overlaying": "y",
            "range": [0, 1],
            "visible": False,
            "fixedrange": True,
        }
    return {"data": shown + edges, "layout": layout}


def _arrays(panel: Panel) -> Panel:
    """Return the panel with arrays of float64, whatever an instrument put there."""

    def convert(mark: Mark) -> Mark:
        if isinstance(mark, Reference):
            return mark
        fields = ("x", "y", "low", "high", "edges", "heights", "values")
        own = {name: getattr(mark, name, None) for name in fields}
        floats: dict[str, Any] = {k: np.asarray(v, float) for k, v in own.items() if v is not None}
        return replace(mark, **floats)

    return replace(panel, marks=tuple(map(convert, panel.marks)))


def _margins(panel: Panel, width: int, names: int) -> dict[str, int]:
    """Return the margins in pixels: equal ones, so that steps stand below each other."""
    heat = any(isinstance(mark, Heat) for mark in panel.marks)
    references = [m for m in panel.marks if isinstance(m, Reference) and m.label]
    left = names + 12 if names else LEFT
    right = BESIDE if heat or any(mark.axis == "y" for mark in references) else RIGHT
    above = (LETTERS + 2) * _has_words_above(panel)
    return {
        "l": left,
        "r": right,
        "t": TOP + _legend_height(panel, width - left - right) + above,
        "b": BOTTOM,
        "pad": 0,
    }


def _layout(panel: Panel, theme: Theme) -> dict[str, Any]:
    heat = any(isinstance(mark, Heat) for mark in panel.marks)
    return {
        "autosize": True,
        "font": {"family": FONT, "size": LETTERS, "color": theme.muted},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "x unified" if panel.over_steps and not heat else "closest",
        "hoverlabel": {
            "bgcolor": theme.card,
            "bordercolor": theme.border,
            "font": {"size": LETTERS + 1, "color": theme.text},
            "align": "left",
        },
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.1 if _has_words_above(panel) else 1.01,
            "xanchor": "left",
            "yanchor": "bottom",
            "bgcolor": "rgba(0,0,0,0)",
            "itemwidth": 30,
            "font": {"size": LETTERS, "color": theme.muted},
        },
        "bargap": 0,
        "barmode": "overlay",
        "dragmode": "zoom",
        "uirevision": "keep",
    }


def _legend_height(panel: Panel, room: int) -> int:
    """Return the height of the legend in pixels; plotly.js sets its words in columns."""
    labels = [getattr(m, "label", "") for m in panel.marks if not isinstance(m, Heat | Reference)]
    widths = [SYMBOL + width_of(label, LETTERS) for label in labels if label]
    if not widths:
        return 0
    columns = len(widths) if sum(widths) <= room else max(1, int(room / max(widths)))
    return 4 + LEGEND * -(-len(widths) // columns)


def _has_words_above(panel: Panel) -> bool:
    return any(isinstance(m, Reference) and m.label and m.axis == "x" for m in panel.marks)
