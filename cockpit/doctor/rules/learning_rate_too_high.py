"""CP101: a learning rate that is too high: the training diverges, overshoots, or is thrown about."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Curve, Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import (
    aligned,
    at,
    first,
    promised,
    recent,
    relative_loss,
    relative_updates,
    way,
)

GROWN = 1.6
"""Times a blind guess. Random outputs of unit variance are at about 1.2, so that this was made by training."""

WHOLE = 12.0
"""Times the whole loss that an update promises to take off, which it cannot keep: it leaves the region where its
slope holds. At three times the best learning rate it stays below 6 while the loss is high."""

UPHILL = 3.0
"""Slope at the end of an update, in units of the loss: the minimum along its way lies far behind. At three times
the best learning rate it stays below 0.7 while the loss is high."""

EARLY = 0.05
"""Of a loss that is not finite a few steps later, what the first update promised: a twentieth is five times
what usual learning rates give at the first step of plain gradient descent."""

STUCK, STRONG, ALL, FAR = 0.7, 0.05, 1.0, 1.0
"""A loss above so much of a blind guess, updates that promised to take off so much of it each, or one that promised
all of it, and a way of the weights as long as they are: healthy trainings learn most on such a way."""

PROGRESS = 0.95
"""Loss over what it was ten tracked steps before, below which a training does get somewhere, if slowly."""

BACK = 0.95
"""Loss over that of a blind guess to which a training is thrown back for a while."""

WINDOW, LONG = 3, 10
"""Tracked steps over which the loss is judged: that it has grown, and that it gets nowhere."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for a loss that grows, steps that overshoot, and long ways without progress."""
    slopes, loss = promised(run), relative_loss(run)
    if slopes is None:
        return NotKnown("no slopes along the updates were seen; track configuration('health')")
    signs = (
        _not_finite(run, slopes[0]),
        _grows(run, loss),
        _overshoots(slopes, loss),
        _gets_nowhere(run, slopes[0], loss),
        _falls_back(run, loss),
    )
    found = [sign for sign in signs if sign is not None]
    return min(found, key=lambda sign: (sign.step, -sign.confidence)) if found else None


def _not_finite(run: Record, promise: Curve) -> Sign | None:
    """Look for a loss that is not finite right after first updates that were large."""
    loss = run.curve("Loss")
    assert loss is not None
    place = first(~np.isfinite(loss.values))
    if place is None or place == 0 or not len(promise.values):
        return None
    flags = run.flags("NonFinite", "by_sample", int(loss.steps[place]))
    before = promise.steps < loss.steps[place]
    if (flags is not None and not flags.all()) or not before.any():
        return None  # a few samples: these are the cause
    if before.sum() > WINDOW or float(promise.values[before].max()) < EARLY:
        return None
    evidence = {
        "last step with a finite loss": int(loss.steps[place - 1]),
        "share of the loss that an update promised to take off": float(
            promise.values[before].max()
        ),
    }
    title = "The learning rate is too high: the training diverges within its first steps"
    return Sign(int(loss.steps[place]), (), evidence, 0.85, title)


def _grows(run: Record, loss: Curve) -> Sign | None:
    """Look for a loss that stays above that of a blind guess without ever having been good."""
    level = recent(loss.values, WINDOW)
    lowest = np.fmin.accumulate(np.where(np.isfinite(level), level, np.inf))
    limit = GROWN * max(1.0, float(loss.values[0])) if len(loss.values) else GROWN
    holds = (level > limit) & ((lowest > STUCK) | raised(run, loss.steps))
    place = first(holds)
    if place is None:
        return None
    evidence = {
        "loss over that of a blind guess": float(level[place]),
        "lowest before": float(lowest[place]),
    }
    title = "The learning rate is too high: the loss grows"
    return Sign(int(loss.steps[place]), (), evidence, 0.9, title)


def raised(run: Record, steps: np.ndarray) -> np.ndarray:
    """Return at which steps the learning rate is above what it was at first, `[n]`."""
    rates = run.curves("Wiring", "learning_rate")
    known = [curve for curve in rates.values() if len(curve.steps) and curve.values[0] > 0]
    if not known:
        return np.zeros(len(steps), bool)
    higher: np.ndarray = at(known[0], steps) > 1.5 * known[0].values[0]
    return higher


