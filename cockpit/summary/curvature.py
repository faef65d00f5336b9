"""Curvature of the loss."""

from __future__ import annotations

import numpy as np

from cockpit.instruments import Readable
from cockpit.instruments.reading import before, curve, number, table
from cockpit.summary.reading import RECENT_LEAST, Line, Reader, medians, recent_of

__all__ = ["READERS"]

RATIO_LARGE = 1000.0
"""From this ratio of traces on, single parameters limit the learning rate."""

GROWTH = 1.5
"""From this ratio to the value half the steps ago on, a criterion has grown by more than noise."""


def _sharpness(run: Readable, name: str) -> Line | None:
    data = curve(run, name)
    if data is None:
        return None
    now = float(data.values[-1])
    if not np.isfinite(now):
        return number(now), "not finite: the training has diverged"
    if now <= 0:
        return number(now), "largest eigenvalue of the Hessian: no direction curves upwards"
    rate = curve(run, "learning_rate")
    eta = float(before(rate, data.steps)[-1]) if rate is not None else 0.0
    if eta <= 0:
        return number(now), "largest eigenvalue of the Hessian; plain SGD is stable below 2/η"
    side = "above: plain SGD is unstable here" if now > 2 / eta else "below: plain SGD is stable"
    return number(now), f"largest eigenvalue of the Hessian; 2/η is {number(2 / eta)}, it is {side}"


def _trace(run: Readable, name: str) -> Line | None:
    data = table(run, name)
    if data is None:
        return None
    sizes = medians(data)
    known = np.isfinite(sizes)
    if not known.any():
        return number(float(data.values[0, -1])), "not finite: the training has diverged"
    value = f"~{number(float(sizes[known].sum()))}"
    high, middle = int(np.nanargmax(sizes)), float(np.median(sizes[known]))
    top = f"the largest part, {number(float(sizes[high]))}, is that of {data.names[high]}"
    if middle > 0 and sizes[high] > RATIO_LARGE * middle:
        return value, f"{top}: it limits the learning rate"
    return value, top


def _information(run: Readable, name: str) -> Line | None:
    data = curve(run, name)
    recent = np.zeros(0) if data is None else recent_of(data.values)
    if data is None or not recent.size:
        return None
    now = float(np.median(recent))
    if len(data.values) < 2 * RECENT_LEAST:
        return f"~{number(now)}", "gap between training and test loss, up to a factor"
    half = recent_of(data.values[: len(data.values) // 2])
    middle = float(np.median(half)) if half.size else np.nan
    grown = "growing: a sign of overfitting" if now > GROWTH * middle else "not growing"
    return f"~{number(now)}", f"gap to the test loss, up to a factor, {grown}"


READERS: dict[str, Reader] = {
    "HessMaxEV": _sharpness,
    "HessTrace": _trace,
    "TICDiag": _information,
    "TICTrace": _information,
}
