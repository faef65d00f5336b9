"""The latest joint histogram of the individual gradients' entries and of the parameters."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.grad_histogram_layers import filled
from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Array, Heat, Line, Panel
from cockpit.instruments.reading import newest

__all__ = ["panel"]

STRIP, GAP = 0.22, 0.03
"""Height of the marginals, and their distance from the histogram, relative to its size."""


@instrument("GradHist2d", name="grad-histogram-2d")
def panel(run: Readable) -> Panel | None:
    """Return the histogram as a heat map, with the marginals above and on its right.

    The heights of the marginals are logarithms of counts, as are the colours.
    """
    found = newest(run, "GradHist2d")
    if found is None or not {"hist", "edges/0", "edges/1"} <= set(found[1]):
        return None
    step, arrays = found
    counts, x, y = arrays["hist"], arrays["edges/0"], arrays["edges/1"]
    if counts.shape != (len(x) - 1, len(y) - 1):
        return None
    (left, right), (low, high) = filled(counts.sum(1)), filled(counts.sum(0))
    counts, x, y = counts[left:right, low:high], x[left : right + 1], y[low : high + 1]
    width, height = float(x[-1] - x[0]), float(y[-1] - y[0])
    above = y[-1] + height * (GAP + STRIP * _relative(counts.sum(1)))
    beside = x[-1] + width * (GAP + STRIP * _relative(counts.sum(0)))
    return Panel(
        title="Gradients and parameters",
        group="GRADIENTS",
        how_to_read="A cross is usual; parameters that pile up at one value point at a bad start or "
        "at saturation.",
        marks=(
            Heat((x[:-1] + x[1:]) / 2, counts.T, "count", edges=y, scale="log"),
            Line(np.repeat(x, 2)[1:-1], np.repeat(above, 2), "", "orange"),
            Line(np.repeat(beside, 2), np.repeat(y, 2)[1:-1], "", "green"),
        ),
        x_label="gradient entry",
        y_label="parameter",
        x_range=(float(x[0]), float(x[-1] + width * (2 * GAP + STRIP))),
        y_range=(float(y[0]), float(y[-1] + height * (2 * GAP + STRIP))),
        headline=f"step {step}",
    )


def _relative(counts: Array) -> Array:
    heights = np.log1p(counts)
    return heights / (heights.max() or 1.0)
