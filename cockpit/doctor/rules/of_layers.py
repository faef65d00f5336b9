"""What rules about layers have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from math import prod
from typing import NamedTuple

import numpy as np

from cockpit.doctor.record import Curve, Record
from cockpit.doctor.rules.of_course import SYMPTOMS, at

LEAST = 5
"""Tracked steps in a row at which something has to hold: a step or two in which a layer of zeros begins to move,
or a batch of its own kind, are no fault."""

SAMPLES = 16
"""A unit of a healthy network is active on at least a tenth of them or so, and so on one of these."""


NOTHING_IS_LEARNED = tuple(name for name in SYMPTOMS if name != "learning-rate-too-high")
"""Rules that see from outside what it looks like when layers do not learn. A learning rate that is too high is none
of them: it is what kills and saturates units, rather than the reverse."""


class Table(NamedTuple):
    """Numbers of several layers at the same steps.

    Args:
        steps: The steps, `[n]`.
        names: The layers, in the order in which they are called.
        values: The numbers, `[layers, n]`.
    """

    steps: np.ndarray
    names: tuple[str, ...]
    values: np.ndarray


def at_first(curves: Mapping[str, Curve]) -> dict[str, float]:
    """Return the first value of each layer; of a module that is called several times, that of its first call."""
    return {name: float(curve.values[0]) for name, curve in curves.items() if "#" not in name}


def layer_of(run: Record, module: str) -> str | None:
    """Return the last layer with weights up to a module."""
    with_weights = {
        one.name.removesuffix(".weight") for one in run.parameters if one.name.endswith(".weight")
    }
    layer = None
    for name in run.curves("ActivationStats", "rms"):
        layer = name if name in with_weights else layer
        if name == module:
            return layer
    return None


def units_of(run: Record, module: str) -> int | None:
    """Return how many units there are in the output of a module: those of the last layer with weights before it."""
    layer = layer_of(run, module)
    shapes = {one.name: one.shape for one in run.parameters}
    return None if layer is None else (shapes.get(f"{layer}.weight") or (None,))[0]


FEW = "with fewer than 16 samples in a batch, many units happen to be silent on all of them"


def few_samples(run: Record) -> bool:
    """Whether the batches are too small to tell units that are silent from those that happen to be."""
    sizes = run.curve("Wiring", "batch_size")
    return sizes is not None and bool(0 < sizes.values[0] < SAMPLES)  # 0: not known


def error_signals(run: Record) -> Table | None:
    r"""Return the size of the signal that comes back to each layer, at every step.

    It is :math:`\lVert \partial L / \partial W \rVert_F / (\mathrm{rms}(x) \sqrt{inputs})`, what is left of a
    layer's gradient without the size of its input x: about the norm of the gradient with respect to its
    output. None where it is not known of two layers.
    """
    shapes = {one.name: one.shape for one in run.parameters}
    gradients, sizes = run.curves("GradNorm"), run.curves("Wiring", "layers/input")
    found = {}
    for layer, size in sizes.items():
        weight = f"{layer}.weight"
        if weight in gradients and weight in shapes and "#" not in layer:
            found[layer] = gradients[weight], size, prod(shapes[weight][1:]) ** 0.5
    if len(found) < 2:
        return None
    steps = reduce(np.intersect1d, [gradient.steps for gradient, _, _ in found.values()])
    rows = [
        _above_zero(at(gradient, steps)) / (_above_zero(at(size, steps)) * width)
        for gradient, size, width in found.values()
    ]
    return Table(steps, tuple(found), np.array(rows))


def from_the_start(holds: np.ndarray) -> np.ndarray:
    """Return up to which step something has held at every one, `[n]`."""
    so_far: np.ndarray = np.logical_and.accumulate(holds)
    return so_far


def _above_zero(values: np.ndarray) -> np.ndarray:
    """Return the values; zeros, which nothing can be compared with, become NaN."""
    return np.where(values > 0, values, np.nan)


def held(holds: np.ndarray, least: int = LEAST) -> int | None:
    """Return the first place at which something has held so many times in a row; None where it never has."""
    run = 0
    for place, one in enumerate(holds):
        run = run + 1 if one else 0
        if run == least:
            return place
    return None


def lasting(
    curves: Mapping[str, Curve], holds: Callable[[np.ndarray], np.ndarray], least: int = LEAST
) -> tuple[int, dict[str, int]] | None:
    """Return the first step at which something has lasted in a layer, and the places at which it had in each.

    Args:
        curves: Numbers by layer.
        holds: What is looked for, from the values `[n]` to Booleans.
        least: Values in a row.
    """
    found = {name: held(holds(curve.values), least) for name, curve in curves.items()}
    places = {name: place for name, place in found.items() if place is not None}
    if not places:
        return None
    step = min(int(curves[name].steps[place]) for name, place in places.items())
    return step, places
