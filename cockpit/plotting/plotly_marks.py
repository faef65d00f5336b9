"""One function per kind of mark: data in, traces of plotly.js out.

Traces are plain dictionaries in plotly's JSON format; nothing here needs the package plotly.
"""

from __future__ import annotations

from functools import singledispatch
from html import escape

import numpy as np

from cockpit.instruments.panel import Array, Band, Bars, Heat, Line, Panel, Points
from cockpit.instruments.thinning import thin_points
from cockpit.plotting.plotly_canvas import Canvas, Trace, numbers, translucent
from cockpit.plotting.plotly_heat import heat_traces

__all__ = ["edge_traces", "traces"]

GAP = np.array([np.nan])
FEW_POINTS = 40
"""Up to so many values, a line shows each of them as a dot."""

TRIANGLE = 9
"""Width in pixels that a triangle at the edge needs for itself."""

FARTHEST = np.finfo(float).max


@singledispatch
def traces(mark: object, canvas: Canvas) -> list[Trace]:
    """Return the traces that show one mark; none for what is no trace, such as a reference."""
    return []


def _scatter(mark: Line | Points | Band, canvas: Canvas, x: Array, y: Array) -> Trace:
    """Return what all traces over x share: names are escaped, as plotly.js reads them as markup."""
    trace: Trace = {
        "type": "scatter",
        "x": numbers(x),
        "y": numbers(canvas.place(y)),
        "name": escape(mark.label),
        "showlegend": bool(mark.label),
        "hovertemplate": "%{y:.4~g}",
    }
    if canvas.scale == "symlog":
        trace |= {"customdata": numbers(y), "hovertemplate": "%{customdata:.4~g}"}
    if not canvas.over_steps:
        trace["hovertemplate"] = f"%{{x:.4~g}}, {trace['hovertemplate']}"
    return trace


@traces.register
def _line(mark: Line, canvas: Canvas) -> list[Trace]:
    color = canvas.theme.colors[mark.color]
    x, y = mark.x, mark.y
    faint = mark.style == "faint"
    dotted = len(x) <= FEW_POINTS and canvas.over_steps and not faint
    line = {"color": translucent(color, 0.4) if faint else color, "width": 1.1 if faint else 2}
    trace = _scatter(mark, canvas, x, y) | {
        "mode": "lines+markers" if dotted else "lines",
        "line": line | {"dash": "5px,4px" if mark.style == "dashed" else "solid"},
        "marker": {"size": 5, "color": color},
        "connectgaps": False,
    }
    if faint and not mark.label:
        trace["name"] = "each step"
    if not canvas.over_steps and not mark.label:
        trace["hoverinfo"] = "skip"  # outlines and guides, which are no data
        trace.pop("hovertemplate")
    there = np.isfinite(y)
    alone = there & ~np.append(False, there[:-1]) & ~np.append(there[1:], False)
    if "markers" in trace["mode"] or not alone.any():
        return [trace]
    dots = _scatter(mark, canvas, x[alone], y[alone])  # a line needs two neighbours
    dots |= {"mode": "markers", "marker": {"size": 4, "color": color}, "showlegend": False}
    return [trace, dots | {"hoverinfo": "skip", "hovertemplate": None}]


@traces.register
def _band(mark: Band, canvas: Canvas) -> list[Trace]:
    """One outline per stretch without gaps: a fill between two lines would bridge them."""
    color = canvas.theme.colors[mark.color]
    x, low, high = mark.x, mark.low, mark.high
    there = np.isfinite(low) & np.isfinite(high)
    if canvas.scale == "log":
        there &= high > 0
        low = np.maximum(low, high.min(initial=1.0, where=there) * 1e-3)
    xs: list[Array] = []
    ys: list[Array] = []
    for stretch in np.split(np.arange(len(x)), np.flatnonzero(np.diff(there)) + 1):
        if len(stretch) and there[stretch[0]]:
            xs += [x[stretch], x[stretch][::-1], GAP]
            ys += [low[stretch], high[stretch][::-1], GAP]
    if not xs:
        return []
    shape = _scatter(mark, canvas, np.concatenate(xs), np.concatenate(ys))
    shape |= {"mode": "lines", "line": {"width": 0}, "fill": "toself", "hoverinfo": "skip"}
    return [shape | {"fillcolor": translucent(color, 0.2), "hovertemplate": None}]


