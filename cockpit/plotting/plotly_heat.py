"""Heat maps for plotly.js, whose colours may be logarithmic while the cells keep their values."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from cockpit.instruments.panel import Array, Heat
from cockpit.instruments.thinning import thin_cells
from cockpit.plotting.extents import round_ticks
from cockpit.plotting.plotly_axes import texts_of
from cockpit.plotting.plotly_canvas import Canvas, Trace, numbers
from cockpit.plotting.theme import Theme

__all__ = ["heat_traces"]

STOPS_PER_DECADE = 6
MAX_CELLS = 40_000
TICKS = 5
ZERO_WIDTH = "\u200b"


def heat_traces(mark: Heat, canvas: Canvas) -> list[Trace]:
    """Return the traces of a heat map: its cells, and the scale of its colours."""
    columns = min(canvas.columns // 2, MAX_CELLS // max(1, len(mark.values)))
    edges, values = thin_cells(mark.x, mark.values, limit=max(50, columns))
    low, high, two_sided = _limits(values, mark)
    logarithmic = mark.scale == "log" and low > 0
    colors = canvas.theme.diverging if two_sided else canvas.theme.sequence
    plain = [[i / (len(colors) - 1), color] for i, color in enumerate(colors)]
    row = "%{y}" if mark.names else "%{y:.3~g}"
    across = "step %{x:.0f}" if canvas.over_steps else "%{x:.3~g}"
    cells: Trace = {
        "type": "heatmap",
        "x": numbers(edges),
        "y": _rows(mark.names) if mark.edges is None else numbers(mark.edges),
        "showscale": False,
        "hoverongaps": False,
        "name": "",
    }
    where = f"<b>{row}</b><br>{across}<br>{escape(mark.label)}"
    heat: Trace = cells | {
        "z": numbers(values),
        "zmin": low,
        "zmax": high,
        "colorscale": _logarithmic(plain, low, high) if logarithmic else plain,
        "hovertemplate": f"{where} %{{z:.4~g}}<extra></extra>",
    }
    found = [heat, *_without_number(cells, where, values, mark, canvas.theme)]
    if not np.isfinite(values).any():
        return found
    if logarithmic:
        low, high = float(np.log10(low)), float(np.log10(high))
    # The scale beside it belongs to an empty trace, since that of a heat map cannot be logarithmic.
    bar = _color_bar(mark.label, low, high, logarithmic, canvas.theme)
    scale: Trace = {"type": "scatter", "mode": "markers", "x": [None], "y": [None]}
    marker = {"color": [low], "cmin": low, "cmax": high, "colorscale": plain, "showscale": True}
    quiet = {"showlegend": False, "hoverinfo": "skip"}
    return [*found, scale | quiet | {"marker": marker | {"colorbar": bar}}]


def _without_number(
    cells: Trace, where: str, values: Array, mark: Heat, theme: Theme
) -> list[Trace]:
    """Return the cells that are no finite number, in colours of their own."""
    named = np.array([bool(name) for name in mark.names] or [False] * len(values))[:, None]
    # Rows without a name only keep others apart, and between edges nothing is as good as no value.
    absent: np.ndarray = np.isnan(values)
    used = ~absent.all(axis=1, keepdims=True) & bool(mark.names)
    missing = absent & (named | used)
    kinds = (
        (missing, "NaN", theme.missing),
        (np.isposinf(values), "∞", theme.infinite),
        (np.isneginf(values), "−∞", theme.infinite),
    )
    return [
        cells
        | {
            "z": numbers(np.where(which, 1.0, np.nan)),
            "zmin": 0,
            "zmax": 1,
            "colorscale": [[0, color], [1, color]],
            "hovertemplate": f"{where} {word}<extra></extra>",
        }
        for which, word, color in kinds
        if which.any()
    ]


def _rows(names: tuple[str, ...]) -> list[str]:
    """Return names as rows of a category axis, which are told apart by them: none may come twice."""
    if len(set(names)) == len(names):
        return list(map(escape, names))
    return [f"{escape(name)}{ZERO_WIDTH * row}" for row, name in enumerate(names)]


def _limits(values: Array, mark: Heat) -> tuple[float, float, bool]:
    """Return the values of the first and the last colour, and whether colours have two sides."""
    if mark.limits is not None:
        low, high = mark.limits
        return low, high, low < 0 < high
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
    first, last = (float(10.0**v) if logarithmic else v for v in (low, high))
    ticks = round_ticks(first, last, TICKS, logarithmic)
    if len(ticks) < 2:
        ticks = [first, last]
    return {
        "thickness": 8,
        "outlinewidth": 0,
        "xpad": 4,
        "len": 1,
        "y": 0.5,
        "tickfont": letters,
        "title": {"text": escape(label), "side": "right", "font": letters},
        "tickmode": "array",
        "tickvals": np.log10(ticks).tolist() if logarithmic else ticks,
        "ticktext": texts_of([float(f"{tick:.3g}") for tick in ticks]),
    }
