"""The density of the curvature's eigenvalues over the steps."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.curvature import matrix_of
from cockpit.instruments.hessian_spectrum import FLOOR
from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Heat, Panel
from cockpit.instruments.reading import stacked

__all__ = ["panel"]

ROWS = 120


@instrument("HessianSpectrum", name="hessian-spectrum-history")
def panel(run: Readable) -> Panel | None:
    """Return all densities as a heat map, eigenvalue × step, on one grid; `None` for a single step."""
    eigenvalues, density = (stacked(run, "HessianSpectrum", p) for p in ("eigenvalues", "density"))
    if eigenvalues is None or density is None or len(eigenvalues[0]) < 2:
        return None
    (steps, grids), (_, heights) = eigenvalues, density
    finite = grids[np.isfinite(grids)]
    if not finite.size or finite.min() == finite.max():
        return None
    edges = np.linspace(finite.min(), finite.max(), ROWS + 1)
    values = np.stack(
        [_rebinned(grid, of_step, edges) for grid, of_step in zip(grids, heights, strict=True)], 1
    )
    seen = values > FLOOR * np.nanmax(values, initial=0.0)
    return Panel(
        title="Eigenvalues over time",
        group="CURVATURE",
        how_to_read="Bands that leave the bulk are directions that get sharper; the topmost limits the "
        "learning rate.",
        marks=(Heat(steps, np.where(seen, values, np.nan), "density", edges=edges, scale="log"),),
        y_label=f"eigenvalue of the {matrix_of(run, 'HessianSpectrum')}",
    )


def _rebinned(grid: np.ndarray, heights: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the mean density between edges, `[len(edges) - 1]`."""
    known = np.isfinite(grid) & np.isfinite(heights)
    if known.sum() < 2:
        return np.full(len(edges) - 1, np.nan)
    x, y = grid[known], heights[known]
    cumulated = np.concatenate([[0.0], np.cumsum(np.diff(x) * (y[1:] + y[:-1]) / 2)])
    return np.diff(np.interp(edges, x, cumulated)) / np.diff(edges)
