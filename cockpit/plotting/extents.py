"""What part of the axes is seen, and round numbers on them: the same for every renderer."""

from __future__ import annotations

import numpy as np
from matplotlib.ticker import MaxNLocator

from cockpit.instruments.panel import Array, Band, Bars, Heat, Line, Panel, Points
from cockpit.instruments.thinning import cell_edges

__all__ = ["has_data", "heights", "limits", "log_ticks", "round_ticks", "step_range", "step_ticks"]


def heights(panel: Panel) -> Array:
    """Return all finite values on the y axis."""
    found: list[Array] = [np.zeros(0)]
    for mark in panel.marks:
        if isinstance(mark, Line | Points):
            found.append(np.asarray(mark.y, float))
        elif isinstance(mark, Band):
            found += [np.asarray(mark.low, float), np.asarray(mark.high, float)]
        elif isinstance(mark, Bars):
            found.append(np.asarray(mark.heights, float))
    joined = np.concatenate(found)
    return joined[np.isfinite(joined)]


def has_data(panel: Panel) -> bool:
    """Return whether there is anything finite to see."""
    heat = [m for m in panel.marks if isinstance(m, Heat)]
    return bool(heights(panel).size) or any(np.isfinite(m.values).any() for m in heat)


def step_range(panel: Panel) -> tuple[float, float, float] | None:
    """Return the first, the first positive, and the last step of a panel; `None` without steps."""
    found: list[Array] = []
    for mark in panel.marks:
        if isinstance(mark, Line | Points | Band | Heat):
            found.append(np.asarray(mark.x, float))
        if isinstance(mark, Heat):
            found.append(cell_edges(np.asarray(mark.x, float)))
    steps = np.concatenate([np.zeros(0), *found])
    if not steps.size:
        return None
    whole = steps[(steps >= 1) & (steps == np.round(steps))]
    return float(steps.min()), float(whole.min(initial=max(steps.max(), 1.0))), float(steps.max())


def limits(values: Array, scale: str, bars: bool, named: bool) -> tuple[float, float]:
    """Return the y limits: all values, some air, and room for words above bars.

    Args:
        values: Finite values `[n]`, at least one; of a logarithmic axis, one that is positive.
        scale: Scale of the axis.
        bars: Whether they are heights of bars, which start at zero.
        named: Whether words stand above them.
    """
    if scale == "log":
        low, high = np.log10(values[values > 0].min()), np.log10(values.max())
        if bars:
            return 0.5, float(10 ** (high + 0.08 * (high - np.log10(0.5))))
        air = max(0.06 * (high - low), 0.05)
        return float(10 ** (low - air)), float(10 ** (high + air))
    low, high = float(values.min()), float(values.max())
    if bars:
        return 0.0, (high or 1.0) * (1.35 if named else 1.06)
    air = 0.07 * (high - low) or 0.1 * abs(high) or 0.5
    return (low * 1.6 if scale == "symlog" and low < 0 else low - air), (
        high * 1.6 if scale == "symlog" and high > 0 else high + air
    )


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers from `low` to `high`: 1, 2, 5, 10, ..., or decades, at most so many."""
    first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
    decades = [v for d in range(first, last + 1) if low <= (v := 10.0**d) <= high]
    options = [
        [v for d in range(first, last + 1) for m in (1, 2, 5) if low <= (v := m * 10.0**d) <= high]
    ]
    options += [decades[::-every][::-1] for every in range(1, 9)]
    return next((option for option in options if len(option) <= most), options[-1][:most])


def round_ticks(low: float, high: float, most: int, logarithmic: bool = False) -> list[float]:
    """Return round numbers from `low` to `high`, about `most` of them at most.

    On a short logarithmic axis even steps are rounder than the numbers 1, 2, 5, 10.
    """
    if logarithmic and high > 4 * low:
        found = log_ticks(low, high, most)
        if len(found) > 1:
            return found
    return _inside(MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10]), low, high)


def step_ticks(low: float, high: float, most: int) -> list[float]:
    """Return whole numbers from `low` to `high`, about `most` of them at most."""
    steps = [1, 2, 2.5, 5, 10] if high - low > 20 else [1, 2, 5, 10]
    return _inside(MaxNLocator(nbins=most, integer=True, steps=steps, min_n_ticks=1), low, high)


def _inside(locator: MaxNLocator, low: float, high: float) -> list[float]:
    ticks = np.asarray(locator.tick_values(low, high), float)
    air = 1e-9 * (high - low)
    return [float(tick) for tick in ticks if low - air <= tick <= high + air]
