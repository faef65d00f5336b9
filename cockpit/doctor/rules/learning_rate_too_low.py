"""CP102: a learning rate that is too low: every step goes down, and none goes anywhere."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import at, promised, raised, relative_loss, rising

LEAST, PART = 14, 5
"""Updates whose slopes are known, and those of the beginning and the end that are compared: fewer do not tell a low
learning rate from the plateau that some trainings begin with."""

BEGINNING = 64
"""Updates among which it shows; later on small steps are usual."""

SMALL, NEVER = 0.0025, 0.01
"""Share of the loss that the update in the middle promises to take off, and that no update exceeds: four hundred
steps of the one would halve the loss at best. Usual learning rates promise 0.7 % to 50 %."""

STEEP = 0.2
"""Share of the slope that is left at the end of the updates. At a good learning rate it is about 0, the minimum; for
one that is too low 0.3 to 0.9, the rest being noise that the update has followed."""

GROWING = 2.0
"""Times the first promises that the last ones are: the training comes off a plateau, and gets faster by itself. With
learning rates that are too low it is 0.7 to 1.3."""

HIGH = 0.5
"""Loss over that of a blind guess: below, small steps may be meant."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for updates that have never changed the slope that they follow, nor the loss."""
    seen = slow(run)
    return seen if isinstance(seen, Sign | NotKnown) else _warming_up(run)


def _warming_up(run: Record) -> Sign | None:
    """Look for a learning rate that is still being raised, and has led nowhere, which may be meant."""
    slopes, loss = promised(run), relative_loss(run)
    assert slopes is not None
    promise = slopes[0]
    count = min(len(promise.steps), BEGINNING)
    on_its_way = rising(run, promise.steps[:count])
    for place in range(LEAST - 1, count):
        so_far = promise.values[: place + 1]
        if float(so_far.max()) > NEVER:
            return None
        middle, step = float(np.median(so_far)), promise.steps[place : place + 1]
        if on_its_way[place] and 0 < middle < SMALL and at(loss, step)[0] > HIGH:
            evidence = {
                "share of the loss that an update promises to take off": middle,
                "loss over that of a blind guess": float(at(loss, step)[0]),
            }
            title = "The learning rate is still being raised, and too low so far"
            return Sign(int(step[0]), (), evidence, 0.6, title, severity="note")
    return None


def slow(run: Record, times: float = 1.0) -> Sign | NotKnown | None:
    """Look for the same, among updates that promise up to so many times as much."""
    slopes, loss = promised(run), relative_loss(run)
    if slopes is None or len(slopes[0].steps) < LEAST or not len(loss.steps):
        return NotKnown(f"it takes the slopes along {LEAST} updates; track configuration('health')")
    promise, end = slopes
    for count in range(LEAST, min(len(promise.steps), BEGINNING) + 1):
        step = promise.steps[count - 1 : count]
        so_far, left = promise.values[:count], -end.values[:count].sum()
        middle, most = float(np.median(so_far)), float(so_far.max())
        if most > times * NEVER:
            return None
        share = left / so_far.sum() if so_far.sum() > 0 else 0.0
        grows = np.median(so_far[-PART:]) > GROWING * np.median(so_far[:PART])
        slow = (
            0 < middle < times * SMALL and share > STEEP and at(loss, step)[0] > HIGH and not grows
        )
        if slow and not raised(run, step)[0]:
            evidence = {
                "share of the loss that an update promises to take off": middle,
                "share of the slope that is left after it": float(share),
                "loss over that of a blind guess": float(at(loss, step)[0]),
            }
            return Sign(int(step[0]), (), evidence, 0.8)
    return None


RULE = Rule(
    code="CP102",
    name="learning-rate-too-low",
    severity="warning",
    title="The learning rate is too low",
    why="The loss goes down so slowly that the training will take many times as long as it need, and the slope "
    "is as steep after an update as before: larger ones would still lead down.",
    action="Multiply the learning rate by 3 to 10 until the loss begins to fall fast, and stop before it "
    "oscillates. Look at whether a schedule, a warm-up or a factor makes it smaller than you think.",
    source="Mutschler & Zell (2020), arXiv:1903.11991: the slopes at both ends of an update tell its length; "
    'LeCun, Bottou, Orr & Müller (1998), "Efficient BackProp", section 5',
    needs=("Loss", "UpdateSlopes"),
    check=check,
    least=LEAST,
    explains=("underfitting", "stalled", "labels-shuffled"),
    instrument="loss",
)
