"""CP304: a cross-entropy over one class."""

from __future__ import annotations

from cockpit.doctor.record import Record
from cockpit.doctor.rule import Rule, Sign
from cockpit.doctor.rules.of_course import SYMPTOMS


def check(run: Record) -> Sign | None:
    """Look for a softmax over a single score."""
    classes = run.curve("Wiring", "loss/classes")
    if classes is None or not (classes.values == 1).any():
        return None
    return Sign(int(classes.steps[classes.values == 1][0]), (), {"classes": 1}, 1.0)


RULE = Rule(
    code="CP304",
    name="single-class",
    severity="error",
    title="The cross-entropy is over a single class",
    why="The softmax of one score is 1 whatever the score: the loss is constant, and all gradients are 0.",
    action="For two classes with one output, use binary_cross_entropy_with_logits. Otherwise look at the "
    "dimension in which the classes lie: the second one, [N, C, ...].",
    source="definition of the softmax",
    needs=("Wiring",),
    check=check,
    explains=(*SYMPTOMS, "no-update", "no-gradient"),
)
