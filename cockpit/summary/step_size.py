"""Step length, updates and parameters."""

from __future__ import annotations

import math

import numpy as np

from cockpit.instruments import Readable
from cockpit.instruments.reading import number, table
from cockpit.summary.reading import (
    RECENT_LEAST,
    Bands,
    Line,
    Reader,
    median_in,
    medians,
    names_of,
    percent,
    recent_of,
    total,
)

__all__ = ["READERS"]

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

STANDSTILL = 0.01
"""A distance that changed by less than this share in half the steps does not change."""

OSCILLATION = 0.5
"""From this ratio of one update to the whole distance on, the training goes back and forth."""

RATIO_LOW, RATIO_HIGH = 1e-4, 1e-2
"""A tenth and ten times the rule of thumb of 0.001 for the update relative to the parameter."""

LOST = 0.1
"""From this share on, tens of per cent of the elements, rounding keeps parameters from learning."""

STALE = 2.0
"""From this size of the gradient in units of Adam's estimate on, the estimate is out of date."""

FAR = 50.0
"""From so many standard deviations on, the largest value of a parameter is on its own."""


def _distance(run: Readable, name: str) -> Line | None:
    data = table(run, name)
    if data is None:
        return None
    now = float(data.total.values[-1])
    value = number(now)
    if now == 0:
        return value, "the parameters are where they began"
    unmoved = names_of(data, data.values[:, -1] == 0)
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
    value, recent, distance = total(data), recent_of(data.total.values), _way(run)
    if not recent.size:
        return value, "not finite: the parameters have diverged"
    size = float(np.median(recent))
    if size == 0:
        return value, "the steps leave the parameters as they are"
    if distance is None:
        return value, "the length of one step"
    share = size / distance
    text = f"one step is {percent(share)} of the distance from the start"
    if share > OSCILLATION and len(data.steps) >= 2 * RECENT_LEAST:
        text += ": the training oscillates"
    return value, text


def _way(run: Readable) -> float | None:
    """Return the distance from the start, if that is known and not zero."""
    data = table(run, "Distance")
    distance = 0.0 if data is None else float(data.total.values[-1])
    return distance if distance > 0 and math.isfinite(distance) else None


def _update_ratio(run: Readable, name: str) -> Line | None:
    data = table(run, name)
    if data is None:
        return None
    ratios = medians(data)
    known = np.isfinite(ratios)
    if not known.any():
        return number(float(data.values[0, -1])), "not defined: parameters of zeros, or no update"
    value = f"~{number(float(np.median(ratios[known])))}"
    slow, fast = names_of(data, ratios < RATIO_LOW), names_of(data, known & (ratios > RATIO_HIGH))
    if fast:
        return value, f"median of the parameters; thrown about, at more than {RATIO_HIGH}: {fast}"
    if slow:
        return value, f"median of the parameters; hardly learning, at less than {RATIO_LOW}: {slow}"
    return value, "median of the parameters; about 0.001 is a rule of thumb"


def _lost_updates(run: Readable, name: str) -> Line | None:
    data = table(run, name)
    if data is None:
        return None
    shares = medians(data)
    if not np.isfinite(shares).any():
        return "NaN", "not defined: the gradient is zero"
    most = float(np.nanmax(shares))
    lost = names_of(data, shares >= LOST)
    if lost:
        return f"~{percent(most)}", f"smaller than what rounding keeps: updates of {lost}"
    if most == 0:
        return f"~{percent(most)}", "of the elements do not change: rounding takes nothing"
    return f"~{percent(most)}", "at most, of the elements do not change: rounding takes little"


def _adam_staleness(run: Readable, name: str) -> Line | None:
    data = table(run, name)
    if data is None:
        return None
    sizes = medians(data)
    if not np.isfinite(sizes).any():
        return number(float(data.values[0, -1])), "not finite: the gradients have diverged"
    value = f"~{number(float(np.nanmax(sizes)))}"
    stale = names_of(data, sizes >= STALE)
    if stale:
        return value, f"the gradient outgrows Adam's estimate, try a smaller β₂: {stale}"
    return value, "at most, in units of Adam's estimate, which is up to date"


def _parameter_stats(run: Readable, name: str) -> Line | None:
    norms, std = table(run, name, "norm"), table(run, name, "std")
    low, high = table(run, name, "min"), table(run, name, "max")
    if norms is None or std is None or low is None or high is None:
        return None
    value = number(float(norms.total.values[-1]))
    broken = names_of(norms, ~np.isfinite(norms.values[:, -1]))
    if broken:
        return value, f"not finite: {broken}"
    largest = np.maximum(-low.values[:, -1], high.values[:, -1])
    far = names_of(std, (std.values[:, -1] > 0) & (largest > FAR * std.values[:, -1]))
    if far:
        return value, f"single values beyond {FAR:.0f} standard deviations: {far}"
    start = number(float(norms.total.values[0]))
    return value, f"the norm of all parameters; it was {start} at step {norms.steps[0]:.0f}"


READERS: dict[str, Reader] = {
    "AdamStaleness": _adam_staleness,
    "Alpha": median_in(ALPHA, "not defined at the last steps"),
    "Distance": _distance,
    "LostUpdates": _lost_updates,
    "ParameterStats": _parameter_stats,
    "UpdateRatio": _update_ratio,
    "UpdateSize": _update_size,
}
