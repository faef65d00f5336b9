"""A run in one table: every quantity with its value now, and a line on what that means."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from cockpit.instruments import Readable
from cockpit.instruments.reading import Curve, Table, curve, number, table

__all__ = ["Reading", "as_table", "readings"]

RECENT_SHARE, RECENT_LEAST = 0.1, 10
"""Noisy quantities are read from the last tenth of their steps, from ten steps at least."""


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


def readings(run: Readable) -> list[Reading]:
    """Return a line for each quantity and metric of a run, in the order of their appearance."""
    lines = []
    for name in run.quantities:
        kind = re.sub(r"-\d+$", "", name)  # the second of its kind is called "NormTest-2"
        read = READERS.get(kind, _anything)
        value, meaning = read(run, name) or _anything(run, name) or ("", "nothing to show yet")
        lines.append(Reading(name, value, meaning))
    return lines


def as_table(lines: list[Reading]) -> RichTable:
    """Return the lines as a table for the terminal."""
    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    shown.add_column("quantity", style="bold", max_width=24, overflow="fold")
    shown.add_column("now", justify="right", no_wrap=True)
    shown.add_column("what it means", overflow="fold")
    for line in lines:
        shown.add_row(Text(line.quantity), Text(line.value), Text(line.meaning))
    if any(line.value.startswith("~") for line in lines):
        shown.caption = "~ median of the last tenth of the steps, of 10 at least"
        shown.caption_justify = "left"
    return shown


# -- values and their meanings --------------------------------------------------------------------

Line = tuple[str, str]  # value, meaning
Bands = tuple[tuple[float, str], ...]  # up to this value it means that

ALPHA: Bands = (
    (-1.001, "steps go uphill: the local model of the loss rises along them"),
    (-0.999, "no move, or a local model that has no minimum"),
    (
        -0.5,
        "steps end far short of the minimum of the local model: a larger learning rate may help",
    ),
    (-0.05, "steps end slightly short of the minimum of the local model"),
    (0.05, "steps end at the minimum of the local model"),
    (0.5, "steps end slightly beyond the minimum of the local model"),
    (1.0, "steps end far beyond the minimum of the local model"),
    (math.inf, "steps end where the loss is higher than before: lower the learning rate"),
)
"""−1 is no move, 0 the minimum of the local model, 1 its mirror point, as high as the start."""

NORM_TEST: Bands = (
    (1.0, "the gradient is larger than its noise: the batch is large enough to know it"),
    (math.inf, "noise exceeds the gradient: a larger batch would give a better direction"),
)
"""The standard error of the mini-batch gradient relative to its norm."""

INNER_TEST: Bands = (
    (1.0, "the mini-batch gradient points downhill with high probability"),
    (math.inf, "the mini-batch gradient may well point uphill: a larger batch would help"),
)
"""The same, along the mini-batch gradient."""

ORTHO_TEST: Bands = (
    (1.0, "the direction of the gradient is well known"),
    (math.inf, "most of the direction is noise, as is common with many parameters"),
)
"""The same, orthogonal to the mini-batch gradient."""

OUTERMOST_MANY = 0.01
"""From this share of values in the outermost bins on, the scale of the inputs is in question."""

RATIO_LARGE = 1000.0
"""From this ratio of gradient norms on, parameters do not learn at the same pace."""

STANDSTILL = 0.01
"""A distance that changed by less than this share in half the steps does not change."""

OSCILLATION = 0.5
"""From this ratio of one update to the whole distance on, the training goes back and forth."""


def _meaning(value: float, bands: Bands) -> str:
    return next(meaning for limit, meaning in bands if value <= limit)


def _recent(values: np.ndarray) -> np.ndarray:
    """Return the last finite values."""
    recent = values[-max(RECENT_LEAST, int(RECENT_SHARE * len(values))) :]
    return recent[np.isfinite(recent)]


def _median_in(bands: Bands, undefined: str) -> Callable[[Readable, str], Line | None]:
    """Make a reader that puts the median of the last steps into one of the bands."""

    def read(run: Readable, name: str) -> Line | None:
        data = curve(run, name)
        if data is None:
            return None
        recent = _recent(data.values)
        if not recent.size:
            return number(float(data.values[-1])), undefined
        median = float(np.median(recent))
        return f"~{number(median)}", _meaning(median, bands)

    return read


# -- readers, one for each quantity that is known -------------------------------------------------


def _loss(run: Readable, name: str) -> Line | None:
    data = curve(run, name)
    if data is None:
        return None
    if not np.isfinite(data.values[-1]):
        return number(
            float(data.values[-1])
        ), "not a finite number any more: the training has diverged"
    recent = _recent(data.values)
    now, start = float(np.median(recent)), float(data.values[0])
    if len(data.values) < 2 * RECENT_LEAST:
        return number(float(data.values[-1])), f"it was {number(start)} at step {data.steps[0]:.0f}"
    fell = start - now > np.std(recent) + 0.01 * abs(start)  # by more than the noise
    change = "fell from" if fell else "has not fallen: it began at"
    return f"~{number(now)}", f"{change} {number(start)}"


def _grad_norm(run: Readable, name: str) -> Line | None:
    data = table(run, name)
    if data is None:
        return None
    value, last = _total(data), data.values[:, -1]
    broken = _names(data, ~np.isfinite(last))
    if broken:
        return value, f"not finite: {broken}"
    unmoved = _names(data, last == 0)
    if unmoved:
        return value, f"no gradient reaches {unmoved}"
    medians = _medians(data)
    low, high = int(np.nanargmin(medians)), int(np.nanargmax(medians))
    spread = (
        f"from {number(float(medians[low]))} in {data.names[low]} "
        f"to {number(float(medians[high]))} in {data.names[high]}"
    )
    if medians[high] > RATIO_LARGE * medians[low]:
        return value, f"{spread}: these do not learn at the same pace"
    return value, spread if low != high else f"the norm of {data.names[low]}"


def _distance(run: Readable, name: str) -> Line | None:
    data = table(run, name)
    if data is None:
        return None
    now = float(data.total.values[-1])
    value = number(now)
    if now == 0:
        return value, "the parameters are where they began"
    unmoved = _names(data, data.values[:, -1] == 0)
    if unmoved:
        return value, f"not trained, still where they began: {unmoved}"
    if len(data.steps) < RECENT_LEAST or not math.isfinite(now):
        return value, "from where the parameters began"
    middle = float(data.total.values[(len(data.steps) - 1) // 2])
    half_way = f"half the steps ago it was {number(middle)}"
    if abs(now - middle) < STANDSTILL * now:
        return value, f"from the start, at a standstill: {half_way}"
    if now < middle:
        return value, f"from the start, and coming back: {half_way}"
    pace = "slower than at first, as usual" if now < 2 * middle else "no slower than at first"
    return value, f"from the start, {pace}: {half_way}"


def _update_size(run: Readable, name: str) -> Line | None:
    data = table(run, name)
    if data is None:
        return None
    value, recent, distance = _total(data), _recent(data.total.values), _way(run)
    if not recent.size:
        return value, "not finite: the parameters have diverged"
    size = float(np.median(recent))
    if size == 0:
        return value, "the steps leave the parameters as they are"
    if distance is None:
        return value, "the length of one step"
    share = size / distance
    text = f"one step is {_percent(share)} of the distance from the start"
    if share > OSCILLATION and len(data.steps) >= 2 * RECENT_LEAST:
        text += ": the training oscillates"
    return value, text


def _way(run: Readable) -> float | None:
    """Return the distance from the start, if that is known and not zero."""
    data = table(run, "Distance")
    distance = 0.0 if data is None else float(data.total.values[-1])
    return distance if distance > 0 and math.isfinite(distance) else None


def _histogram(run: Readable, name: str) -> Line | None:
    whole, edges = run.arrays(name, "hist"), run.arrays(name, "edges")
    if whole.empty or edges.empty:
        return None
    counts, bounds = whole["value"].iloc[-1], edges["value"].iloc[-1]
    share = float(counts[0] + counts[-1]) / max(1, int(counts.sum()))
    value = _percent(share)
    nonfinite = curve(run, name, "nonfinite")
    if nonfinite is not None and nonfinite.values[-1] > 0:
        return value, f"{number(float(nonfinite.values[-1]))} elements of gradients are not finite"
    dead = _without_gradient(run, name, bounds)
    if dead:
        return value, f"no gradient: all elements of {dead} are in the bin of zero"
    judged = "many: check the scale of the inputs" if share > OUTERMOST_MANY else "few, as usual"
    return value, f"of the individual gradients' elements are in the outermost bins: {judged}"


def _without_gradient(run: Readable, name: str, bounds: np.ndarray) -> str:
    """Return the parameters whose elements all lie in one bin, and that with zero in it."""
    slack = 1e-6 * (bounds[-1] - bounds[0])  # zero may be the edge of two bins, up to rounding
    of_zero = np.flatnonzero((bounds[:-1] <= slack) & (bounds[1:] >= -slack))
    every = run.arrays(name)
    last = every[every["step"] == every["step"].max()]
    counts = {row.part.removeprefix("hist/"): row.value for row in last.itertuples()}
    peaks = {p: counts[p][of_zero].max(initial=0) for p in run.parameters if p in counts}
    return _listed([p for p, peak in peaks.items() if peak and peak == counts[p].sum()])


def _time(run: Readable, name: str) -> Line | None:
    data = curve(run, name)
    if data is None or len(data.steps) < 2:
        return None
    seconds = np.diff(data.values) / np.diff(data.steps)
    whole = data.values[-1] - data.values[0]
    return (
        f"~{number(float(np.median(_recent(seconds))))} s",
        f"for one step; {number(float(whole))} s in all",
    )


def _best(better: Callable[[np.ndarray], float]) -> Callable[[Readable, str], Line | None]:
    """Make a reader that compares the last value with the best one."""

    def read(run: Readable, name: str) -> Line | None:
        data = curve(run, name)
        finite = None if data is None else data.values[np.isfinite(data.values)]
        if data is None or finite is None or not finite.size:
            return None
        best, last = float(better(finite)), float(data.values[-1])
        if best == last:
            return number(last), "the best so far" if len(finite) > 1 else "as logged"
        step = data.steps[int(np.flatnonzero(data.values == best)[0])]
        return number(last), f"the best was {number(best)} at step {step:.0f}"

    return read


def _learning_rate(run: Readable, name: str) -> Line | None:
    data = curve(run, name)
    if data is None:
        return None
    now, start, high = (float(v) for v in (data.values[-1], data.values[0], np.max(data.values)))
    if now == start == high:
        return number(now), "constant so far"
    peak = f", {number(high)} at its highest" if high > max(now, start) else ""
    return number(now), f"it began at {number(start)}{peak}"


def _epochs(run: Readable, name: str) -> Line | None:
    data = curve(run, name)
    return None if data is None else (number(float(data.values[-1])), "epochs so far")


def _anything(run: Readable, name: str) -> Line | None:
    """Read a quantity that nothing is known of."""
    single = curve(run, name)
    if single is not None:
        return number(float(single.values[-1])), _extent(single)
    numbers = run.scalars(name)
    if not numbers.empty:
        last = numbers[numbers["step"] == numbers["step"].max()]["value"].to_numpy(float)
        low, high = (float(bound) for bound in (np.min(last), np.max(last)))
        return f"{len(last)} values", f"from {number(low)} to {number(high)}"
    arrays = run.arrays(name)
    if arrays.empty:
        return None
    last = [np.asarray(v, float) for v in arrays[arrays["step"] == arrays["step"].max()]["value"]]
    shape = " × ".join(map(str, last[0].shape)) if len(last) == 1 else f"{len(last)} arrays"
    elements = np.concatenate([array.ravel() for array in last])
    if not elements.size:
        return shape, "empty"
    return (
        shape,
        f"elements from {number(float(elements.min()))} to {number(float(elements.max()))}",
    )


def _extent(data: Curve) -> str:
    finite = data.values[np.isfinite(data.values)]
    if not finite.size:
        return "never a finite number"
    return f"between {number(float(finite.min()))} and {number(float(finite.max()))} so far"


# -- values per parameter -------------------------------------------------------------------------


def _medians(data: Table) -> np.ndarray:
    """Return each parameter's median over the last steps, `[parameters]`."""
    return np.array(
        [np.median(recent) if (recent := _recent(row)).size else np.nan for row in data.values]
    )


