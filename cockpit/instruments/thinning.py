"""Fewer points, the same picture: no extreme and no gap is left out."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.panel import Array

__all__ = ["cell_edges", "thin_cells", "thin_line", "thin_points"]

POINTS = 2000
CELLS = 600


def thin_line(x: Array, y: Array, logarithmic: bool = False, limit: int = POINTS) -> np.ndarray:
    """Return which points to draw: per column of the picture the smallest, the largest, a gap.

    Args:
        x: Abscissa `[n]`, ascending.
        y: Values `[n]`; what is not finite is a gap.
        logarithmic: Whether the x axis is, so that columns are even where they are seen.
        limit: How many points may stay.

    Returns:
        Ascending indices; all of them when there are no more than `limit`.
    """
    if len(x) <= limit:
        return np.arange(len(x))
    starts = _starts(x, max(1, (limit - 2) // 3), logarithmic)
    column = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(x)))  # [n]
    finite = np.isfinite(y)
    kept = [np.array([0, len(x) - 1]), _first(~finite, column)]
    for least, bound in ((np.minimum, np.inf), (np.maximum, -np.inf)):
        known = np.where(finite, y, bound)
        kept.append(_first(finite & (known == least.reduceat(known, starts)[column]), column))
    return np.unique(np.concatenate(kept))


def thin_points(x: Array, y: Array, columns: int, rows: int) -> np.ndarray:
    """Return which points to draw: one of those in each cell of a grid, of any order; the first.

    Args:
        x: Abscissa `[n]`.
        y: Ordinate `[n]`, on the scale on which it is seen; all that is not finite stays.
        columns: How many columns the grid has.
        rows: How many rows it has.

    Returns:
        Ascending indices.
    """
    if len(x) <= columns:
        return np.arange(len(x))
    finite = np.isfinite(x) & np.isfinite(y)
    inside = np.flatnonzero(finite)
    cell = _bins(x[inside], columns) * rows + _bins(y[inside], rows)
    return np.sort(
        np.append(inside[np.unique(cell, return_index=True)[1]], np.flatnonzero(~finite))
    )


def cell_edges(x: Array) -> Array:
    """Return the edges `[n + 1]` of cells around ascending `x` `[n]`, halfway between them."""
    if len(x) < 2:
        return np.concatenate([x - 0.5, x + 0.5])
    middle = (x[1:] + x[:-1]) / 2
    first, last = x[0] - (middle[0] - x[0]), x[-1] + (x[-1] - middle[-1])
    return np.concatenate([[first], middle, [last]])


def thin_cells(
    x: Array, values: Array, logarithmic: bool = False, limit: int = CELLS
) -> tuple[Array, Array]:
    """Return edges and values `[rows, ≤ limit]` of cells; a merged one shows its largest magnitude."""
    edges = cell_edges(x)
    if logarithmic:
        edges = np.maximum(edges, 0.0)
    if len(x) <= limit:
        return edges, values
    starts = _starts(x, limit, logarithmic)
    merged = np.fmax.reduceat(values, starts, axis=1)
    if np.fmin.reduce(values, axis=None) < 0:
        low = np.fmin.reduceat(values, starts, axis=1)
        merged = np.where(-low > merged, low, merged)
    return np.append(edges[starts], edges[-1]), merged


def _starts(x: Array, columns: int, logarithmic: bool) -> np.ndarray:
    """Return the index at which each column of the picture that holds points starts."""
    place = np.log1p(np.maximum(x, 0)) if logarithmic else x
    return np.flatnonzero(np.diff(_bins(place, columns), prepend=-1))


def _bins(place: Array, count: int) -> np.ndarray:
    """Return in which of `count` even bins each finite place lies, `[n]`."""
    if not len(place):
        return np.zeros(0, int)
    low = place.min()
    span = place.max() - low
    return np.minimum((place - low) / (span or 1) * count, count - 1).astype(int)


def _first(which: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Return the first index in each column, of those that count; `column` is ascending."""
    found = np.flatnonzero(which)
    return found[np.diff(column[found], prepend=-1) != 0]
