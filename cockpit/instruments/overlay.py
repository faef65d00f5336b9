"""Several runs in one picture each: their panels are merged by instrument, as data.

::

    overlay({"lr 0.1": panels(open_run("a.db")), "lr 0.3": panels(open_run("b.db"))})

A colour stands for a run wherever it appears. What one picture showed in several curves, such as
the losses of three data sets, therefore becomes a picture for each of them; what cannot lie on top
of each other, such as heat maps, becomes a picture for each run, with the same colours for the same
values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from cockpit.instruments.panel import (
    GROUPS,
    Bars,
    Color,
    Heat,
    Line,
    Mark,
    Panel,
    Points,
    Reference,
    Scale,
)
from cockpit.instruments.reading import scale_of
from cockpit.instruments.thinning import cell_edges

__all__ = ["COLORS", "colors_of", "overlay"]

COLORS: tuple[Color, ...] = ("blue", "vermillion", "green", "purple", "orange", "sky", "neutral")
"""Colours of the runs, in their order; more runs begin anew."""

FAINT_RUNS = 3
"""Of up to so many runs, the values behind a moving average are shown, too."""

SMOOTHED = ("moving average", "moving median")
"""Labels that say how a curve was made, not which one it is."""


def colors_of(runs: Iterable[str]) -> dict[str, Color]:
    """Return the colour of each run."""
    return {run: COLORS[place % len(COLORS)] for place, run in enumerate(runs)}


def overlay(runs: Mapping[str, Sequence[Panel]]) -> list[Panel]:
    """Merge the panels of several runs by instrument.

    Args:
        runs: The panels of each run, by the words that stand for the run in the legends.

    Returns:
        The panels, ordered by group. The name of one of several that an instrument turns into is
        followed by a slash and the curve or the run that it shows, ``"loss/train"``.
    """
    colors = colors_of(runs)
    merged: list[Panel] = []
    for name in dict.fromkeys(_name(panel) for panels in runs.values() for panel in panels):
        same = {
            run: panel for run, panels in runs.items() for panel in panels if _name(panel) == name
        }
        if any(isinstance(mark, Heat) for panel in same.values() for mark in panel.marks):
            merged += _side_by_side(same, len(runs) > 1)
        else:
            merged += _on_top(same, colors)
    return sorted(merged, key=lambda panel: GROUPS.index(panel.group))


def _name(panel: Panel) -> str:
    return panel.name or panel.title


# -- one picture for each run ---------------------------------------------------------------------


def _side_by_side(same: Mapping[str, Panel], several: bool) -> list[Panel]:
    heats = [mark for panel in same.values() for mark in panel.marks if isinstance(mark, Heat)]
    scale: Literal["linear", "log"] = (
        "log" if any(heat.scale == "log" for heat in heats) else "linear"
    )
    limits = _limits(heats, scale)
    x_range, y_range = _x_range(list(same.values()), heats), _y_range(list(same.values()), heats)
    return [
        replace(
            panel,
            title=f"{panel.title}: {run}" if several else panel.title,
            name=f"{_name(panel)}/{run}" if several else panel.name,
            x_range=x_range if several else panel.x_range,
            y_range=y_range if several else panel.y_range,
            marks=tuple(
                _of_one_scale(mark, scale, limits) if isinstance(mark, Heat) else mark
                for mark in panel.marks
            ),
        )
        for run, panel in same.items()
    ]


def _of_one_scale(
    heat: Heat, scale: Literal["linear", "log"], limits: tuple[float, float] | None
) -> Heat:
    if limits is None or heat.limits is not None:
        return heat
    return replace(heat, scale=scale, limits=limits)


def _limits(heats: Sequence[Heat], scale: str) -> tuple[float, float] | None:
    """Return the range of colours that all heat maps can share; that of both signs has 0 in its middle."""
    values = np.concatenate([np.ravel(heat.values) for heat in heats])
    values = values[np.isfinite(values)]
    if scale == "log":
        values = values[values > 0]
    if len(heats) < 2 or not values.size or values.min() == values.max():
        return None
    low, high = float(values.min()), float(values.max())
    if low < 0 < high:
        return -max(-low, high), max(-low, high)
    return low, high


def _x_range(panels: Sequence[Panel], heats: Sequence[Heat]) -> tuple[float, float] | None:
    """Return the part of the x axis that shows all cells of all panels."""
    ends = [cell_edges(np.asarray(heat.x, float))[[0, -1]] for heat in heats if len(heat.x)]
    cells = [(float(low), float(high)) for low, high in ends]
    known = [panel.x_range for panel in panels]
    return (_union(known) if all(known) else _union(cells)) if cells else None


def _y_range(panels: Sequence[Panel], heats: Sequence[Heat]) -> tuple[float, float] | None:
    """Return the part of the y axis that shows all cells; none of rows with names."""
    known = [panel.y_range for panel in panels]
    if all(known):
        return _union(known)
    ends = [heat.edges[[0, -1]] for heat in heats if heat.edges is not None]
    return _union([(float(low), float(high)) for low, high in ends]) if ends else None


# -- one picture for all of them ------------------------------------------------------------------


@dataclass(frozen=True)
class _Curve:
    """What a panel shows of one thing: the marks to recolour, from back to front."""

    label: str
    marks: tuple[Line | Bars | Points, ...]


def _on_top(same: Mapping[str, Panel], colors: Mapping[str, Color]) -> list[Panel]:
    found: dict[str, dict[str, _Curve]] = {}
    for run, panel in same.items():
        for curve in _curves(panel):
            found.setdefault(_key(curve.label), {})[run] = curve
    several = len(found) > 1
    return [_merged(same, curves, colors, several) for curves in found.values()]


def _merged(
    same: Mapping[str, Panel],
    curves: Mapping[str, _Curve],
    colors: Mapping[str, Color],
    several: bool,
) -> Panel:
    first = next(iter(same.values()))
    label = next(iter(curves.values())).label
    marks: list[Mark] = [*_scenery(same.values())]
    for place, (run, curve) in enumerate(curves.items()):
        marks += _bounds(same[run], colors[run], with_word=place == 0)
        marks += _recolored(curve, run, colors[run], len(same) <= FAINT_RUNS)
    lines = [mark.y for mark in marks if isinstance(mark, Line)]
    scales: set[Scale] = {same[run].scale for run in curves}
    return replace(
        first,
        title=f"{first.title}: {label}" if several and label else first.title,
        name=f"{_name(first)}/{_key(label)}" if several else first.name,
        marks=tuple(marks),
        scale=first.scale if len(scales) == 1 else scale_of(*lines),
        x_range=_union([same[run].x_range for run in curves]),
        y_range=_union([same[run].y_range for run in curves]),
        how_to_read=_without_outline(first.how_to_read),
        headline="",
    )


def _without_outline(sentence: str) -> str:
    """Leave out what is said of an outline, which here is that of a run."""
    clauses = [clause for clause in sentence.split("; ") if "outline" not in clause]
    return "; ".join(clauses).rstrip(".") + "." if clauses else ""


def _curves(panel: Panel) -> list[_Curve]:
    """Return what a panel shows, without what surrounds it, such as bands and references."""
    lines = [mark for mark in panel.marks if isinstance(mark, Line) and _is_curve(mark)]
    if lines:
        faint = {
            mark.color: mark
            for mark in panel.marks
            if isinstance(mark, Line) and mark.style == "faint"
        }
        twins = [(faint[line.color],) if line.color in faint else () for line in lines]
        return [_Curve(line.label, (*twin, line)) for line, twin in zip(lines, twins, strict=True)]
    bars = [mark for mark in panel.marks if isinstance(mark, Bars) and not mark.outline]
    points = [mark for mark in panel.marks if isinstance(mark, Points)]
    solid = [mark for mark in points if not mark.faint] or points
    chosen: Sequence[Bars | Points] = bars or solid
    return [_Curve("", (chosen[0],))] if chosen else []


def _is_curve(line: Line) -> bool:
    """Return whether a line is data, neither a bound nor, without a word, the background."""
    return line.style == "solid" and (bool(line.label) or line.color != "neutral")


def _key(label: str) -> str:
    """Return what curves of different runs have in common where their labels count something."""
    return "" if label in SMOOTHED else re.sub(r"\d+", "#", label)


def _scenery(panels: Iterable[Panel]) -> list[Mark]:
    """Return the references and the background of all panels, each once."""
    panels = list(panels)
    references = dict.fromkeys(
        mark for panel in panels for mark in panel.marks if isinstance(mark, Reference)
    )
    background: list[Line] = []
    for mark in (mark for panel in panels for mark in panel.marks):
        if not isinstance(mark, Line) or mark.style != "solid" or _is_curve(mark):
            continue
        if not any(_alike(mark, other) for other in background):
            background.append(mark)
    return [*references, *background]


def _alike(one: Line, two: Line) -> bool:
    return np.array_equal(one.x, two.x) and np.array_equal(one.y, two.y)


def _bounds(panel: Panel, color: Color, with_word: bool) -> list[Line]:
    """Return the dashed lines of a run, such as 2/η, in its colour; the word for them is said once."""
    dashed = [mark for mark in panel.marks if isinstance(mark, Line) and mark.style == "dashed"]
    return [replace(mark, color=color, label=mark.label if with_word else "") for mark in dashed]


def _recolored(curve: _Curve, run: str, color: Color, with_faint: bool) -> list[Mark]:
    *behind, front = curve.marks
    marks: list[Mark] = [replace(mark, color=color, label="") for mark in behind if with_faint]
    if isinstance(front, Bars):
        return [*marks, replace(front, color=color, label=run, outline=True)]
    return [*marks, replace(front, color=color, label=run)]


def _union(ranges: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    known = [one for one in ranges if one is not None]
    if len(known) < len(ranges):
        return None
    lows, highs = zip(*known, strict=True)
    return min(lows), max(highs)
