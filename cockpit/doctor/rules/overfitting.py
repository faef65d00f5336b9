"""CP110: the training loss falls, and the validation loss rises."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Curve, Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import at, recent

RISE = 1.1
"""Validation loss over its lowest value, twice in a row, and rising: that of a model with batch normalisation may jump
while its running statistics are young."""

GAP = 0.3
"""Training loss over the lowest validation loss: what the model knows of its training samples alone. At large steps the
running statistics of batch normalisation lag behind, and the validation loss rises for that reason: at 0.4 or more."""

STEADY, STEADY_GAP = 4, 0.8
"""Times in a row that the validation loss has risen, each time above its lowest value, and the gap that is enough then:
running statistics that lag go up and down."""

HEART, FLAT = 0.05, 0.97
"""Training loss over the lowest validation loss of a model that knows its samples by heart, and validation loss over
what it was `STEADY` times before: it gains nothing any more from what it learns. It may not lose by it either, which
makes this a note."""

FALLEN = 0.8
"""Training loss over what it was when the validation loss was lowest: the training goes on learning."""

WINDOW = 5
"""Tracked batches in the middle of which the training loss is taken."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for a validation loss that has turned, while the training loss has not."""
    valid, loss = run.curve("valid_loss"), run.curve("Targets", "loss") or run.curve("Loss")
    if valid is None or len(valid.steps) < 3:
        return NotKnown(
            "it takes three validation losses: watch.log(step, valid_loss=...) at some steps"
        )
    if loss is None or len(loss.steps) < WINDOW:
        return NotKnown(f"it takes the losses of {WINDOW} batches; track configuration('health')")
    level = recent(loss.values, WINDOW)
    train = at(Curve(loss.steps, np.where(np.isfinite(level), level, np.inf)), valid.steps)
    finite = np.where(np.isfinite(valid.values), valid.values, np.inf)
    noted = None
    for place in range(2, len(finite)):
        best, (before, at_place) = (
            int(np.argmin(finite[: place + 1])),
            finite[place - 1 : place + 1],
        )
        risen = RISE * finite[best] < before <= at_place < np.inf
        now = float(train[place])
        last = finite[max(place - STEADY, 0) : place + 1]
        rises = len(last) > STEADY and place - STEADY >= best and bool((np.diff(last) > 0).all())
        gap = STEADY_GAP if rises else GAP
        learns = now < gap * finite[best] and now < FALLEN * train[best]
        by_heart = len(last) > STEADY and now < HEART * finite[best] and last.min() > FLAT * last[0]
        if not ((risen and learns) or by_heart):
            continue
        evidence = {
            "validation loss": float(valid.values[place]),
            "its lowest value": float(valid.values[best]),
            "at step": int(valid.steps[best]),
            "training loss": now,
        }
        if risen and learns:
            return Sign(int(valid.steps[place]), (), evidence, 0.85)
        title = "The model has learned its training samples by heart"
        noted = noted or Sign(int(valid.steps[place]), (), evidence, 0.6, title, severity="note")
    return noted


RULE = Rule(
    code="CP110",
    name="overfitting",
    severity="warning",
    title="The model overfits: the validation loss rises while the training loss falls",
    why="It learns the training samples by heart. What it learns from here on makes it worse on new ones.",
    action="Keep the parameters of the step with the lowest validation loss. More data, augmentation, dropout, weight "
    "decay or a smaller model help; train for fewer epochs.",
    source="Prechelt (1998), Early Stopping: but when?",
    needs=("Loss",),
    check=check,
    instrument="loss",
)
