"""CP303: scores that cannot take all values."""

from __future__ import annotations

from cockpit.doctor.record import Record
from cockpit.doctor.rule import Rule, Sign
from cockpit.doctor.rules.of_course import SYMPTOMS
from cockpit.doctor.rules.of_loss import fact


def check(run: Record) -> Sign | None:
    """Look for an activation between the last layer and the loss."""
    for kind in ("tanh", "relu"):
        step = fact(run, f"after_{kind}")
        if step is not None:
            return Sign(step, (), {"operation before the loss": kind}, 0.8)
    return None


RULE = Rule(
    code="CP303",
    name="squashed-scores",
    severity="warning",
    title="An activation lies between the last layer and the loss",
    why="Scores of classes are meant to take all values. ReLU cuts off those below 0, and their gradient "
    "with them; tanh keeps all between -1 and 1, so that no prediction can become sure.",
    action="Leave out the activation after the last layer.",
    source="PyTorch documentation of CrossEntropyLoss, which takes unnormalised scores",
    needs=("Wiring",),
    check=check,
    explains=(*SYMPTOMS, "initial-loss"),
)
