"""The histogram of the individual gradients' entries over the steps."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.grad_histogram import Histograms, histograms
from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Array, Heat, Panel

__all__ = ["panel"]

ROWS = 120


@instrument("GradHist1d", name="grad-histogram-history")
def panel(run: Readable) -> Panel | None:
    """Return all histograms as a heat map, value × step, on one grid even if the range changed."""
    seen = histograms(run)
    if seen is None or len(seen.steps) < 2:
        return None
    grid = _grid(seen)
    values = np.stack([_rebin(c, e, grid) for c, e in zip(seen.counts, seen.edges, strict=True)], 1)
    return Panel(
        title="Gradients over time",
        group="GRADIENTS",
        how_to_read="Gentle narrowing is normal; a collapse onto 0 means vanishing gradients, a "
        "burst instability.",
        marks=(Heat(seen.steps, values, "count", edges=grid, scale="log"),),
        y_label="gradient entry",
    )


def _grid(seen: Histograms) -> Array:
    """Return edges over all filled bins: the run's own if they never change, else even ones."""
    same = all(np.array_equal(edges, seen.edges[0]) for edges in seen.edges)
    filled = [
        (edges[f[0]], edges[f[-1] + 1])
        for counts, edges in zip(seen.counts, seen.edges, strict=True)
        if (f := np.flatnonzero(counts)).size
    ]
    low = min((low for low, _ in filled), default=seen.edges[-1][0])
    high = max((high for _, high in filled), default=seen.edges[-1][-1])
    if same:
        edges = seen.edges[0]
        return edges[(edges >= low) & (edges <= high)]
    return np.linspace(low, high, ROWS + 1)


def _rebin(counts: Array, edges: Array, grid: Array) -> Array:
    """Spread counts over another grid, evenly within each bin; `[len(grid) − 1]`."""
    cumulated = np.concatenate([[0.0], np.cumsum(counts)])
    return np.diff(np.interp(grid, edges, cumulated))
