"""CP106: the noise of small batches hides what there is to learn."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import first, recent

FEW = 8
"""Targets in a batch, beyond which it is no small one, whatever else makes its loss uneven."""

WINDOW = 8
"""Changes of the loss from one tracked batch to the next, of which the one in the middle counts."""

FIRST = 5
"""Batches from whose losses the one in the middle is what the training began with."""

NOISE = 0.2
"""Standard deviation of a batch's loss in units of what it began with. At batches of 32 and more it is below 0.14."""

NORMAL = 0.954
"""Median of the absolute difference of two normal values, in units of their standard deviation."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look at how far the losses of neighbouring batches are apart."""
    loss, seen = run.curve("Loss"), run.curve("Targets", "seen")
    if loss is None or seen is None:
        return NotKnown("the targets were not seen; track configuration('health')")
    size = float(seen.values[0])
    if size > FEW:
        return None
    if len(loss.steps) <= WINDOW:
        return NotKnown(f"it takes {WINDOW + 1} tracked batches, and there are {len(loss.steps)}")
    start = float(np.median(loss.values[:FIRST]))  # that of a blind guess, or nearly
    noise = recent(np.abs(np.diff(loss.values)), WINDOW) / (NORMAL * start)
    place = first(noise > NOISE)
    if place is None:
        return None
    evidence = {
        "standard deviation of a batch's loss, over what it was at first": float(noise[place]),
        "targets in a batch": int(size),
    }
    return Sign(int(loss.steps[place + 1]), (), evidence, 0.8)


RULE = Rule(
    code="CP106",
    name="batch-too-small",
    severity="warning",
    title="The batches are too small: noise dominates",
    why="The loss of a batch says little about that of the data, and neither does its gradient: most of every step "
    "is undone by others, and only small learning rates are stable.",
    action="Use larger batches, or accumulate several: micro_batch=(k, K). Otherwise divide the learning rate by what "
    "the batch is smaller than usual ones.",
    source="McCandlish, Kaplan, Amodei et al. (2018), arXiv:1812.06162",
    needs=("Targets",),
    check=check,
    least=WINDOW + 1,
    explains=(
        "learning-rate-too-high",
        "loss-spikes",
        "labels-partly-wrong",
        "dead-units",
        "underfitting",
        "overfitting",
    ),
    instrument="loss",
)