@traces.register
def _points(mark: Points, canvas: Canvas) -> list[Trace]:
    color = canvas.theme.colors[mark.color]
    marker = {
        "size": 5 if mark.faint else 8,
        "color": translucent(color, 0.45) if mark.faint else color,
        "line": {"width": 0 if mark.faint else 1, "color": canvas.theme.card},
    }
    trace = _scatter(mark, canvas, mark.x, mark.y)
    return [trace | {"mode": "markers", "marker": marker}]


@traces.register
def _bars(mark: Bars, canvas: Canvas) -> list[Trace]:
    color = canvas.theme.colors[mark.color]
    heights = np.where(np.isfinite(mark.heights), mark.heights, 0.0)
    shared: Trace = {"name": escape(mark.label), "showlegend": bool(mark.label)}
    if mark.outline:
        steps = np.append(heights, heights[-1:])
        if canvas.scale == "log":
            steps = np.where(steps > 0, steps, np.nan)
        line = {"color": color, "width": 1.6, "shape": "hv"}
        x, y = numbers(mark.edges), numbers(canvas.place(steps))
        kind = {"type": "scatter", "mode": "lines", "line": line, "hoverinfo": "skip"}
        return [shared | kind | {"x": x, "y": y}]
    bars: Trace = {
        "type": "bar",
        "x": numbers((mark.edges[:-1] + mark.edges[1:]) / 2),
        "y": numbers(canvas.place(heights)),
        "width": numbers(np.diff(mark.edges)),
        "marker": {"color": translucent(color, 0.85), "line": {"width": 0}},
        "customdata": numbers(heights),
        "hovertemplate": "%{x:.3~g}: %{customdata:.4~s}<extra></extra>",
    }
    return [shared | bars]


@traces.register
def _heat(mark: Heat, canvas: Canvas) -> list[Trace]:
    return heat_traces(mark, canvas)


def edge_traces(panel: Panel, canvas: Canvas) -> list[Trace]:
    """Return triangles at the upper and lower edge, where values are infinite or out of sight.

    On a logarithmic axis zero and negative values are below everything.
    """
    low, high = canvas.seen or (-FARTHEST, FARTHEST)
    found: list[Trace] = []
    for mark in panel.marks:
        if not isinstance(mark, Line | Points) or _has_faint_twin(mark, panel):
            continue
        for beyond, place, symbol in (
            (mark.y > high, 0.97, "triangle-up"),
            (mark.y < low, 0.03, "triangle-down"),
        ):
            x, y = mark.x[beyond], mark.y[beyond]
            keep = thin_points(x, np.zeros(len(x)), max(1, int(canvas.across / TRIANGLE)), 1)
            if len(x):
                trace = _triangles(x[keep], y[keep], place)
                color = canvas.theme.colors[mark.color]
                found.append(trace | {"marker": {"symbol": symbol, "size": 7, "color": color}})
    return found


def _triangles(x: Array, y: Array, place: float) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": numbers(x),
        "y": [place] * len(x),
        "yaxis": "y2",
        "text": [f"{value:.4g}" for value in y],
        "hovertemplate": "%{text}<extra>beyond</extra>",
        "showlegend": False,
        "cliponaxis": False,
    }


def _has_faint_twin(mark: Line | Points, panel: Panel) -> bool:
    """Return whether the raw values below a moving average are marked already."""
    return (
        isinstance(mark, Line)
        and mark.style == "solid"
        and any(
            isinstance(m, Line) and m.style == "faint" and m.color == mark.color
            for m in panel.marks
        )
    )
