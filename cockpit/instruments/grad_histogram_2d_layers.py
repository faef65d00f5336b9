"""The latest joint histogram of gradients and parameters, layer by layer."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.grad_histogram_layers import by_parameter, filled
from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Array, Heat, Panel
from cockpit.instruments.reading import newest

__all__ = ["panel"]

ROWS = 160
"""Rows of the picture, at most: the more layers, the fewer for each."""

EACH = 15
"""Rows of one layer, at most."""


@instrument("GradHist2d", name="grad-histogram-2d-layers")
def panel(run: Readable) -> Panel | None:
    """Return the histograms one below the other, large parameters on top; each in shares of its own.

    There are none unless the histograms of single parameters were kept.
    """
    found = newest(run, "GradHist2d")
    if found is None or not {"edges/0", "edges/1"} <= set(found[1]):
        return None
    step, arrays = found
    x = arrays["edges/0"]
    names, counts = by_parameter(run, arrays, len(x) - 1, len(arrays["edges/1"]) - 1)
    if not names:
        return None
    left, right = filled(counts.sum((0, 2)))
    rows = int(np.clip(ROWS // len(names) - 1, 1, EACH))
    gap = int(rows > 1)
    blocks = [_block(of_one[left:right], rows, gap) for of_one in counts]
    labels = [label for name in names for label in _labels(name, rows, gap)]
    values = np.concatenate(blocks)
    return Panel(
        title="Gradients and parameters by layer",
        group="GRADIENTS",
        how_to_read="In each block, parameters lie upwards: a cross is usual, a lone column at 0 gets no "
        "gradient.",
        marks=(
            Heat(
                (x[left:right] + x[left + 1 : right + 1]) / 2,
                values[: len(values) - gap],
                "share [%]",
                names=tuple(labels[: len(labels) - gap]),
                scale="log",
            ),
        ),
        x_label="gradient entry",
        x_range=(float(x[left]), float(x[right])),
        headline=f"step {step}",
    )


def _block(counts: Array, rows: int, gap: int) -> Array:
    """Return counts `[bins_x, bins_y]` as shares, on so many rows and a gap: `[rows + gap, bins_x]`.

    They begin with the largest parameters; empty bins of parameters at both ends are left out.
    """
    low, high = filled(counts.sum(0))
    seen = counts[:, low:high].T[::-1]  # [bins of parameters, bins_x]
    starts = np.unique(np.linspace(0, len(seen), rows, endpoint=False).astype(int))
    merged = np.add.reduceat(seen, starts, axis=0)
    total = merged.sum()
    spread = np.repeat(merged, np.diff(np.linspace(0, rows, len(merged) + 1).astype(int)), axis=0)
    shares = 100 * spread / total if total else spread
    return np.concatenate([shares, np.full((gap, counts.shape[0]), np.nan)])


def _labels(name: str, rows: int, gap: int) -> list[str]:
    """Return the name on the middle row, and none on the others."""
    return [name if row == rows // 2 else "" for row in range(rows)] + [""] * gap
