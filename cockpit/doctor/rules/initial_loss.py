"""CP305: the training begins with predictions that are worse than guessing."""

from __future__ import annotations

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign

TIMES = 2.0
"""How many times the loss of a blind guess. With scores of zero it is 1, with scores of variance 1 about
1 + 1 / (2 log C), so that 2 is beyond what any usual initialisation gives."""


def check(run: Record) -> Sign | NotKnown | None:
    """Compare the first loss with log C."""
    ratio, classes = run.curve("Wiring", "loss/over_guess"), run.curve("Wiring", "loss/classes")
    if ratio is None or classes is None:
        return NotKnown(
            "the loss is not one cross-entropy alone, so that of a blind guess is not known"
        )
    first = float(ratio.values[0])
    if not first > TIMES:
        return None
    evidence = {"first loss over that of a blind guess": first, "classes": int(classes.values[0])}
    return Sign(int(ratio.steps[0]), (), evidence, 0.8 if first < 2 * TIMES else 0.95)


RULE = Rule(
    code="CP305",
    name="initial-loss",
    severity="warning",
    title="The first loss is far above that of a blind guess",
    why="The model begins with wrong predictions that it is sure of, and spends its first steps on "
    "unlearning them.",
    action="Look at the scale of the inputs and of the last layer's initialisation: scores should begin "
    "near 0. Initialise that layer with smaller weights, and put its bias to 0 or to the log-frequencies.",
    source='Karpathy (2019), "A Recipe for Training Neural Networks": verify the loss at init',
    needs=("Wiring",),
    check=check,
    explains=("learning-rate-too-high", "loss-spikes"),
    instrument="loss",
)
