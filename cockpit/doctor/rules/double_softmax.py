"""CP301: probabilities where scores are expected."""

from __future__ import annotations

from cockpit.doctor.record import Record
from cockpit.doctor.rule import Rule, Sign
from cockpit.doctor.rules.of_course import SYMPTOMS
from cockpit.doctor.rules.of_loss import fact


def check(run: Record) -> Sign | None:
    """Look for a softmax, or a sigmoid, before a loss that has its own."""
    for kind in ("softmax", "sigmoid"):
        step = fact(run, f"after_{kind}")
        if step is not None:
            title = f"The loss takes scores, and gets the output of a {kind}"
            return Sign(step, (), {"operation before the loss": kind}, 0.95, title)
    return None


RULE = Rule(
    code="CP301",
    name="double-softmax",
    severity="error",
    title="The loss takes scores, and gets probabilities",
    why="Cross-entropy applies a softmax, and binary cross-entropy with logits a sigmoid, of its own. What "
    "lies between 0 and 1 cannot become a sure prediction any more, gradients are small, and the loss "
    "cannot fall to 0.",
    action="Give the loss what comes before the softmax or sigmoid; apply that only to show probabilities.",
    source="PyTorch documentation of CrossEntropyLoss and BCEWithLogitsLoss",
    needs=("Wiring",),
    check=check,
    explains=(*SYMPTOMS, "vanishing-gradients"),
)
