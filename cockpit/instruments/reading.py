"""Reading what instruments show from a run: curves, tables, and their smooth versions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from cockpit.instruments.instrument import Readable
from cockpit.instruments.panel import Array, Color, Line

__all__ = [
    "Curve",
    "Table",
    "curve",
    "latest",
    "moving",
    "number",
    "robust_range",
    "table",
    "trend",
]

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, eq=False)
class Curve:
    """One value per tracked step, `[n]` each."""

    steps: Array
    values: Array


@dataclass(frozen=True, eq=False)
class Table:
    """One value per parameter and step: `values` `[parameters, n]`, NaN where there is none."""

    names: tuple[str, ...]
    steps: Array
    values: Array
    total: Curve
    """Square root of the sum of squares over the parameters that a step has."""


def curve(run: Readable, quantity: str, part: str = "") -> Curve | None:
    """Return one part of a quantity over the steps; of two with one name, the first."""
    if quantity not in run.quantities:
        return None
    frame = run.scalars(quantity)
    frame = _tidy(frame[frame["part"] == part])
    if frame.empty:
        return None
    return Curve(frame["step"].to_numpy(float), frame["value"].to_numpy(float))


def table(run: Readable, quantity: str) -> Table | None:
    """Return the per-parameter values of a quantity, in model order."""
    if quantity not in run.quantities:
        return None
    frame = run.scalars(quantity)
    frame = _tidy(frame[frame["part"].isin(run.parameters)])
    if frame.empty:
        return None
    recorded = set(frame["part"])
    names = tuple(name for name in run.parameters if name in recorded)
    steps, column = np.unique(frame["step"].to_numpy(float), return_inverse=True)
    values = np.full((len(names), len(steps)), np.nan)
    numbers = frame["value"].to_numpy(float)
    values[frame["part"].map({name: i for i, name in enumerate(names)}), column] = numbers
    with np.errstate(over="ignore"):
        total = np.sqrt(np.bincount(column, weights=numbers**2, minlength=len(steps)))
    return Table(names, steps, values, Curve(steps, total))


def moving(values: Array, kind: str = "mean", share: float = 0.05) -> Array:
    """Return the centred moving mean or median over a `share` of the steps; gaps stay gaps."""
    window = max(5, int(share * len(values))) | 1
    finite = pd.Series(np.where(np.isfinite(values), values, np.nan))
    rolling = finite.rolling(window, center=True, min_periods=1)
    smooth = rolling.median() if kind == "median" else rolling.mean()
    return smooth.where(finite.notna()).to_numpy(float)


def trend(
    data: Curve, label: str = "", color: Color = "blue", kind: str = "mean"
) -> tuple[Line, ...]:
    """Return the values as a faint line, their moving mean or median on top; few as they are."""
    if len(data.values) < 8:
        return (Line(data.steps, data.values, label, color),)
    return (
        Line(data.steps, data.values, "", color, "faint"),
        Line(data.steps, moving(data.values, kind), label, color),
    )


def robust_range(values: Array, low: float, high: float, limit: float) -> tuple[float, float]:
    """Return a range with `low`, `high` and most of the values, but within ± `limit`."""
    finite = values[np.isfinite(values)]
    if finite.size:
        below, above = np.quantile(finite, [0.02, 0.98])
        low, high = min(low, below * 1.1), max(high, above * 1.1)
    return max(low, -limit), min(high, limit)


def latest(values: Array) -> str:
    """Return the last value as a short text."""
    return number(float(values[-1])) if len(values) else ""


def number(value: float) -> str:
    """Return a number with three digits, as people write it."""
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        exponent = int(np.floor(np.log10(abs(value))))
        return f"{value / 10.0**exponent:.2f}·10{str(exponent).translate(SUPERSCRIPT)}".replace(
            "-", "−"
        )
    if value == round(value):
        return f"{value:.0f}".replace("-", "−")
    digits = max(0, 2 - int(np.floor(np.log10(abs(value))))) if value else 0
    return f"{value:.{digits}f}".replace("-", "−")


def _tidy(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop_duplicates(["step", "part"], keep="first").sort_values("step", kind="stable")
