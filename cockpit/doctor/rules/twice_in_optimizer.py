"""CP205: parameters that are listed more than once."""

from __future__ import annotations

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import SYMPTOMS


def check(run: Record) -> Sign | NotKnown | None:
    """Look for parameters that optimizers list twice."""
    listed = run.curves("Wiring", "optimizers")
    if not listed:
        return NotKnown(
            "no optimizer is known; give it to the cockpit, Cockpit(..., optimizer=opt)"
        )
    twice = {name: curve for name, curve in listed.items() if (curve.values > 1).any()}
    if not twice:
        return None
    step = min(int(curve.steps[curve.values > 1][0]) for curve in twice.values())
    times = max(int(curve.values.max()) for curve in twice.values())
    return Sign(step, tuple(twice), {"listed at most": times, "parameters": len(twice)}, 0.9)


RULE = Rule(
    code="CP205",
    name="twice-in-optimizer",
    severity="error",
    title="Parameters are in the optimizer more than once",
    why="Each step updates them as often as they are listed, with a step size that nobody chose.",
    action="List every parameter once: in one optimizer, and in one of its groups.",
    source="definition: the parameter groups of the known optimizers list them more than once",
    needs=("Wiring",),
    check=check,
    explains=(*SYMPTOMS, "non-finite", "dead-units"),
    spreads=True,
)
