"""CP207: a learning rate of zero, at the beginning or from some step on."""

from __future__ import annotations

import math

from cockpit.doctor.record import Curve, Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import SYMPTOMS
from cockpit.doctor.rules.of_layers import held

LEAST = 3
"""Tracked steps with a learning rate of 0 at the beginning. A warm-up may begin with one."""

OVER, SHARE = 5, 0.2
"""Tracked steps with a learning rate of 0 after others, and their share of all so far: the schedule was over too
early by as much."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for parameters whose learning rate begins with 0 for some steps, or ends with it."""
    rates = {n: c for n, c in run.curves("Wiring", "learning_rate").items() if len(c.steps)}
    if not rates:
        return NotKnown(
            "no optimizer is known; give it to the cockpit, Cockpit(..., optimizer=opt)"
        )
    zero = {
        n: c for n, c in rates.items() if len(c.steps) >= LEAST and (c.values[:LEAST] == 0).all()
    }
    if not zero:
        return _over(rates)
    step = max(int(curve.steps[LEAST - 1]) for curve in zero.values())
    everywhere = len(zero) == len(rates)
    evidence = {"parameters with a learning rate of 0": len(zero), "of": len(rates)}
    later = [int(c.steps[c.values > 0][0]) for c in zero.values() if (c.values > 0).any()]
    title = None
    if later:
        evidence["first step with another one"] = min(later)
        title = "The learning rate is 0 for the first steps"
    names = () if everywhere else tuple(zero)
    return Sign(step, names, evidence, 0.95 if everywhere else 0.7, title)


def _over(rates: dict[str, Curve]) -> Sign | None:
    """Look for a schedule that has ended at 0, while the training goes on."""
    found = {}
    for name, curve in rates.items():
        place = held(curve.values == 0, OVER)
        if place is None:
            continue
        since = place - OVER + 1
        above = curve.steps[:since][curve.values[:since] > 0]
        if not len(above):
            continue
        late = max(place, math.ceil(since / (1 - SHARE)) - 1)
        if late < len(curve.steps):
            found[name] = int(curve.steps[late]), int(above[-1])
    if 2 * len(found) < len(rates):
        return None
    step, last = max(found.values())
    title = "The learning rate has become 0, and the training goes on"
    return Sign(step, (), {"last step with another one": last}, 0.95, title)


RULE = Rule(
    code="CP207",
    name="learning-rate-zero",
    severity="error",
    title="The learning rate is 0",
    why="The optimizer steps, and nothing moves.",
    action="Look at the schedule: a warm-up that starts at 0 and is stepped once an epoch instead of once "
    "a step, an integer division, or a decay that is over before the training begins.",
    source="definition: an update is the learning rate times a direction",
    needs=("Wiring",),
    check=check,
    least=LEAST,
    explains=(*SYMPTOMS, "no-update", "lost-updates", "overfitting"),
    instrument="learning-rate",
)
