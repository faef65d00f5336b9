"""The density of the curvature's eigenvalues at the last tracked step."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.curvature import matrix_of
from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Array, Line, Mark, Panel, Reference
from cockpit.instruments.reading import curve, number, stacked

__all__ = ["FLOOR", "panel"]

FLOOR = 1e-5
"""Share of the largest density below which there is nothing but the tails of the smearing."""


@instrument("HessianSpectrum", name="hessian-spectrum")
def panel(run: Readable) -> Panel | None:
    """Return the density at the last step, and that at the first one behind it."""
    eigenvalues, density = (stacked(run, "HessianSpectrum", p) for p in ("eigenvalues", "density"))
    if eigenvalues is None or density is None:
        return None
    (steps, grids), (_, heights) = eigenvalues, density
    marks: list[Mark] = [Reference(0.0, axis="x")]
    if len(steps) > 1:
        marks.append(_line(grids[0], heights[0], f"step {steps[0]:.0f}", faint=True))
    marks.append(_line(grids[-1], heights[-1], f"step {steps[-1]:.0f}"))
    smallest, largest = (curve(run, "HessianSpectrum", part) for part in ("smallest", "largest"))
    ends = [number(float(end.values[-1])) for end in (smallest, largest) if end is not None]
    return Panel(
        title=f"Eigenvalues of the {matrix_of(run, 'HessianSpectrum')}",
        group="CURVATURE",
        how_to_read="A bulk at zero and few outliers far right are usual; a long negative tail: far "
        "from a minimum.",
        marks=tuple(marks),
        x_label="eigenvalue",
        y_label="density",
        scale="log",
        headline=" to ".join(ends),
    )


def _line(grid: Array, heights: Array, label: str, *, faint: bool = False) -> Line:
    seen = heights > FLOOR * np.nanmax(heights, initial=0.0)
    shown = np.where(seen, heights, np.nan)
    if faint:
        return Line(grid, shown, label, "neutral", "faint")
    return Line(grid, shown, label, "purple")
