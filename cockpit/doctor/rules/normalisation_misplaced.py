"""CP609: normalisation right before the loss."""

from __future__ import annotations

from cockpit.doctor.record import Record
from cockpit.doctor.rule import Rule, Sign
from cockpit.doctor.rules.of_loss import fact


def check(run: Record) -> Sign | None:
    """Look for a normalisation layer whose output is taken for scores."""
    step = fact(run, "after_norm")
    if step is None:
        return None
    last = list(run.curves("Wiring", "norms/layers"))[-1:]
    return Sign(step, tuple(last), {"operation before the loss": "normalisation"}, 0.8)


RULE = Rule(
    code="CP609",
    name="normalisation-misplaced",
    severity="warning",
    title="A normalisation layer lies between the last layer and the loss",
    why="Scores of mean 0 and deviation 1 cannot become sure: how much larger the right one may be is fixed, "
    "and with the statistics of the batch it depends on the other samples.",
    action="Put the normalisation before the last layer, not after it.",
    source="PyTorch documentation of CrossEntropyLoss, which takes unnormalised scores",
    needs=("Wiring",),
    check=check,
)
