"""CP206: every gradient is added to those before it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cockpit.doctor.record import Curve, Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.no_update import moved, update_curves
from cockpit.doctor.rules.of_course import SYMPTOMS

LEAST = 3
"""Steps that begin with a gradient although the parameters were updated, where no two steps in a row were tracked."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for steps whose gradient is added to an earlier one, though that has been used.

    One is enough where the update right before is known. Where micro-batches are accumulated, and the cockpit
    was not told so, either the first step begins with a gradient, or some steps without one, or not every step
    is followed by an update.
    """
    listed = run.curves("Wiring", "optimizers")
    # Of what no optimizer has, nobody zeroes the gradient, and nobody uses it.
    added = {
        name: curve
        for name, curve in run.curves("Wiring", "added_to").items()
        if name not in listed or (listed[name].values > 0).any()
    }
    if not added:
        return NotKnown("the gradients before the backward pass were not seen")
    if not any(curve.values.any() for curve in added.values()):
        return None  # as in every healthy run, which this should cost next to nothing
    steps = np.unique(np.concatenate([curve.steps for curve in added.values()]))
    total = np.zeros(len(steps))
    for curve in added.values():
        total[np.searchsorted(steps, curve.steps)] += np.nan_to_num(curve.values, nan=1.0)
    if total[0] > 0:
        return None
    updates = update_curves(run)
    if not updates:
        return NotKnown("no update was observed; track UpdateRatio or UpdateSize")
    place = _used(steps, added, updates)
    if place is None:
        place = _always(steps, total, updates)
    if place is None:
        return None
    largest = max(added, key=lambda name: float(np.nan_to_num(added[name].values[-1])))
    evidence = {
        "steps that began with a gradient": int((total > 0).sum()),
        "of": len(total),
        "its norm in the largest parameter": [float(v) for v in added[largest].values[:5]],
    }
    return Sign(int(steps[place]), (), evidence, 0.98)


def _used(
    steps: np.ndarray, added: Mapping[str, Curve], updates: Mapping[str, Curve]
) -> int | None:
    """Return the first place at which a parameter begins with a gradient that has just moved it."""
    found = [
        now
        for name, curve in added.items()
        if name in updates
        for now in curve.steps[curve.values > 0].tolist()
        if now - 1 in updates[name].steps[moved(updates[name])]
    ]
    return int(np.searchsorted(steps, min(found))) if found else None


def _always(steps: np.ndarray, total: np.ndarray, updates: Mapping[str, Curve]) -> int | None:
    """Return the place at which so many steps in a row, from the second one on, have begun with a gradient."""
    if len(total) <= LEAST or (total[1 : LEAST + 1] == 0).any():
        return None
    seen = [curve for curve in updates.values() if len(curve.steps)]
    known = {step for c in seen for step in c.steps[np.isfinite(c.values)].tolist()}
    known &= set(steps[:LEAST].tolist())
    updated = {step for curve in seen for step in curve.steps[moved(curve)].tolist()}
    return LEAST if known and known <= updated else None


RULE = Rule(
    code="CP206",
    name="gradients-not-zeroed",
    severity="error",
    title="Gradients are added to those of earlier steps",
    why="The optimizer gets the sum of all gradients since the beginning: old ones push in directions "
    "that no longer fit, and steps grow.",
    action="Call optimizer.zero_grad() before every backward pass. If gradients are accumulated on "
    "purpose, say so: micro_batch=(k, K).",
    source="definition: autograd adds to a gradient that is there",
    needs=("Wiring",),
    check=check,
    least=2,
    explains=(
        *SYMPTOMS,
        "non-finite",
        "dead-units",
        "saturated-activations",
    ),
    instrument="grad-norm",
)
