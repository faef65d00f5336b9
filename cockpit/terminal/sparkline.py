"""A curve in one line of text."""

from __future__ import annotations

import numpy as np

from cockpit.instruments import Scale
from cockpit.instruments.reading import scale_of

__all__ = ["BLOCKS", "PLAIN", "sparkline"]

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN = "_.-~=+*#"
"""Levels for terminals that have no blocks."""

NOT_FINITE = "!"


def sparkline(values: np.ndarray, width: int, levels: str = BLOCKS) -> str:
    """Return values as a line of at most `width` characters, from low to high by `levels`.

    Of the values that share a character, the one farthest from the median of all is shown, so that
    no spike disappears; a ``!`` is where one of them is NaN or infinite. Values over several decades
    are shown by their logarithms.

    Args:
        values: What to show, `[n]`.
        width: Number of characters.
        levels: Characters from the lowest to the highest.
    """
    if not len(values):
        return ""
    columns = np.array_split(np.asarray(values, float), min(width, len(values)))
    finite = np.concatenate(columns)
    finite = finite[np.isfinite(finite)]
    if not finite.size:
        return NOT_FINITE * len(columns)
    largest = float(np.abs(finite).max()) or 1.0
    columns, finite = [column / largest for column in columns], finite / largest  # no overflow
    heights = np.array([_farthest(column, float(np.median(finite))) for column in columns])
    return "".join(_characters(_scaled(heights, scale_of(finite)), levels))


def _farthest(column: np.ndarray, middle: float) -> float:
    """Return the value farthest from the middle, or NaN where one is not finite."""
    if not np.isfinite(column).all():
        return np.nan
    return float(column[np.argmax(np.abs(column - middle))])


def _scaled(heights: np.ndarray, scale: Scale) -> np.ndarray:
    """Return heights between 0 and 1, NaN where they are not finite."""
    if scale != "linear":
        size = np.abs(heights)
        least = np.nanmin(size[size > 0]) if (size > 0).any() else 1.0
        heights = np.sign(heights) * np.log1p(size / least)
    if not np.isfinite(heights).any():
        return heights
    low, high = float(np.nanmin(heights)), float(np.nanmax(heights))
    if low == high:
        return np.where(np.isfinite(heights), 0.0, np.nan)
    return (heights - low) / (high - low)


def _characters(heights: np.ndarray, levels: str) -> list[str]:
    last = len(levels) - 1
    return [NOT_FINITE if np.isnan(h) else levels[round(float(h) * last)] for h in heights]
