"""The distribution of the normalised step length: the whole run against the most recent steps."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.alpha import MEANINGS
from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Bars, Panel, Reference
from cockpit.instruments.reading import curve, number, robust_range

__all__ = ["panel", "recent_count"]


@instrument("Alpha", name="alpha-distribution")
def panel(run: Readable) -> Panel | None:
    """Return histograms of all and of the latest α; the outermost bins hold what lies beyond."""
    alpha = curve(run, "Alpha")
    if alpha is None:
        return None
    values = alpha.values[np.isfinite(alpha.values)]
    if not values.size:
        return None
    low, high = robust_range(values, -1.4, 1.4, limit=4.0)
    edges = np.linspace(low, high, 29)
    recent = values[-recent_count(len(values)) :]
    return Panel(
        title="Where steps land",
        group="STEP SIZE",
        how_to_read="A hill left of 0 means cautious steps, one on the right overshooting; the "
        "outline is the latest tenth.",
        marks=(
            Bars(edges, _percent(values, edges), "all steps", "sky"),
            Bars(edges, _percent(recent, edges), f"last {len(recent)}", "vermillion", outline=True),
            *(Reference(value, word, axis="x") for value, word in MEANINGS),
        ),
        x_label="α",
        y_label="share of steps",
        unit="%",
        x_range=(low, high),
        headline=f"median of all {number(float(np.median(values)))}",
    )


def recent_count(steps: int) -> int:
    """Return how many of the steps count as recent: the last tenth, at least one."""
    return max(1, steps // 10)


def _percent(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    return 100.0 * counts / len(values)
