"""Reading what instruments show from a run: curves, tables, and their smooth versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from cockpit.instruments.instrument import Readable
from cockpit.instruments.panel import Array, Band, Color, Line, Mark, Points, Scale

__all__ = [
    "RECENT_LEAST",
    "Curve",
    "Table",
    "arrays",
    "batch_size_in_use",
    "before",
    "curve",
    "joined",
    "latest",
    "medians",
    "moving",
    "newest",
    "now_of",
    "number",
    "percent",
    "recent_of",
    "robust_range",
    "scale_of",
    "spread",
    "stacked",
    "table",
    "trend",
]

RECENT_SHARE, RECENT_LEAST = 0.1, 10
"""Noisy quantities are read from the last tenth of their steps, from ten steps at least."""

WHOLE = "(whole model)"
"""What the model itself is called among its modules."""

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, eq=False)
class Curve:
    """One value per tracked step, `[n]` each."""

    steps: Array
    values: Array


@dataclass(frozen=True, eq=False)
class Table:
    """One value per parameter (or module) and step: `values` `[names, n]`, NaN where none is."""

    names: tuple[str, ...]
    steps: Array
    values: Array
    total: Curve
    """Square root of the sum of squares over what a step has."""


def curve(run: Readable, quantity: str, part: str = "") -> Curve | None:
    """Return one part of a quantity over the steps; `None` without values."""
    if part not in run.parts(quantity):
        return None
    steps, values = run.curve(quantity, part)
    return Curve(steps.astype(float), values) if len(steps) else None


def table(run: Readable, quantity: str, key: str = "") -> Table | None:
    """Return the values of a quantity by parameter, in model order, or by module, as they appear.

    Args:
        run: The run.
        quantity: Name of the quantity.
        key: Which of the values that the quantity has of each, such as ``"norm"``. Values of modules
            are found by key only.

    Returns:
        The table, or `None` when there are no such values.
    """
    known = {name: place for place, name in enumerate(run.parameters)}
    parts = run.parts(quantity)
    if key:
        own = {p[len(key) + 1 :]: p for p in parts if p == key or p.startswith(f"{key}/")}
    else:
        own = {part: part for part in parts if part in known}
    names = sorted(own, key=known.__getitem__) if own.keys() <= known.keys() else list(own)
    columns = {name: run.curve(quantity, own[name]) for name in names}
    columns = {name: column for name, column in columns.items() if len(column[0])}
    if not columns:
        return None
    steps, values = joined(list(columns.values()))
    squares = np.zeros(len(steps))
    with np.errstate(over="ignore"):
        for own_steps, numbers in columns.values():  # what is NaN counts, what is missing does not
            squares[np.searchsorted(steps, own_steps)] += numbers**2
    names = [name or WHOLE for name in columns]
    return Table(tuple(names), steps, values, Curve(steps, np.sqrt(squares)))


def joined(columns: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[Array, Array]:
    """Return all steps `[n]` of pairs of steps and values, and each pair's values `[pairs, n]`."""
    first = columns[0][0]
    if all(np.array_equal(own, first) for own, _ in columns):
        return first.astype(float), np.stack([values for _, values in columns])
    steps = np.unique(np.concatenate([own for own, _ in columns]))
    rows = np.full((len(columns), len(steps)), np.nan)
    for row, (own, values) in zip(rows, columns, strict=True):
        row[np.searchsorted(steps, own)] = values
    return steps.astype(float), rows


def stacked(run: Readable, quantity: str, part: str) -> tuple[Array, Array] | None:
    """Return the steps `[n]` and, as rows, the arrays `[n, k]` of one part; short ones with NaN."""
    found = arrays(run, quantity, part)
    if not found:
        return None
    rows = np.full((len(found), max(array.size for array in found.values())), np.nan)
    for row, array in zip(rows, found.values(), strict=True):
        row[: array.size] = array.ravel()
    return np.array(list(found), float), rows


