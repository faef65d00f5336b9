"""Reference lines, the words for them beside the picture, and the names of the rows of a heat map."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from cockpit.instruments.panel import Heat, Panel, Reference
from cockpit.plotting.letters import shorten_all, width_of, wrap
from cockpit.plotting.plotly_axes import LETTERS
from cockpit.plotting.plotly_canvas import Canvas

__all__ = ["WORDS", "lines", "nothing_finite", "row_names", "rows_of", "width_of_rows", "words"]

WORDS = 52.0
"""Width in pixels of the words beside a picture, which are broken into lines."""

SMALL = LETTERS - 1
SHARE = 0.34
"""The part of a picture's width that the names of rows may take."""


def lines(panel: Panel, canvas: Canvas) -> list[dict[str, Any]]:
    """Return the reference lines that are in sight."""
    line = {"color": canvas.theme.muted, "width": 1, "dash": "4px,3px"}
    return [
        {"type": "line", "line": line, "layer": "below"}
        | (
            {"xref": "paper", "x0": 0, "x1": 1, "yref": "y"}
            | dict.fromkeys(("y0", "y1"), float(canvas.place(np.array(mark.value, float))))
            if mark.axis == "y"
            else {"yref": "paper", "y0": 0, "y1": 1, "xref": "x"}
            | dict.fromkeys(("x0", "x1"), mark.value)
        )
        for mark in panel.marks
        if isinstance(mark, Reference) and _in_sight(mark, canvas)
    ]


def _in_sight(mark: Reference, canvas: Canvas) -> bool:
    if mark.axis == "x" or canvas.seen is None:
        return True
    return canvas.seen[0] <= mark.value <= canvas.seen[1]


def words(panel: Panel, canvas: Canvas) -> list[dict[str, Any]]:
    """Return the words for the reference lines, those that do not touch others.

    Those for horizontal lines stand to the right of the picture, where they hide no values; those
    for vertical ones at its upper end.
    """
    references = [m for m in panel.marks if isinstance(m, Reference) and m.label]
    seen = [mark for mark in references if _in_sight(mark, canvas)]
    upright = [mark for mark in seen if mark.axis == "x"]
    return _beside([mark for mark in seen if mark.axis == "y"], canvas) + _above(
        upright, panel, canvas
    )


def _beside(references: list[Reference], canvas: Canvas) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    taken: list[tuple[float, float]] = []
    for mark in references:
        rows = wrap(mark.label, WORDS, SMALL)
        level, half = canvas.height(mark.value), 0.65 * SMALL * len(rows)
        if any(abs(level - other) < half + reach for other, reach in taken):
            continue
        taken.append((level, half))
        place = {"xref": "paper", "x": 1, "xanchor": "left", "xshift": 5, "align": "left"}
        place |= {"yref": "y", "y": canvas.axis((mark.value,))[0], "yanchor": "middle"}
        found.append(_plain(canvas) | place | {"text": "<br>".join(map(escape, rows))})
    return found


def _above(references: list[Reference], panel: Panel, canvas: Canvas) -> list[dict[str, Any]]:
    across = float(np.ptp(panel.x_range)) if panel.x_range is not None else 0.0
    found: list[dict[str, Any]] = []
    taken: list[tuple[float, float]] = []
    for mark in references:
        half = 0.5 * width_of(mark.label, SMALL) + 2
        center = mark.value / (across or 1.0) * canvas.across
        if across and any(abs(center - other) < half + reach for other, reach in taken):
            continue
        taken.append((center, half))
        place = {"xref": "x", "x": mark.value, "yref": "paper", "y": 1, "yanchor": "bottom"}
        found.append(_plain(canvas) | place | {"text": escape(mark.label)})
    return found


def _plain(canvas: Canvas) -> dict[str, Any]:
    return {"showarrow": False, "font": {"size": SMALL, "color": canvas.theme.muted}}


def rows_of(panel: Panel, width: float, up: float) -> list[tuple[int, str]]:
    """Return which rows of a heat map have names beside them, and how they are shortened.

    Args:
        panel: The panel.
        width: Width of the whole picture in pixels.
        up: Height of its axes in pixels.
    """
    names = next((m.names for m in panel.marks if isinstance(m, Heat) and m.names), ())
    named = np.flatnonzero([bool(name.strip()) for name in names])
    if not len(named):
        return []
    apart = np.diff(named).min(initial=len(names)) * up / len(names)  # pixels
    shown = named[:: max(1, int(np.ceil(1.15 * SMALL / apart)))]
    short = shorten_all([names[row] for row in shown], SHARE * width, SMALL)
    return list(zip(shown.tolist(), short, strict=True))


def width_of_rows(rows: list[tuple[int, str]]) -> int:
    """Return how wide the names beside a heat map are, in pixels."""
    return int(np.ceil(max((width_of(name, SMALL) for _, name in rows), default=0.0)))


def row_names(rows: list[tuple[int, str]], canvas: Canvas) -> list[dict[str, Any]]:
    """Return the names beside the rows of a heat map.

    They are no ticks: those would replace the full name that one reads when pointing at a row.
    """
    place = {"xref": "paper", "x": 0, "xanchor": "right", "xshift": -4}
    place |= {"yref": "y", "yanchor": "middle"}
    return [_plain(canvas) | place | {"y": row, "text": escape(name)} for row, name in rows]


def nothing_finite(canvas: Canvas) -> dict[str, Any]:
    """Return the words for a picture without anything to see."""
    place = {"xref": "paper", "x": 0.5, "yref": "paper", "y": 0.5}
    box = {"bgcolor": canvas.theme.card, "borderpad": 3}
    return _plain(canvas) | place | box | {"text": "no finite values"}
