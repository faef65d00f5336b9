"""Curvature of the loss."""

from __future__ import annotations

import numpy as np

from cockpit.instruments import Readable
from cockpit.instruments.curvature import matrix_of, stability_bound
from cockpit.instruments.reading import curve, number, table
from cockpit.summary.reading import RECENT_LEAST, Line, Reader, medians, percent, recent_of

__all__ = ["READERS"]

RATIO_LARGE = 1000.0
"""From this ratio of traces on, single parameters limit the learning rate."""

GROWTH = 1.5
"""From this ratio to the value half the steps ago on, a criterion has grown by more than noise."""

AVOIDED = 0.1
"""Below this share of the curvature along the gradient, that along the update is low."""

EDGE = (0.9, 1.5)
"""Between these shares of the bound, training is at the edge of stability."""


def _sharpness(run: Readable, name: str) -> Line | None:
    data = curve(run, name)
    if data is None:
        return None
    now = float(data.values[-1])
    if not np.isfinite(now):
        return number(now), "not finite: the training has diverged"
    of = f"largest eigenvalue of the {matrix_of(run, name)}"
    if now <= 0:
        return number(now), f"{of}: no direction curves upwards"
    bounds = stability_bound(run, data.steps)
    if not bounds:
        return number(now), of if _rate_is_known(run) else f"{of}; plain SGD is stable below 2/η"
    bound, label = float(bounds[0].y[-1]), bounds[0].label
    if not np.isfinite(bound):  # the learning rate is zero
        return number(now), of
    side = "above: training is unstable here" if now > bound else "below: training is stable"
    return number(now), f"{of}; {label} is {number(bound)}, it is {side}"


def _rate_is_known(run: Readable) -> bool:
    return curve(run, "learning_rate") is not None


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
    of = f"trace of the {matrix_of(run, name)}; "
    top = f"{of}the largest part, {number(float(sizes[high]))}, is that of {data.names[high]}"
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


def _spectrum(run: Readable, name: str) -> Line | None:
    smallest, largest = curve(run, name, "smallest"), curve(run, name, "largest")
    if smallest is None or largest is None:
        return None
    low, high = float(smallest.values[-1]), float(largest.values[-1])
    if not np.isfinite(low + high):
        return number(high), "not finite: the training has diverged"
    value = f"{number(low)} to {number(high)}"
    matrix = matrix_of(run, name)
    if low >= 0 or matrix == "GGN":
        return value, f"eigenvalues of the {matrix}: no direction curves downwards"
    if -low > high:
        return (
            value,
            f"eigenvalues of the {matrix}: the sharpest direction curves downwards, far from a minimum",
        )
    return (
        value,
        f"eigenvalues of the {matrix}: the negative ones reach {percent(-low / high)} of the largest",
    )


def _factors(run: Readable, name: str) -> Line | None:
    data = table(run, name, "largest")
    if data is None:
        return None
    sizes = medians(data)
    if not np.isfinite(sizes).any():
        return number(float(data.values[0, -1])), "not finite: the training has diverged"
    top = int(np.nanargmax(sizes))
    return f"~{number(float(sizes[top]))}", f"the largest eigenvalue, that of {data.names[top]}"


def _directions(run: Readable, name: str) -> Line | None:
    gradient, update = curve(run, name, "gradient"), curve(run, name, "update")
    along = np.zeros(0) if gradient is None else recent_of(gradient.values)
    if gradient is None:
        return None
    if not along.size:
        return number(float(gradient.values[-1])), "not finite, or no gradient at all"
    now = float(np.median(along))
    meaning = "along the gradient"
    ways = np.zeros(0) if update is None else recent_of(update.values)
    if ways.size:
        way = float(np.median(ways))
        meaning += f"; {number(way)} along the update"
        if way < AVOIDED * now:
            meaning += ", which avoids the sharp directions"
    return f"~{number(now)}", meaning


def _preconditioned(run: Readable, name: str) -> Line | None:
    sharpness, bound = curve(run, name, "sharpness"), curve(run, name, "bound")
    if sharpness is None or bound is None:
        return None
    return _against(float(sharpness.values[-1]), float(bound.values[-1]), "the optimizer's bound")


def _critical(run: Readable, name: str) -> Line | None:
    sharpness, bound = curve(run, name), curve(run, name, "bound")
    if sharpness is None or bound is None:
        return None
    return _against(float(sharpness.values[-1]), float(bound.values[-1]), "2/η")


def _against(now: float, bound: float, name: str) -> Line:
    if not np.isfinite(now):
        return number(now), "not finite: the training has diverged"
    share = f"{percent(max(now, 0.0) / bound)} of {name}, {number(bound)}"
    if now > EDGE[1] * bound:
        return number(now), f"{share}: beyond the edge of stability, the loss is about to grow"
    if now > EDGE[0] * bound:
        return number(now), f"{share}: at the edge of stability"
    return number(now), f"{share}: stable"


READERS: dict[str, Reader] = {
    "HessianSpectrum": _spectrum,
    "KroneckerSpectrum": _factors,
    "DirectionalCurvature": _directions,
    "PreconditionedSharpness": _preconditioned,
    "CriticalSharpness": _critical,
    "HessMaxEV": _sharpness,
    "HessTrace": _trace,
    "TICDiag": _information,
    "TICTrace": _information,
}
