"""One function per kind of mark: data in, traces of plotly.js out.

Traces are plain dictionaries in plotly's JSON format; nothing here needs the package plotly. Numbers
travel as base64 of their bytes, which plotly.js reads and which keeps NaN, a gap of a line.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import singledispatch
from html import escape
from typing import Any, Literal, TypeAlias

import numpy as np

from cockpit.instruments.panel import Array, Band, Bars, Heat, Line, Panel, Points
from cockpit.instruments.reading import SUPERSCRIPT, number
from cockpit.instruments.thinning import thin_cells, thin_line
from cockpit.plotting.theme import Theme

__all__ = ["Canvas", "Trace", "edge_traces", "numbers", "traces", "translucent"]

Trace: TypeAlias = dict[str, Any]

STOPS_PER_DECADE = 6
MAX_CELLS = 40_000
ZERO_WIDTH = "\u200b"
GAP = np.array([np.nan])
FEW_POINTS = 40
"""Up to so many values, a line shows each of them as a dot."""


@dataclass(frozen=True)
class Canvas:
    """What every mark needs to know besides its own data.

    Args:
        theme: Colours.
        width: Width of the picture in pixels: so many columns have a smallest and a largest value.
        scale: Scale of the y axis, as far as the values allow it.
        threshold: Where a symlog axis becomes linear.
        over_steps: Whether the x axis counts steps.
    """

    theme: Theme
    width: int
    scale: Literal["linear", "log", "symlog"] = "linear"
    threshold: float = 1.0
    over_steps: bool = True

    def place(self, y: Array) -> Array:
        """Return where on the axis values are: plotly has no symlog axis, so it gets a linear one."""
        if self.scale != "symlog":
            return y
        with np.errstate(invalid="ignore"):
            return np.sign(y) * np.log10(1 + np.abs(y) / self.threshold)


def numbers(values: Array) -> dict[str, str]:
    """Return numbers `[n]` or `[n, m]` as plotly.js reads them fastest; infinities become gaps."""
    finite = np.where(np.isfinite(values), values, np.nan)
    spec = {"dtype": "f8", "bdata": base64.b64encode(finite.astype("<f8").tobytes()).decode()}
    return spec if finite.ndim == 1 else spec | {"shape": ", ".join(map(str, finite.shape))}


def translucent(color: str, alpha: float) -> str:
    """Return ``#rrggbb`` as the same colour that lets the background through."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


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
    columns = min(canvas.width // 2, MAX_CELLS // max(1, len(mark.values)))
    edges, values = thin_cells(mark.x, mark.values, limit=max(50, columns))
    low, high, two_sided = _limits(values, mark)
    logarithmic = mark.scale == "log" and low > 0
    colors = canvas.theme.diverging if two_sided else canvas.theme.sequence
    plain = [[i / (len(colors) - 1), color] for i, color in enumerate(colors)]
    row = "%{y}" if mark.names else "%{y:.3~g}"
    across = "step %{x:.0f}" if canvas.over_steps else "%{x:.3~g}"
    heat: Trace = {
        "type": "heatmap",
        "x": numbers(edges),
        "y": _rows(mark.names) if mark.edges is None else numbers(mark.edges),
        "z": numbers(np.clip(values, *_within(values, low, high))),
        "zmin": low,
        "zmax": high,
        "colorscale": _logarithmic(plain, low, high) if logarithmic else plain,
        "showscale": False,
        "hoverongaps": False,
        "name": "",
        "hovertemplate": f"<b>{row}</b><br>{across}<br>{escape(mark.label)} %{{z:.4~g}}"
        "<extra></extra>",
    }
    if logarithmic:
        low, high = float(np.log10(low)), float(np.log10(high))
    # The scale beside it belongs to an empty trace, since that of a heat map cannot be logarithmic.
    bar = _color_bar(mark.label, low, high, logarithmic, canvas.theme)
    scale: Trace = {"type": "scatter", "mode": "markers", "x": [None], "y": [None]}
    marker = {"color": [low], "cmin": low, "cmax": high, "colorscale": plain, "showscale": True}
    quiet = {"showlegend": False, "hoverinfo": "skip"}
    return [heat, scale | quiet | {"marker": marker | {"colorbar": bar}}]


def _rows(names: tuple[str, ...]) -> list[str]:
    """Return names as rows of a category axis, which are told apart by them: none may come twice."""
    if len(set(names)) == len(names):
        return list(map(escape, names))
    return [f"{escape(name)}{ZERO_WIDTH * row}" for row, name in enumerate(names)]


def _within(values: Array, low: float, high: float) -> tuple[float, float]:
    """Return the ends to which infinities are clipped; finite values keep theirs for the hover."""
    finite = values[np.isfinite(values)]
    return min(low, finite.min(initial=low)), max(high, finite.max(initial=high))


def _limits(values: Array, mark: Heat) -> tuple[float, float, bool]:
    """Return the values of the first and the last colour, and whether colours have two sides."""
    if mark.limits is not None:
        return *mark.limits, False
    finite = values[np.isfinite(values)]
    positive = finite[finite > 0]
    if mark.scale == "log" and positive.size:
        high = float(positive.max())
        low = max(float(positive.min()), high * 1e-9)
        return low, high if high > low else low * 10, False
    if not finite.size:
        return 0.0, 1.0, False
    low, high = float(finite.min()), float(finite.max())
    if low < 0 < high:
        size = max(-low, high)
        return -size, size, True
    return low, high if high > low else low + 1, False


def _logarithmic(plain: list[list[Any]], low: float, high: float) -> list[list[Any]]:
    """Return the colours so that equal ratios of values differ equally.

    Values themselves stay as they are, which is what one reads when pointing at a cell.
    """
    decades = np.log10(high / low)
    places = np.linspace(0, 1, max(len(plain), int(decades * STOPS_PER_DECADE) + 1))
    stops, colors = zip(*plain, strict=True)
    channels = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in colors], float)
    mixed = np.stack([np.interp(places, stops, channel) for channel in channels.T], axis=1)
    at = (10 ** (places * decades) - 1) / (high / low - 1)
    at[0], at[-1] = 0.0, 1.0
    return [
        [float(a), f"rgb({r:.0f},{g:.0f},{b:.0f})"] for a, (r, g, b) in zip(at, mixed, strict=True)
    ]