def _total(data: Table) -> str:
    recent = _recent(data.total.values)
    return (
        f"~{number(float(np.median(recent)))}"
        if recent.size
        else number(float(data.total.values[-1]))
    )


def _names(data: Table, chosen: np.ndarray) -> str:
    return _listed([name for name, is_chosen in zip(data.names, chosen, strict=True) if is_chosen])


def _percent(share: float) -> str:
    return f"{number(100 * share)} %" if share == 0 or share >= 1e-4 else "< 0.01 %"


def _listed(names: list[str], at_most: int = 3) -> str:
    """Return some of the names, and how many more there are."""
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more


READERS: dict[str, Callable[[Readable, str], Line | None]] = {
    "Alpha": _median_in(ALPHA, "not defined at the last steps"),
    "Distance": _distance,
    "GradHist1d": _histogram,
    "GradNorm": _grad_norm,
    "InnerTest": _median_in(INNER_TEST, "not defined: batches of one sample, or no gradient"),
    "Loss": _loss,
    "NormTest": _median_in(NORM_TEST, "not defined: batches of one sample, or no gradient"),
    "OrthoTest": _median_in(ORTHO_TEST, "not defined: batches of one sample, or no gradient"),
    "Time": _time,
    "UpdateSize": _update_size,
    "epoch_count": _epochs,
    "learning_rate": _learning_rate,
    **{f"{part}_accuracy": _best(np.max) for part in ("train", "valid", "test")},
    **{f"{part}_loss": _best(np.min) for part in ("train", "valid", "test")},
}
"""How to read each known quantity. A reader returns None where it finds nothing that it knows."""
