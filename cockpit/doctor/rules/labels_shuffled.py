"""CP308: targets that have nothing to do with the inputs."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Curve, Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import (
    at,
    first,
    promised,
    recent,
    relative_updates,
    unexplained,
    way,
)

WINDOW = 12
"""Tracked batches whose loss in the middle is judged."""

STEPS = 80
"""The plateau at the beginning of a healthy training may last as long."""

NEAR, NEVER = 0.05, 0.07
"""How near to the best blind guess the loss is, and how far it has never been below it: the noise of a batch of 64."""

STILL = 0.97
"""Loss of the last few batches, below which it may be falling: a plateau ends there before it does in the middle of
`WINDOW`."""

MOVED = 0.25
"""Way of the weights, in units of their own size, on which what can be learned begins to show: slow trainings that
go well leave the blind guess behind after 0.1 to 0.15, and are below half of it after a few times as much."""

LEFT = 0.25
"""Share of the slope that is left at the end of the updates. On the plateau that some trainings begin with, it goes
down all along, and 0.3 to 0.9 are left; where nothing can be learned, the next batch knows nothing of it."""

RESTING = 0.02
"""Updates that have become so much smaller: the model has stopped, and its loss says nothing of the targets."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for a model that learns how frequent the targets are, and nothing of what they depend on."""
    loss, updates, slopes = unexplained(run), relative_updates(run), promised(run)
    if loss is None or updates is None or slopes is None:
        return NotKnown("targets or updates were not seen; track configuration('health')")
    promise, end = slopes
    if len(loss.steps) < WINDOW or not len(end.steps):
        return NotKnown(f"it takes {WINDOW} tracked batches, and there are {len(loss.steps)}")
    level = recent(loss.values, WINDOW)
    lowest = np.fmin.accumulate(np.where(np.isfinite(level), level, np.inf))
    size = at(updates, loss.steps)
    usual = at(Curve(updates.steps, np.maximum.accumulate(recent(updates.values, 3))), loss.steps)
    moved = at(way(updates), loss.steps)
    now = recent(loss.values, 3)
    near = (np.abs(level - 1) < NEAR) & (lowest > 1 - NEVER) & (now > STILL) & (now < 1 + 2 * NEAR)
    shares = -end.values / np.where(promise.values > 0, promise.values, np.inf)
    left = at(Curve(end.steps, recent(shares, WINDOW)), loss.steps)
    late = loss.steps - loss.steps[0] >= STEPS
    place = first(near & late & (moved > MOVED) & (left < LEFT) & ~(size < RESTING * usual))
    if place is None:
        return None
    evidence = {
        "loss over that of the best blind guess": float(level[place]),
        "way of the weights, in units of their size": float(moved[place]),
    }
    return Sign(int(loss.steps[place]), (), evidence, 0.65)


RULE = Rule(
    code="CP308",
    name="labels-shuffled",
    severity="error",
    title="The targets seem to have nothing to do with the inputs",
    why="The parameters move, and all that the model learns is how frequent the targets are. What it could "
    "learn beyond that would be single samples by heart.",
    action="Look at some samples with their labels. A frequent cause is that inputs and targets are sorted, "
    "shuffled or filtered separately, or that the inputs are all alike.",
    source='Karpathy (2019), "A Recipe for Training Neural Networks": inputs that tell nothing are as good as zeros',
    needs=("Targets", "UpdateRatio", "UpdateSlopes"),
    check=check,
    explains=("underfitting", "stalled", "batch-too-small"),
)
