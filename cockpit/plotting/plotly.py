"""The plotly renderer: turns one panel into one figure in plotly's JSON format.

The figure is a plain dictionary. A page hands it to plotly.js; ``plotly.graph_objects.Figure(figure)``
makes an object of it where the package plotly is installed, which nothing here needs. Every text of
a panel is escaped, so that a layer called ``<b>`` is shown by that name.
"""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import Any

import numpy as np

from cockpit.instruments.data import thinned
from cockpit.instruments.panel import (
    Array,
    Band,
    Bars,
    Heat,
    Line,
    Mark,
    Panel,
    Points,
    Reference,
)
from cockpit.plotting.plotly_axes import LETTERS, scale_of, x_axis, y_axis
from cockpit.plotting.plotly_canvas import Canvas, Trace, translucent
from cockpit.plotting.plotly_marks import edge_traces, traces
from cockpit.plotting.theme import Theme, theme_of

__all__ = ["figure"]

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif'
ROWS_NAMED = 18
NAME_LENGTH = 22
MIN_WIDTH = 100


def figure(
    panel: Panel,
    *,
    style: str = "light",
    width: int = 800,
    window: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """Return a panel as a figure of plotly.js: ``{"data": [...], "layout": {...}}``.

    Args:
        panel: What to draw.
        style: ``"light"`` or ``"dark"``.
        width: Width of the picture in pixels. Long series are thinned to the smallest and the
            largest value per column, so that no spike disappears.
        window: First and last step to show of a panel over steps, which is thinned within them
            only; everything by default.

    Raises:
        InvalidArgument: There is no such style, or the window is not an interval.
    """
    theme = theme_of(style)
    width = max(int(width), MIN_WIDTH)
    panel = _arrays(thinned(panel, width, window if panel.over_steps else None))
    values = _heights(panel)
    scale, threshold = scale_of(panel, values)
    canvas = Canvas(theme, width, scale, threshold, panel.over_steps)
    shown: list[Trace] = [trace for mark in panel.marks for trace in traces(mark, canvas)]
    edges = edge_traces(panel, canvas)
    layout = _layout(panel, theme) | {
        "xaxis": x_axis(panel, theme, window),
        "yaxis": y_axis(panel, canvas, values),
        "shapes": _lines(panel, canvas),
        "annotations": [*_words(panel, canvas, values), *_row_names(panel, theme)],
    }
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


def _heights(panel: Panel) -> Array:
    """Return all finite values on the y axis."""
    found: list[Array] = [np.zeros(0)]
    for mark in panel.marks:
        if isinstance(mark, Line | Points):
            found.append(mark.y)
        elif isinstance(mark, Band):
            found += [mark.low, mark.high]
        elif isinstance(mark, Bars):
            found.append(mark.heights)
    joined = np.concatenate(found)
    return joined[np.isfinite(joined)]


def _layout(panel: Panel, theme: Theme) -> dict[str, Any]:
    heat = any(isinstance(mark, Heat) for mark in panel.marks)
    named = any(isinstance(mark, Heat) and mark.names for mark in panel.marks)
    left = 8 + 6 * max(map(len, _short_names(panel)), default=0) if named else 44
    return {
        "autosize": True,
        "font": {"family": FONT, "size": LETTERS, "color": theme.muted},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {
            "l": left,
            "r": 64 if heat else 10,
            "t": 22 if _has_legend(panel) else 10,
            "b": 24 if panel.over_steps else 38,
            "pad": 0,
        },
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
            "y": 1.01,
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


def _has_legend(panel: Panel) -> bool:
    return any(
        getattr(mark, "label", "") for mark in panel.marks if not isinstance(mark, Heat | Reference)
    )


def _lines(panel: Panel, canvas: Canvas) -> list[dict[str, Any]]:
    """Return the reference lines."""
    line = {"color": canvas.theme.muted, "width": 1, "dash": "4px,3px"}
    return [
        {"type": "line", "line": line, "layer": "below"}
        | (
            {"xref": "paper", "x0": 0, "x1": 1, "yref": "y"}
            | dict.fromkeys(("y0", "y1"), _at(canvas, mark))
            if mark.axis == "y"
            else {
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "xref": "x",
                "x0": mark.value,
                "x1": mark.value,
            }
        )
        for mark in panel.marks
        if isinstance(mark, Reference) and not _impossible(mark, canvas)
    ]


def _at(canvas: Canvas, mark: Reference) -> float:
    return float(canvas.place(np.array(mark.value, float)))


def _impossible(mark: Reference, canvas: Canvas) -> bool:
    return mark.axis == "y" and canvas.scale == "log" and mark.value <= 0


def _words(panel: Panel, canvas: Canvas, values: Array) -> list[dict[str, Any]]:
    """Return the words for the reference lines, those that do not lie upon each other."""
    plain = {
        "showarrow": False,
        "font": {"size": LETTERS - 1, "color": canvas.theme.muted},
        "bgcolor": translucent(canvas.theme.card, 0.75),
        "borderpad": 1,
    }
    found: list[dict[str, Any]] = []
    taken: list[float] = []
    above: list[float] = []
    across = float(np.ptp(panel.x_range)) if panel.x_range is not None else 0.0
    references = [m for m in panel.marks if isinstance(m, Reference) and m.label]
    if panel.y_range is not None:
        values = np.array(panel.y_range, float)
    span = _span(canvas, np.append(values, [m.value for m in references if m.axis == "y"]))
    for mark in references:
        if _impossible(mark, canvas):
            continue
        if mark.axis == "x":
            if any(abs(mark.value - other) < 0.15 * across for other in above):
                continue
            above.append(mark.value)
            place = {"xref": "x", "x": mark.value, "yref": "paper", "y": 1, "yanchor": "top"}
        else:
            level = np.log10(mark.value) if canvas.scale == "log" else _at(canvas, mark)
            if any(abs(level - other) < 0.09 * span for other in taken):
                continue
            taken.append(level)
            place = {"xref": "paper", "x": 1, "xanchor": "right", "yref": "y", "y": float(level)}
            place |= {"yanchor": "bottom"}
        found.append(plain | place | {"text": escape(mark.label)})
    return found


def _span(canvas: Canvas, values: Array) -> float:
    """Return how long the y axis is, in its own coordinates."""
    values = np.log10(values[values > 0]) if canvas.scale == "log" else canvas.place(values)
    return float(np.ptp(values)) if values.size else 0.0


def _row_names(panel: Panel, theme: Theme) -> list[dict[str, Any]]:
    """Return names beside the rows of a heat map, as many as there is room for.

    They are no ticks: those would replace the full name that one reads when pointing at a row.
    """
    short = _short_names(panel)
    every = max(1, -(-len(short) // ROWS_NAMED))
    return [
        {
            "text": escape(name),
            "xref": "paper",
            "x": 0,
            "xanchor": "right",
            "xshift": -4,
            "yref": "y",
            "y": row,
            "yanchor": "middle",
            "showarrow": False,
            "font": {"size": LETTERS - 1, "color": theme.muted},
        }
        for row, name in enumerate(short)
        if row % every == 0 and name.strip()
    ]


def _short_names(panel: Panel) -> list[str]:
    """Return the names of rows without what all of them begin with, cut in the middle."""
    names = next((list(m.names) for m in panel.marks if isinstance(m, Heat) and m.names), [])
    if len(names) > 1 and max(map(len, names)) > NAME_LENGTH:
        parts = [name.split(".") for name in names]
        shared = 0
        while all(len(p) > shared + 1 and p[shared] == parts[0][shared] for p in parts):
            shared += 1
        names = [".".join(p[shared:]) for p in parts]
    half = NAME_LENGTH // 2
    return [n if len(n) <= NAME_LENGTH else f"{n[: half - 1]}…{n[-half:]}" for n in names]