def _color_bar(label: str, low: float, high: float, logarithmic: bool, theme: Theme) -> Trace:
    letters = {"size": 10, "color": theme.muted}
    bar: Trace = {
        "thickness": 8,
        "outlinewidth": 0,
        "xpad": 4,
        "len": 1,
        "y": 0.5,
        "tickfont": letters,
        "title": {"text": escape(label), "side": "right", "font": letters},
        "nticks": 5,
        "tickformat": ".3~g",
    }
    if logarithmic:
        decades = np.arange(np.ceil(low), np.floor(high) + 1)
        decades = decades[:: max(1, int(np.ceil(len(decades) / 5)))]
        if len(decades) < 2:
            decades = np.linspace(low, high, 3)
        shown = [_short(10.0**decade) for decade in decades]
        bar |= {"tickmode": "array", "tickvals": decades.tolist(), "ticktext": shown}
    return bar


def _short(value: float) -> str:
    """Return a round number as people write it: without zeros behind."""
    if 1e-3 <= value < 1e5:
        return f"{value:.2g}" if value < 100 else f"{value:.0f}"
    power = np.log10(value)
    return (
        f"10{str(round(power)).translate(SUPERSCRIPT)}" if power == round(power) else number(value)
    )


def edge_traces(panel: Panel, canvas: Canvas) -> list[Trace]:
    """Return triangles at the upper and lower edge, where values are infinite or out of sight."""
    low, high = panel.y_range or (-np.inf, np.inf)
    found: list[Trace] = []
    for mark in panel.marks:
        if not isinstance(mark, Line | Points) or _has_faint_twin(mark, panel):
            continue
        above, below = mark.y > high, mark.y < low
        if panel.y_range is None:
            above, below = np.isposinf(mark.y), np.isneginf(mark.y)
        for beyond, place, symbol in (
            (above, 0.97, "triangle-up"),
            (below, 0.03, "triangle-down"),
        ):
            x, y = mark.x[beyond], mark.y[beyond]
            keep = thin_line(x, np.zeros(len(x)), limit=300) if len(x) > 1 else slice(None)
            if len(x):
                found.append(
                    {
                        "type": "scatter",
                        "mode": "markers",
                        "x": numbers(x[keep]),
                        "y": [place] * len(x[keep]),
                        "yaxis": "y2",
                        "text": [f"{value:.4g}" for value in y[keep]],
                        "hovertemplate": "%{text}<extra>beyond</extra>",
                        "showlegend": False,
                        "cliponaxis": False,
                        "marker": {
                            "symbol": symbol,
                            "size": 7,
                            "color": canvas.theme.colors[mark.color],
                        },
                    }
                )
    return found


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
