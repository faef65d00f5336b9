"""What readers have in common: lines, bands of values, and the values per parameter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cockpit.instruments import Readable
from cockpit.instruments.reading import (
    RECENT_LEAST,
    Table,
    curve,
    medians,
    now_of,
    number,
    percent,
    recent_of,
)

__all__ = [
    "RECENT_LEAST",
    "Bands",
    "Line",
    "Reader",
    "Reading",
    "listed",
    "meaning_of",
    "median_in",
    "medians",
    "names_of",
    "percent",
    "recent_of",
    "total",
]

Line = tuple[str, str]  # value, meaning
Bands = tuple[tuple[float, str], ...]  # up to this value it means that
Reader = Callable[[Readable, str], Line | None]


@dataclass(frozen=True)
class Reading:
    """One line of the table.

    Args:
        quantity: Name of the quantity.
        value: Its value now; with ``~`` in front, the median of the last steps.
        meaning: What this value says about the training.
    """

    quantity: str
    value: str
    meaning: str


def meaning_of(value: float, bands: Bands) -> str:
    """Return what a value means: the first of the bands that it is not above."""
    return next(meaning for limit, meaning in bands if value <= limit)


def median_in(bands: Bands, undefined: str) -> Callable[[Readable, str], Line | None]:
    """Make a reader that puts the median of the last steps into one of the bands."""

    def read(run: Readable, name: str) -> Line | None:
        data = curve(run, name)
        if data is None:
            return None
        recent = recent_of(data.values)
        if not recent.size:
            return number(float(data.values[-1])), undefined
        median = float(np.median(recent))
        return f"~{number(median)}", meaning_of(median, bands)

    return read


def total(data: Table) -> str:
    """Return the norm over all parameters, its median over the last steps, as a text."""
    return now_of(data.total.values)


def names_of(data: Table, chosen: np.ndarray) -> str:
    """Return the names of the chosen rows, `[names]` of bool, as a text."""
    return listed([name for name, is_chosen in zip(data.names, chosen, strict=True) if is_chosen])


def listed(names: list[str], at_most: int = 3) -> str:
    """Return some of the names, and how many more there are."""
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more
