"""CP109: a training that has stopped, though there is something to learn."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Curve, Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import (
    at,
    learning_rate,
    recent,
    relative_loss,
    relative_updates,
)

WINDOW = 3
"""Tracked steps in the middle of which updates are compared."""

REST = 1 / 200
"""Of the largest updates. Schedules that divide the learning rate by 10 twice stay above it; at the end of one that
goes to zero it is a moment."""

SLOW, HIGH = 1 / 40, 0.5
"""The same where the loss is still above so much of a blind guess: nobody has meant to stop there. A cosine is below it
for a tenth of the training, a line for a fortieth."""

SLOPE = 0.25
"""Of the gradient that there was when updates were large: it is still there, and nothing follows it."""

LEAST = 5
"""Tracked steps of rest, and at least half as many as it took to get there."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for updates that have become tiny, though the gradient has not."""
    updates, gradients = relative_updates(run), run.curves("GradNorm")
    if updates is None:
        return NotKnown("no update was seen; track configuration('health')")
    size = recent(updates.values, WINDOW)
    most = np.fmax.accumulate(np.where(np.isfinite(size), size, 0.0))
    squares = [np.square(at(curve, updates.steps)) for curve in gradients.values()]
    norm = recent(np.sqrt(np.sum(squares, axis=0)), WINDOW)
    peak = norm[np.maximum.accumulate(np.where(size == most, np.arange(len(size)), 0))]
    loss = relative_loss(run)
    far = np.zeros(len(size), bool)
    if len(loss.steps):
        far = at(Curve(loss.steps, recent(loss.values, WINDOW)), updates.steps) > HIGH
    slow = size < np.where(far, SLOW, REST) * most
    rate = learning_rate(run)
    if rate is not None:  # the largest updates may have been few
        now = at(rate, updates.steps)
        slow |= far & (now < SLOW * np.maximum.accumulate(now))
    resting = slow & (norm > SLOPE * peak)
    length = 0
    for place, rests in enumerate(resting):
        length = length + 1 if rests else 0
        if length >= LEAST and 2 * length > place + 1 - length:
            return _sign(run, Curve(updates.steps, size), place, length, float(most[place]))
    return None


def _sign(run: Record, size: Curve, place: int, length: int, most: float) -> Sign:
    evidence = {
        "updates over the largest ones": float(size.values[place]) / most,
        "since step": int(size.steps[place - length + 1]),
    }
    rates = [
        c for c in run.curves("Wiring", "learning_rate").values() if np.isfinite(c.values).any()
    ]
    title = None
    if rates and np.nanmax(rates[0].values) > 0:
        now = float(at(rates[0], size.steps[place : place + 1])[0])
        evidence["learning rate over the largest one"] = now / float(np.nanmax(rates[0].values))
        if now < 0.02 * float(np.nanmax(rates[0].values)):
            title = "The training has stopped: the learning rate is next to nothing"
    return Sign(int(size.steps[place]), (), evidence, 0.8, title)


RULE = Rule(
    code="CP109",
    name="stalled",
    severity="warning",
    title="The training has stopped, though there still is a gradient",
    why="Updates are a small fraction of what they were, and the gradient is not: steps are spent on nothing.",
    action="Look at the schedule of the learning rate: a decay that is stepped too often, or is over long before the "
    "training. With Adam, look for a gradient that was huge once, which its second moments remember.",
    source="definition: the updates have become small, the gradient has not",
    needs=("UpdateRatio", "GradNorm"),
    check=check,
    least=2 * LEAST,
    explains=("underfitting", "learning-rate-too-low"),
    instrument="update-ratio",
)
