"""CP204: parameters that no optimizer has."""

from __future__ import annotations

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.no_update import moved, update_curves
from cockpit.doctor.rules.of_course import SYMPTOMS


def check(run: Record) -> Sign | NotKnown | None:
    """Look for parameters that are in no known optimizer and do not change."""
    listed = run.curves("Wiring", "optimizers")
    if not listed:
        return NotKnown(
            "no optimizer is known; give it to the cockpit, Cockpit(..., optimizer=opt)"
        )
    missing = {name: curve for name, curve in listed.items() if (curve.values == 0).all()}
    updates = update_curves(run)
    # An optimizer that the cockpit does not know may have them.
    still = [n for n in missing if n not in updates or not moved(updates[n]).any()]
    if not still:
        return None
    if len(missing) == len(listed):
        title = "The optimizer has none of the model's parameters"
    else:
        title = "The optimizer does not have these parameters"
    evidence = {"parameters that no optimizer has": len(still), "of": len(listed)}
    step = min(int(missing[name].steps[0]) for name in still)
    return Sign(step, tuple(still), evidence, 0.95, title)


RULE = Rule(
    code="CP204",
    name="not-in-optimizer",
    severity="error",
    title="Parameters are in no optimizer",
    why="They require a gradient, and nobody will ever change them.",
    action="Make the optimizer after all layers have been made, of the parameters of this very model: "
    "optimizer(model.parameters()). If another optimizer has them, give the cockpit both.",
    source="definition: the parameter groups of the known optimizers do not list them",
    needs=("Wiring",),
    check=check,
    explains=(*SYMPTOMS, "no-update", "lost-updates"),
    spreads=True,
)
