"""Reading what instruments show from a run: curves, tables, and their smooth versions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from cockpit.instruments.instrument import Readable
from cockpit.instruments.panel import Array, Band, Color, Line, Mark, Points, Scale

__all__ = [
    "Curve",
    "Table",
    "before",
    "curve",
    "latest",
    "moving",
    "newest",
    "number",
    "robust_range",
    "scale_of",
    "spread",
    "stability_bound",
    "stacked",
    "table",
    "trend",
]

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
    """Return one part of a quantity over the steps; of two with one name, the first."""
    if quantity not in run.quantities:
        return None
    frame = run.scalars(quantity)
    frame = _tidy(frame[frame["part"] == part])
    if frame.empty:
        return None
    return Curve(frame["step"].to_numpy(float), frame["value"].to_numpy(float))


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
    if quantity not in run.quantities:
        return None
    frame = run.scalars(quantity)
    if key:
        frame = frame[(frame["part"] == key) | frame["part"].str.startswith(f"{key}/")]
        frame = frame.assign(part=frame["part"].str.slice(len(key) + 1))
    else:
        frame = frame[frame["part"].isin(run.parameters)]
    frame = _tidy(frame)
    if frame.empty:
        return None
    recorded = list(dict.fromkeys(frame["part"]))
    known = set(run.parameters)
    if known.issuperset(recorded):
        recorded = [name for name in run.parameters if name in set(recorded)]
    steps, column = np.unique(frame["step"].to_numpy(float), return_inverse=True)
    values = np.full((len(recorded), len(steps)), np.nan)
    numbers = frame["value"].to_numpy(float)
    values[frame["part"].map({name: i for i, name in enumerate(recorded)}), column] = numbers
    with np.errstate(over="ignore"):
        total = np.sqrt(np.bincount(column, weights=numbers**2, minlength=len(steps)))
    names = tuple(name or WHOLE for name in recorded)
    return Table(names, steps, values, Curve(steps, total))


def stacked(run: Readable, quantity: str, part: str) -> tuple[Array, Array] | None:
    """Return the steps `[n]` and, as rows, the arrays `[n, k]` of one part; short ones with NaN."""
    if quantity not in run.quantities:
        return None
    frame = run.arrays(quantity)
    frame = _tidy(frame[frame["part"] == part])
    if frame.empty:
        return None
    arrays = [np.asarray(value, float).ravel() for value in frame["value"]]
    rows = np.full((len(arrays), max(len(array) for array in arrays)), np.nan)
    for row, array in zip(rows, arrays, strict=True):
        row[: len(array)] = array
    return frame["step"].to_numpy(float), rows


def newest(run: Readable, quantity: str) -> tuple[int, dict[str, Array]] | None:
    """Return the last step that has arrays of a quantity, and these by their parts."""
    frame = run.arrays(quantity) if quantity in run.quantities else None
    if frame is None or frame.empty:
        return None
    step = int(frame["step"].max())
    frame = _tidy(frame[frame["step"] == step])
    values = [np.asarray(value, float) for value in frame["value"]]
    return step, dict(zip(frame["part"], values, strict=True))


def before(data: Curve, steps: Array) -> Array:
    """Return at each of the steps the last value known by then; the first one before all."""
    places = np.searchsorted(data.steps, steps, side="right") - 1
    return data.values[np.maximum(places, 0)]


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
    middle = pd.DataFrame(finite).median().to_numpy(float)
    if len(data.names) == 1:
        return trend(Curve(data.steps, middle), data.names[0], color)
    low, high = np.fmin.reduce(finite), np.fmax.reduce(finite)
    return (
        Band(data.steps, low, high, label, color),
        *trend(Curve(data.steps, middle), "their median", color),
    )


def stability_bound(run: Readable, steps: Array) -> tuple[Line, ...]:
    """Return 2/η, where plain gradient descent becomes unstable, if the learning rate was logged."""
    rate = curve(run, "learning_rate")
    if rate is None:
        return ()
    eta = before(rate, steps)
    bound = np.divide(2.0, eta, out=np.full_like(eta, np.nan), where=eta > 0)
    return (Line(steps, bound, "2/η", "neutral", "dashed"),)


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
