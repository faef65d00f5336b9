"""Panels as plain data for pages and reports: thinned to a width in pixels, and ready for JSON.

::

    panel = instrument(run)
    json.dumps(panel_data(thinned(panel, width=800)), allow_nan=False)

JSON has no NaN and no infinities: NaN becomes `None`, an infinity ``"inf"`` or ``"-inf"``.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import singledispatch
from typing import Any

import numpy as np

from cockpit.errors import InvalidArgument
from cockpit.instruments.panel import Array, Band, Heat, Line, Mark, Panel, Points
from cockpit.instruments.thinning import thin_cells, thin_line, thin_points

__all__ = ["panel_data", "thinned"]

DIGITS = 7
"""Significant digits of the values: more than a picture shows."""

SMALLEST = 1e-290
"""Magnitude below which numbers are not rounded: they have too few digits for the way that is done."""

ROWS = 400
"""Height in pixels up to which single points are told apart."""


def thinned(panel: Panel, width: int = 800, x_range: tuple[float, float] | None = None) -> Panel:
    """Return a panel with no more points than `width` pixels can show.

    Per column of pixels the smallest and the largest value stay, and a gap: no spike disappears.

    Args:
        panel: The panel.
        width: Width of the picture in pixels.
        x_range: The part of the x axis that is looked at, to zoom in: what lies outside of it is left
            out, but for the next value on either side, so that lines run on to the edge.

    Raises:
        InvalidArgument: The width or the range is none.
    """
    if width < 1:
        raise InvalidArgument(f"width is a number of pixels, at least 1, got {width!r}.")
    if x_range is not None and not x_range[0] < x_range[1]:
        raise InvalidArgument(f"x_range is (low, high) with low < high, got {x_range!r}.")
    marks = panel.marks
    if x_range is not None:
        marks = tuple(_cut(mark, *x_range) for mark in marks)
        panel = replace(panel, x_range=x_range)
    logarithmic = panel.scale != "linear"
    return replace(panel, marks=tuple(_thin(mark, width, logarithmic) for mark in marks))


def panel_data(panel: Panel) -> dict[str, Any]:
    """Return a panel as dictionaries, lists, texts and numbers, which `json` takes as they are.

    The keys are the attributes of `Panel`; each of the ``marks`` has its attributes and ``kind``:
    ``"line"``, ``"band"``, ``"points"``, ``"bars"``, ``"heat"`` or ``"reference"``.
    """
    data = {one.name: _plain(getattr(panel, one.name)) for one in fields(panel)}
    data["marks"] = [_mark_data(mark) for mark in panel.marks]
    data["over_steps"] = panel.over_steps
    return data


def _mark_data(mark: Mark) -> dict[str, Any]:
    own = {one.name: _plain(getattr(mark, one.name)) for one in fields(mark)}
    return {"kind": type(mark).__name__.lower(), **own}


def _plain(value: Any) -> Any:
    """Return arrays as lists of numbers, tuples as lists."""
    if isinstance(value, np.ndarray):
        rounded = _rounded(np.asarray(value, float))
        plain = rounded.tolist()
        return plain if np.isfinite(rounded).all() else _without_nan(plain)
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return _without_nan(value)


def _without_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nan(one) for one in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None if np.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def _rounded(values: Array) -> Array:
    """Round to `DIGITS` significant digits; whole numbers, such as steps, stay what they are."""
    usual = np.isfinite(values) & (values != np.round(values)) & (np.abs(values) > SMALLEST)
    some = np.where(usual, values, 1.0)
    places = 10.0 ** (DIGITS - 1 - np.floor(np.log10(np.abs(some))))
    return np.where(usual, np.round(some * places) / places, values)


@singledispatch
def _cut(mark: Any, low: float, high: float) -> Any:
    """Return what of a mark is seen between two places on the x axis; it is seen as it is."""
    return mark


@_cut.register(Line)
@_cut.register(Band)
@_cut.register(Points)
def _(mark: Line | Band | Points, low: float, high: float) -> Line | Band | Points:
    names = [one.name for one in fields(mark) if isinstance(getattr(mark, one.name), np.ndarray)]
    x = np.asarray(mark.x, float)
    keep: Any = (x >= low) & (x <= high)
    if not isinstance(mark, Points) and (np.diff(x) >= 0).all():
        keep = slice(*_around(x, low, high))
    return replace(mark, **{name: getattr(mark, name)[keep] for name in names})


@_cut.register
def _(mark: Heat, low: float, high: float) -> Heat:
    keep = slice(*_around(np.asarray(mark.x, float), low, high))
    return replace(mark, x=mark.x[keep], values=mark.values[:, keep])


def _around(x: Array, low: float, high: float) -> tuple[int, int]:
    """Return from which to before which place ascending x is seen, with a neighbour on either side."""
    first = int(np.searchsorted(x, low, side="left"))
    last = int(np.searchsorted(x, high, side="right"))
    return max(first - 1, 0), last + 1


@singledispatch
def _thin(mark: Any, width: int, logarithmic: bool) -> Any:
    """Return a mark with as few points as the width allows; one without points stays as it is."""
    return mark


@_thin.register
def _(mark: Line, width: int, logarithmic: bool) -> Line:
    x = np.asarray(mark.x, float)
    if (np.diff(x) < 0).any():  # an outline, which has few points
        return mark
    keep = thin_line(x, np.asarray(mark.y, float), limit=3 * width)
    return replace(mark, x=mark.x[keep], y=mark.y[keep])


@_thin.register
def _(mark: Band, width: int, logarithmic: bool) -> Band:
    x, low, high = (np.asarray(v, float) for v in (mark.x, mark.low, mark.high))
    keep = np.union1d(*(thin_line(x, edge, limit=3 * width) for edge in (low, high)))
    return replace(mark, x=x[keep], low=low[keep], high=high[keep])


@_thin.register
def _(mark: Points, width: int, logarithmic: bool) -> Points:
    x, y = np.asarray(mark.x, float), np.asarray(mark.y, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        seen = np.where(y > 0, np.log(np.abs(y)), y) if logarithmic else y
    keep = thin_points(x, seen, width, ROWS)
    return replace(mark, x=x[keep], y=y[keep])


@_thin.register
def _(mark: Heat, width: int, logarithmic: bool) -> Heat:
    edges, values = thin_cells(np.asarray(mark.x, float), mark.values, limit=width)
    if values.shape == mark.values.shape:
        return mark
    return replace(mark, x=(edges[1:] + edges[:-1]) / 2, values=values)