def _overshoots(slopes: tuple[Curve, Curve], loss: Curve) -> Sign | None:
    """Look for an early update that ends far uphill, or that promises more than there is."""
    promise, end = slopes
    if not len(loss.values) or not len(end.values):
        return None
    bad = at(Curve(loss.steps, np.minimum.accumulate(loss.values)), end.steps) > STUCK
    place = first(bad & ((end.values > UPHILL) | (promise.values > WHOLE)))
    if place is None:
        return None
    evidence = {
        "share of the loss that the update promised to take off": float(promise.values[place]),
        "slope where it ended, in units of the loss": float(end.values[place]),
    }
    title = "The learning rate is too high: an update leads far beyond the minimum along its way"
    return Sign(int(end.steps[place]), (), evidence, 0.75, title)


def _gets_nowhere(run: Record, promise: Curve, loss: Curve) -> Sign | None:
    """Look for updates that promise much, over a long way, while the loss stays near a blind guess."""
    updates = relative_updates(run)
    if updates is None or not len(promise.values):
        return None
    moved = way(updates)
    lowest = np.fmin(recent(loss.values, WINDOW), recent(loss.values, LONG))
    steps, (level, at_step) = aligned(
        Curve(loss.steps, lowest), Curve(promise.steps, recent(promise.values, LONG))
    )
    most = at(Curve(promise.steps, np.maximum.accumulate(promise.values)), steps)
    before = np.concatenate([level[:LONG], level[:-LONG]])[: len(level)]
    stuck = (level > STUCK) & (level > PROGRESS * before) & (at(moved, steps) > FAR)
    stuck &= (at_step > STRONG) | (most > ALL)
    place = first(stuck)
    if place is None:
        return None
    evidence = {
        "loss over that of a blind guess": float(level[place]),
        "share of it that an update promised to take off": float(at_step[place]),
        "way of the weights, in units of their size": float(at(moved, steps[place : place + 1])[0]),
    }
    title = "The learning rate is too high: the parameters are thrown about and the loss stays high"
    return Sign(int(steps[place]), (), evidence, 0.6, title)


def _falls_back(run: Record, loss: Curve) -> Sign | None:
    """Look for a training that had learned something, and is back at a blind guess after a long way."""
    updates = relative_updates(run)
    if updates is None:
        return None
    level = recent(loss.values, WINDOW)
    known = np.where(np.isfinite(level), level, np.inf)
    lowest = np.fmin.accumulate(known)
    moved = at(way(updates), loss.steps)
    since = (
        moved - moved[np.maximum.accumulate(np.where(known == lowest, np.arange(len(known)), 0))]
    )
    place = first((level > BACK) & (lowest < STUCK) & (since > FAR))
    if place is None:
        return None
    evidence = {
        "loss over that of a blind guess": float(level[place]),
        "lowest before": float(lowest[place]),
        "way of the weights since, in units of their size": float(since[place]),
    }
    title = (
        "The learning rate is too high: the loss oscillates, and has fallen back to a blind guess"
    )
    return Sign(int(loss.steps[place]), (), evidence, 0.7, title)


RULE = Rule(
    code="CP101",
    name="learning-rate-too-high",
    severity="error",
    title="The learning rate is too high",
    why="Updates lead beyond the minimum along their direction, up the other side: the loss oscillates, stays "
    "high or grows without bound, and units may die on the way.",
    action="Divide the learning rate by 3 to 10, or warm it up over some hundred steps. If only the first "
    "steps are too large, a warm-up is enough.",
    source='LeCun, Bottou, Orr & Müller (1998), "Efficient BackProp", section 5: beyond twice the best rate, '
    "gradient descent diverges; Cohen et al. (2021), arXiv:2103.00065",
    needs=("Loss", "UpdateSlopes"),
    check=check,
    explains=(
        "non-finite",
        "loss-spikes",
        "stalled",
        "labels-shuffled",
        "underfitting",
        "dead-units",
        "dormant-units",
        "saturated-activations",
        "exploding-gradients",
    ),
    instrument="loss",
)
