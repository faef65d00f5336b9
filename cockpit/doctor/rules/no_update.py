"""CP201: nothing changes, although there is a gradient."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Curve, Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import SYMPTOMS, relative_updates

LEAST = 5
"""Tracked steps without an update. Fewer may be micro-batches that the cockpit was not told of."""

LOST = 1e-5
"""Relative size of updates, below which they may not show in a norm of 32 bits."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for a model of which no parameter has ever changed."""
    updates = update_curves(run)
    if not updates:
        return NotKnown("no update was observed; track UpdateRatio or UpdateSize")
    gradients = run.curves("GradNorm")
    if not any((curve.values > 0).any() for curve in gradients.values()):
        return None  # another fault: nothing to update with
    longest = max(updates.values(), key=lambda curve: len(curve.steps))
    if any(moved(curve).any() for curve in updates.values()):
        return _undone(run)
    if len(longest.steps) < LEAST:
        return None
    norms = [float(np.nanmax(curve.values)) for curve in gradients.values()]
    evidence = {"steps without an update": len(longest.steps), "largest gradient norm": max(norms)}
    return Sign(int(longest.steps[LEAST - 1]), (), evidence, 0.95)


def _undone(run: Record) -> Sign | None:
    """Look for updates that are taken back: the parameters begin every step as they began the first one."""
    norm, updates = run.curve("Wiring", "norm"), relative_updates(run)
    if norm is None or updates is None or len(norm.steps) < LEAST:
        return None
    if any("16" in one.dtype or "8" in one.dtype for one in run.parameters):
        return None  # updates may be lost by themselves
    same = (norm.values[:LEAST] == norm.values[0]).all() and norm.values[0] > 0
    size = updates.values[updates.steps <= norm.steps[LEAST - 1]]
    # So many updates would have shown in the last digit of the norm.
    if not same or not len(size) or float(np.median(size)) < LOST:
        return None
    evidence = {
        "tracked steps that began with the same parameters": int(
            (norm.values == norm.values[0]).sum()
        ),
        "relative size of an update": float(np.median(size)),
    }
    title = "Every update is undone before the next step"
    return Sign(int(norm.steps[LEAST - 1]), (), evidence, 0.9, title)


def update_curves(run: Record) -> dict[str, Curve]:
    """Return the sizes of the updates by parameter, relative or not: what counts is whether they are 0."""
    return run.curves("UpdateSize") or run.curves("UpdateRatio")


def moved(curve: Curve) -> np.ndarray:
    """Return at which steps a parameter changed, `[n]`; a ratio of 0/0, NaN, is no change."""
    changed: np.ndarray = curve.values > 0
    return changed


RULE = Rule(
    code="CP201",
    name="no-update",
    severity="error",
    title="No parameter changes",
    why="There is a gradient, and the parameters stay what they were: nothing is learned.",
    action="Call optimizer.step() after the backward pass, on the optimizer that has the parameters of "
    "this model. If the batch comes in several backward passes, say so: micro_batch=(k, K). Where updates are made "
    "and undone, look for what loads or copies parameters within the loop.",
    source="definition: the parameters before and after the step are equal",
    needs=("GradNorm",),
    check=check,
    least=LEAST,
    explains=SYMPTOMS,
    instrument="update-ratio-layers",
)
