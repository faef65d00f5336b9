"""CP305: the training begins with predictions that are worse than guessing."""

from __future__ import annotations

import math

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign

TIMES, ABOVE = 2.0, 1.5
"""How many times the loss of a blind guess, or by how much above it. With scores of variance v it is above by v / 2 or
less: 0.2 for PyTorch's own initialisation, 0.5 and 1 for those that keep signals at a variance of 1 and 2."""


def check(run: Record) -> Sign | NotKnown | None:
    """Compare the first loss with log C."""
    ratio, classes = run.curve("Wiring", "loss/over_guess"), run.curve("Wiring", "loss/classes")
    if ratio is None or classes is None:
        return NotKnown(
            "the loss is not one cross-entropy alone, so that of a blind guess is not known"
        )
    first = float(ratio.values[0])
    count = int(classes.values[0])
    if not (first > TIMES or (first - 1) * math.log(max(count, 2)) > ABOVE):
        return None
    evidence = {"first loss over that of a blind guess": first, "classes": count}
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