def arrays(run: Readable, quantity: str, part: str) -> dict[int, Array]:
    """Return the arrays of one part by step, ascending; of two of one step, the first."""
    if part not in run.parts(quantity, "array"):
        return {}
    frame = run.arrays(quantity, part)
    found: dict[int, Array] = {}
    for step, value in zip(frame["step"].tolist(), frame["value"], strict=True):
        found.setdefault(step, np.asarray(value, float))
    return found


def newest(run: Readable, quantity: str) -> tuple[int, dict[str, Array]] | None:
    """Return the last step that has arrays of a quantity, and these by their parts."""
    found = run.newest(quantity)
    if found is None:
        return None
    return found[0], {part: np.asarray(array, float) for part, array in found[1].items()}


def before(data: Curve, steps: Array) -> Array:
    """Return at each of the steps the last value known by then; the first one before all."""
    places = np.searchsorted(data.steps, steps, side="right") - 1
    return data.values[np.maximum(places, 0)]


def batch_size_in_use(run: Readable, steps: Array) -> tuple[Line, ...]:
    """Return the logged batch size as a dashed line over the steps; nothing where none was logged."""
    size = curve(run, "batch_size")
    return (
        () if size is None else (Line(steps, before(size, steps), "in use", "neutral", "dashed"),)
    )


def recent_of(values: Array) -> Array:
    """Return the finite ones of the last values, from which one reads what a noisy quantity is now."""
    recent = values[-max(RECENT_LEAST, int(RECENT_SHARE * len(values))) :]
    return recent[np.isfinite(recent)]


def medians(data: Table) -> Array:
    """Return each row's median over the last steps, `[names]`; NaN where none of them is finite."""
    return np.array(
        [np.median(recent) if (recent := recent_of(row)).size else np.nan for row in data.values]
    )


def now_of(values: Array) -> str:
    """Return what a noisy quantity is now as a text: ``~`` and the median of its last values.

    The last value itself stands where none of them is finite.
    """
    recent = recent_of(values)
    return f"~{number(float(np.median(recent)))}" if recent.size else latest(values)


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


def spread(data: Table, color: Color = "blue", label: str = "all parameters") -> tuple[Mark, ...]:
    """Return the median over all rows as a line, and the range of all of them as a band."""
    finite = np.where(np.isfinite(data.values), data.values, np.nan)
    middle = _median(finite)
    if len(data.names) == 1:
        return trend(Curve(data.steps, middle), data.names[0], color)
    low, high = np.fmin.reduce(finite), np.fmax.reduce(finite)
    return (
        Band(data.steps, low, high, label, color),
        *trend(Curve(data.steps, middle), "their median", color),
    )


def unconverged(run: Readable, quantity: str, data: Curve) -> tuple[Points, ...]:
    """Return the points of a curve of eigenvalues at which the search was given up."""
    converged = curve(run, quantity, "converged")
    if converged is None:
        return ()
    rough = np.isin(data.steps, converged.steps[converged.values == 0])
    where = data.steps[rough], data.values[rough]
    return (Points(*where, "not converged", "vermillion", faint=True),) if rough.any() else ()


def scale_of(*values: Array) -> Scale:
    """Return a logarithmic scale for values over two decades, symlog for both signs."""
    joined = np.concatenate([np.zeros(0), *(np.ravel(v) for v in values)])
    size = np.abs(joined[np.isfinite(joined) & (joined != 0)])
    if not size.size or size.max() < 100 * np.quantile(size, 0.02):
        return "linear"
    return "symlog" if (joined < 0).any() else "log"


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


def percent(share: float) -> str:
    """Return a share in per cent, as a text."""
    return f"{number(100 * share)} %" if share == 0 or share >= 1e-4 else "< 0.01 %"


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


def _median(values: Array) -> Array:
    """Return the median of the numbers in each column of `[n, m]`, NaN where there are none; `[m]`."""
    ordered = np.sort(values.T, axis=1)  # NaN comes last
    count = (~np.isnan(ordered)).sum(1)
    column = np.arange(len(ordered))
    low, high = (
        ordered[column, np.maximum(count - 1, 0) // 2],
        ordered[column, count // 2 * (count > 0)],
    )
    return (low + high) / 2
