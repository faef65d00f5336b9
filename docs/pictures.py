"""Draws the same panel of two trainings side by side, on the same axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from cockpit.instruments import Bars, Heat, Mark, Panel, Reference
from cockpit.instruments.reading import scale_of
from cockpit.plotting import draw_figure
from cockpit.plotting.extents import heights, limits

SIZE, DPI = (9.0, 3.7), 110
COLOURS = 128
"""So many will do, and make the files small."""

DEPTH = 1e-9
"""Share of the largest value of a map of colours below which all is one colour."""


def side_by_side(
    panels: tuple[Panel, Panel], titles: Sequence[str], words: Sequence[str], same: bool = True
) -> Figure:
    """Return a figure of two panels.

    Args:
        panels: The same instrument on two trainings.
        titles: What to write above each.
        words: What to write below that, in the place of how to read it.
        same: Whether both have the same axes and colours.
    """
    title = panels[0].title
    if same:
        panels = aligned(*panels)
    named = [
        replace(panel, title=of_one, how_to_read=below)
        for panel, of_one, below in zip(panels, titles, words, strict=True)
    ]
    return draw_figure(named, Figure(figsize=SIZE), title=title)


def aligned(one: Panel, two: Panel) -> tuple[Panel, Panel]:
    """Return two panels with the same axes and the same colours."""
    if one.x_range is not None and two.x_range is not None:
        one, two = both(one, two, x_range=union(one.x_range, two.x_range))
    if maps_of(one):
        return coloured(*over_the_same(one, two))
    values = np.concatenate([heights(one), heights(two)])
    if one.scale != two.scale:
        one, two = both(one, two, scale=scale_of(values))
    if one.y_range is not None and two.y_range is not None:
        return both(one, two, y_range=union(one.y_range, two.y_range))
    if one.scale == "symlog":  # the renderer knows best how far it reaches
        return one, two
    marks = one.marks + two.marks
    level = [mark.value for mark in marks if isinstance(mark, Reference) and mark.axis == "y"]
    upright = any(isinstance(mark, Reference) and mark.axis == "x" for mark in marks)
    bars = any(isinstance(mark, Bars) for mark in marks)
    return both(
        one, two, y_range=limits(np.append(values, level), one.scale, bars=bars, named=upright)
    )


def over_the_same(one: Panel, two: Panel) -> tuple[Panel, Panel]:
    """Return two maps of colours with the same y axis, if they are over intervals and alone."""
    if len(one.marks) > 1 or len(two.marks) > 1:
        return one, two
    edges = [mark.edges for mark in maps_of(one, two) if mark.edges is not None]
    if len(edges) < 2:
        return one, two
    return both(one, two, y_range=union(*((float(e[0]), float(e[-1])) for e in edges)))


def coloured(one: Panel, two: Panel) -> tuple[Panel, Panel]:
    """Return two panels with a map of colours each, which mean the same in both."""
    maps = maps_of(one, two)
    if any(
        mark.limits == (0.0, 1.0) for mark in maps
    ):  # shares, which are of the same colours anyway
        return one, two
    values = np.concatenate([mark.values.ravel() for mark in maps])
    values = values[np.isfinite(values)]
    logarithmic = all(mark.scale == "log" for mark in maps)
    if logarithmic:
        values = values[values > DEPTH * values.max()]
    low, high = float(values.min()), float(values.max())
    if low < 0 < high:
        low, high = min(low, -high), max(high, -low)
    bounds = low, high if high > low else low + 1

    def adapted(mark: Mark) -> Mark:
        if not isinstance(mark, Heat):
            return mark
        return replace(mark, limits=bounds, scale="log" if logarithmic else "linear")

    return (
        replace(one, marks=tuple(map(adapted, one.marks))),
        replace(two, marks=tuple(map(adapted, two.marks))),
    )


def both(one: Panel, two: Panel, **changes: Any) -> tuple[Panel, Panel]:
    """Return two panels with the same changes."""
    return replace(one, **changes), replace(two, **changes)


def union(*ranges: tuple[float, float]) -> tuple[float, float]:
    """Return the smallest range that has all of them."""
    lows, highs = zip(*ranges, strict=True)
    return min(lows), max(highs)


def maps_of(*panels: Panel) -> list[Heat]:
    """Return the maps of colours of panels."""
    return [mark for panel in panels for mark in panel.marks if isinstance(mark, Heat)]


def save(figure: Figure, path: Path, dpi: float = DPI, colours: int | None = COLOURS) -> None:
    """Save a figure, with few colours where they will do, which makes the file small."""
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    image = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB")
    if colours is not None:
        image = image.quantize(colours, dither=Image.Dither.NONE)
    image.save(path, optimize=True)
