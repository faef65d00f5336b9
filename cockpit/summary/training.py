"""Loss, metrics, time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cockpit.instruments import Readable
from cockpit.instruments.reading import Curve, curve, number
from cockpit.summary.reading import RECENT_LEAST, Line, Reader, recent_of

__all__ = ["READERS"]

HARDLY = 0.02
"""A metric that is better than at first by no more than this share has hardly changed."""


def _loss(run: Readable, name: str) -> Line | None:
    data = curve(run, name)
    if data is None:
        return None
    if not np.isfinite(data.values[-1]):
        return number(
            float(data.values[-1])
        ), "not a finite number any more: the training has diverged"
    recent = recent_of(data.values)
    now, start = float(np.median(recent)), float(data.values[0])
    if len(data.values) < 2 * RECENT_LEAST:
        return number(float(data.values[-1])), f"it was {number(start)} at step {data.steps[0]:.0f}"
    fell = start - now > np.std(recent) + 0.01 * abs(start)  # by more than the noise
    change = "fell from" if fell else "has not fallen: it began at"
    return f"~{number(now)}", f"{change} {number(start)}"


def _time(run: Readable, name: str) -> Line | None:
    data = curve(run, name)
    if data is None or len(data.steps) < 2:
        return None
    seconds = np.diff(data.values) / np.diff(data.steps)
    whole = data.values[-1] - data.values[0]
    return (
        f"~{number(float(np.median(recent_of(seconds))))} s",
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
            return number(last), _since(data, finite[0])
        step = data.steps[int(np.flatnonzero(data.values == best)[0])]
        return number(last), f"the best was {number(best)} at step {step:.0f}"

    return read


def _since(data: Curve, first: float) -> str:
    """Return what to say of a last value that is the best one."""
    if len(data.values) == 1:
        return "the only value so far"
    if abs(float(data.values[-1]) - first) <= HARDLY * abs(first):
        return f"hardly better than at first: it began at {number(float(first))}"
    return "the best so far"


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


def _wiring(run: Readable, name: str) -> Line | None:
    return "", "facts for the doctor: cockpit doctor RUN"


READERS: dict[str, Reader] = {
    "Loss": _loss,
    "Time": _time,
    "Wiring": _wiring,
    "epoch_count": _epochs,
    "learning_rate": _learning_rate,
    **{f"{part}_accuracy": _best(np.max) for part in ("train", "valid", "test")},
    **{f"{part}_loss": _best(np.min) for part in ("train", "valid", "test")},
}
