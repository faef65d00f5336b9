"""Activations, attention, and values that are not finite."""

from __future__ import annotations

import numpy as np

from cockpit.instruments import Readable
from cockpit.instruments.non_finite import first_module
from cockpit.instruments.reading import curve, number, table
from cockpit.summary.reading import Line, Reader, medians, names_of, percent

__all__ = ["READERS"]

DEAD = 0.9
"""From this share of zeros or of saturated values on, a module hardly passes anything on."""

DORMANT = 0.25
"""From this share of dormant units on, a good part of a module's capacity is lost."""

FEW = 0.05
"""Below this share of dormant units, they are few."""

LOGIT_LARGE = 20.0
"""Logits that grow into the tens go before a collapse of the entropy."""


def _activations(run: Readable, name: str) -> Line | None:
    dormant = table(run, name, "dormant")
    if dormant is None:
        return None
    asleep = medians(dormant)
    if not np.isfinite(asleep).any():
        return "NaN", "not finite: the activations have diverged"
    most = float(np.nanmax(asleep))
    value = f"~{percent(most)}"
    for key, what in (("zeros", "zeros"), ("saturated", "saturated values")):
        shares = table(run, name, key)
        full = "" if shares is None else names_of(shares, medians(shares) >= DEAD)
        if full:
            return value, f"dormant units at most; hardly anything but {what} in {full}"
    many = names_of(dormant, asleep >= DORMANT)
    if many:
        return value, f"of the units are dormant at most: capacity is lost in {many}"
    if most == 0:
        return value, "no unit of any module is dormant"
    if most < FEW:
        return value, "of a module's units are dormant at most: few"
    return (
        value,
        f"of the units of {dormant.names[int(np.nanargmax(asleep))]} are dormant, the most of any module",
    )


def _attention(run: Readable, name: str) -> Line | None:
    logits = table(run, name, "largest_logit")
    if logits is None:
        return None
    largest = medians(logits)
    if not np.isfinite(largest).any():
        return number(float(logits.values[0, -1])), "not finite: the attention has diverged"
    value = f"~{number(float(np.nanmax(largest)))}"
    large = names_of(logits, largest >= LOGIT_LARGE)
    if large:
        return value, f"largest logit; that is large, its entropy may collapse: {large}"
    return value, "largest logit of an attention module: moderate"


def _non_finite(run: Readable, name: str) -> Line | None:
    counts = [
        data for kind in ("modules", "gradients") if (data := curve(run, name, kind)) is not None
    ]
    if not counts:
        return None
    hit = np.concatenate([data.steps[data.values > 0] for data in counts])
    if not hit.size:
        return "0", "all outputs and gradients are finite"
    step = float(hit.min())
    module = first_module(run, step)
    where = f"the output of {module}" if module else "gradients only"
    steps = len(np.unique(hit))
    return (
        f"{steps} step{'s' * (steps != 1)}",
        f"with NaN or infinities, first at {step:.0f}: {where}",
    )


READERS: dict[str, Reader] = {
    "ActivationStats": _activations,
    "AttentionStats": _attention,
    "NonFinite": _non_finite,
}
