"""Reference lines, and the words for them where they hide nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from cockpit.instruments.panel import Line, Panel, Points, Reference
from cockpit.plotting.letters import width_of
from cockpit.plotting.marks import Pen

__all__ = ["draw_references"]


def draw_references(panel: Panel, axes: Axes, pen: Pen) -> None:
    """Draw the reference lines of a panel that are in sight; call it when the limits are set."""
    references = [m for m in panel.marks if isinstance(m, Reference)]
    style: dict[str, Any] = {
        "color": pen.theme.muted,
        "linewidth": 0.5 * pen.stroke,
        "linestyle": (0, (4, 3)),
        "zorder": 2.5,
    }
    for axis, limits, draw in (
        ("y", axes.get_ylim(), axes.axhline),
        ("x", axes.get_xlim(), axes.axvline),
    ):
        seen = [r for r in references if r.axis == axis and limits[0] <= r.value <= limits[1]]
        for reference in seen:
            draw(reference.value, **style)
        if axis == "x":
            _words_above(seen, axes, pen)
        elif len(seen) == 1:
            _word_inside(seen[0], panel, axes, pen)
        else:
            _words_beside(seen, axes, pen)


def _words_above(references: list[Reference], axes: Axes, pen: Pen) -> None:
    """Write the words at the upper end of vertical lines, upright where they would touch."""
    low, high = axes.get_xlim()
    places = sorted((r.value - low) / ((high - low) or 1) * pen.width for r in references)
    widest = max((width_of(r.label, pen.letters) for r in references), default=0.0)
    upright = bool(len(places) > 1 and np.diff(places).min() < widest + 0.6 * pen.letters)
    if upright and widest > 0.6 * pen.height:
        return  # no room for words: they would hide the picture
    for reference in references:
        axes.annotate(
            reference.label,
            (reference.value, 1),
            (-0.25 * pen.letters if upright else 0, -0.1 * pen.letters),
            xycoords=("data", "axes fraction"),
            ha="right" if upright else "center",
            rotation=90 if upright else 0,
            va="top",
            **_text(pen),
        )


def _words_beside(references: list[Reference], axes: Axes, pen: Pen) -> None:
    """Write the words of several horizontal lines to the right, those that do not touch others."""
    place = axes.transData + axes.transAxes.inverted()
    taken: list[float] = []
    for reference in references:
        level = place.transform((axes.get_xlim()[0], reference.value))[1] * pen.height
        if any(abs(level - other) < pen.letters for other in taken):
            continue
        taken.append(level)
        axes.annotate(
            reference.label,
            (1, reference.value),
            (0.4 * pen.letters, 0),
            xycoords=("axes fraction", "data"),
            ha="left",
            va="center",
            annotation_clip=False,
            **_text(pen),
        )


def _word_inside(reference: Reference, panel: Panel, axes: Axes, pen: Pen) -> None:
    """Write the word of a single horizontal line on it, where the curves are farthest away."""
    place = axes.transData + axes.transAxes.inverted()
    xlim = axes.get_xlim()
    level = place.transform((xlim[0], reference.value))[1]
    curves = [
        place.transform(np.column_stack([m.x, m.y])[np.isfinite(m.y)])
        for m in panel.marks
        if isinstance(m, Line | Points) and np.isfinite(m.y).any()
    ]
    seen = np.concatenate([np.zeros((0, 2)), *curves])
    half = 0.5 * width_of(reference.label, pen.letters) / pen.width + 0.02
    rise = 1.3 * pen.letters / pen.height

    def free(option: tuple[float, float]) -> float:
        center, middle = option
        near = seen[np.abs(seen[:, 0] - center) < half]
        return float(np.abs(near[:, 1] - middle).min()) if len(near) else 1.0

    sides = [(level + rise / 2, "bottom")] if level + rise < 1 else []
    sides += [(level - rise / 2, "top")] if level - rise > 0 else []
    options = [(x, y, va) for y, va in sides for x in (1 - half, half, 0.5)]
    if options:
        x, _, va = max(options, key=lambda option: round(min(free(option[:2]), rise), 2))
        axes.annotate(
            reference.label,
            (x, reference.value),
            (0, (0.2 if va == "bottom" else -0.2) * pen.letters),
            xycoords=("axes fraction", "data"),
            ha="center",
            va=va,
            **_text(pen),
        )


def _text(pen: Pen) -> dict[str, Any]:
    box = {"facecolor": pen.theme.card, "edgecolor": "none", "alpha": 0.75}
    return {
        "textcoords": "offset points",
        "fontsize": 0.95 * pen.letters,
        "color": pen.theme.muted,
        "zorder": 5,
        "bbox": box | {"pad": 0.12 * pen.letters},
        "parse_math": False,
    }
