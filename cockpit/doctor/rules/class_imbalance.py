"""CP310: a few classes are most of the data."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import aligned, first

VARIETY = 0.5
"""Entropy of the targets over that of equally frequent classes. Two classes of 9 to 1 are at 0.47, ten of which one
has nine tenths at 0.2; the characters of a text, which are unequal by nature, at 0.7."""

SEEN = 200
"""Targets that have to be seen."""


def check(run: Record) -> Sign | NotKnown | None:
    """Compare the entropy of the targets with its maximum."""
    entropy, seen = run.curve("Targets", "entropy"), run.curve("Targets", "seen")
    classes, most = run.curve("Targets", "classes"), run.curve("Targets", "most")
    if entropy is None or seen is None or classes is None or most is None:
        return NotKnown("no classes were seen that the loss compares with probabilities")
    steps, (own, count, number, share) = aligned(entropy, seen, classes, most)
    if not len(steps) or count[-1] < SEEN:
        return NotKnown(f"it takes {SEEN} targets")
    variety = own / np.log(number)
    place = first((variety < VARIETY) & (count >= SEEN))
    if place is None:
        return None
    evidence = {
        "share of the most frequent class": float(share[place]),
        "classes": int(number[place]),
        "variety of the targets, 1 for equal shares": float(variety[place]),
    }
    return Sign(int(steps[place]), (), evidence, 0.8)


RULE = Rule(
    code="CP310",
    name="class-imbalance",
    severity="warning",
    title="The classes are very unequal",
    why="The loss is mostly that of the frequent classes: the model may ignore the others, and loss and "
    "accuracy look good all the same.",
    action="Look at the accuracy by class. Weight the loss with the inverse frequencies, or draw the samples of rare "
    "classes more often. Where the frequencies are what the model will meet, leave them.",
    source="Buda, Maki & Mazurowski (2018), arXiv:1710.05381",
    needs=("Targets",),
    check=check,
    explains=(
        "learning-rate-too-high",
        "overfitting",
        "batch-too-small",
        "loss-spikes",
        "labels-partly-wrong",
    ),
)
