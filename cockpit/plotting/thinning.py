"""Fewer points, the same picture: no extreme and no gap is left out."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.panel import Array

__all__ = ["cell_edges", "thin_cells", "thin_line"]

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
    keep = [0, len(x) - 1]
    for column in np.split(np.arange(len(x)), _starts(x, limit // 3, logarithmic)[1:]):
        finite = column[np.isfinite(y[column])]
        if len(finite):
            keep += [finite[np.argmin(y[finite])], finite[np.argmax(y[finite])]]
        if len(finite) < len(column):
            keep.append(column[~np.isfinite(y[column])][0])
    return np.unique(keep)


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
    """Return edges and values `[rows, ≤ limit]` of cells; a merged one shows its largest value."""
    edges = cell_edges(x)
    if logarithmic:
        edges = np.maximum(edges, 0.0)
    if len(x) <= limit:
        return edges, values
    starts = _starts(x, limit, logarithmic)
    return np.append(edges[starts], edges[-1]), np.fmax.reduceat(values, starts, axis=1)


def _starts(x: Array, columns: int, logarithmic: bool) -> np.ndarray:
    """Return the index at which each column of the picture that holds points starts."""
    place = np.log1p(np.maximum(x, 0)) if logarithmic else x
    span = place[-1] - place[0]
    column = np.minimum((place - place[0]) / (span or 1) * columns, columns - 1).astype(int)
    return np.flatnonzero(np.diff(column, prepend=-1))
