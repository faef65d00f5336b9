"""The latest histogram of the individual gradients' entries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Array, Bars, Panel
from cockpit.instruments.reading import arrays, curve, number

__all__ = ["Histograms", "histograms", "occupied", "panel"]


@instrument("GradHist1d", name="grad-histogram")
def panel(run: Readable) -> Panel | None:
    """Return the latest histogram as bars; the first one as an outline, if it has the same bins."""
    seen = histograms(run)
    if seen is None:
        return None
    marks = [Bars(seen.edges[-1], seen.counts[-1], f"step {seen.steps[-1]:.0f}", "blue")]
    if len(seen.steps) > 1 and np.array_equal(seen.edges[0], seen.edges[-1]):
        first = f"step {seen.steps[0]:.0f}"
        marks.append(Bars(seen.edges[0], seen.counts[0], first, "orange", outline=True))
    nonfinite = curve(run, "GradHist1d", "nonfinite")
    lost = float(nonfinite.values[-1]) if nonfinite is not None else 0.0
    return Panel(
        title="Individual gradients",
        group="GRADIENTS",
        how_to_read="A narrowing hill is normal; full outermost bins hold outliers, a lone "
        "spike at 0 means dead units.",
        marks=tuple(marks),
        x_label="entry of an individual gradient",
        y_label="count",
        scale="log",
        x_range=occupied(seen),
        headline=f"{number(lost)} not finite" if lost else "",
    )


@dataclass(frozen=True, eq=False)
class Histograms:
    """Histograms: `steps` `[n]`, per step `counts` `[bins]` and `edges` `[bins + 1]`."""

    steps: Array
    counts: tuple[Array, ...]
    edges: tuple[Array, ...]


def histograms(run: Readable) -> Histograms | None:
    """Return the total histograms of the run, those with counts and edges that fit."""
    hist, edges = (arrays(run, "GradHist1d", part) for part in ("hist", "edges"))
    steps = sorted(s for s in hist if s in edges and len(hist[s]) + 1 == len(edges[s]))
    if not steps:
        return None
    return Histograms(
        np.array(steps, float), tuple(hist[s] for s in steps), tuple(edges[s] for s in steps)
    )


def occupied(seen: Histograms) -> tuple[float, float]:
    """Return the range of the bins that the first or the last histogram fills, and some air."""
    low, high = np.inf, -np.inf
    for counts, edges in ((seen.counts[0], seen.edges[0]), (seen.counts[-1], seen.edges[-1])):
        filled = np.flatnonzero(counts)
        if filled.size:
            low, high = min(low, edges[filled[0]]), max(high, edges[filled[-1] + 1])
    if not low < high:
        return float(seen.edges[-1][0]), float(seen.edges[-1][-1])
    air = 0.03 * (high - low)
    return float(low - air), float(high + air)
