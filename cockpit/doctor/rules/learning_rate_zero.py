"""CP207: a learning rate of zero."""

from __future__ import annotations

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import SYMPTOMS

LEAST = 3
"""Steps with a learning rate of 0. A warm-up may begin with one, and a schedule end with one."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for parameters whose learning rate has never been anything but 0."""
    rates = {n: c for n, c in run.curves("Wiring", "learning_rate").items() if len(c.steps)}
    if not rates:
        return NotKnown(
            "no optimizer is known; give it to the cockpit, Cockpit(..., optimizer=opt)"
        )
    zero = {n: c for n, c in rates.items() if len(c.steps) >= LEAST and (c.values == 0).all()}
    if not zero:
        return None
    step = max(int(curve.steps[LEAST - 1]) for curve in zero.values())
    everywhere = len(zero) == len(rates)
    evidence = {"parameters with a learning rate of 0": len(zero), "of": len(rates)}
    return Sign(step, () if everywhere else tuple(zero), evidence, 0.95 if everywhere else 0.7)


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
    explains=(*SYMPTOMS, "no-update", "lost-updates"),
    instrument="learning-rate",
)
