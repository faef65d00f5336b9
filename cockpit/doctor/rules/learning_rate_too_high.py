"""CP101: a learning rate that is too high: the training diverges, overshoots, or is thrown about."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Curve, Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.loss_spikes import jumps
from cockpit.doctor.rules.of_course import (
    aligned,
    at,
    first,
    learning_rate,
    promised,
    raised,
    recent,
    relative_loss,
    relative_updates,
    rising,
    way,
)

GROWN = 2.5
"""Times a blind guess, or the first loss where that is higher. A regression at three times its best rate was seen at
1.5 on its way down."""

WHOLE = 15.0
"""Times the whole loss that an update promises to take off, which it cannot keep: it leaves the region where its
slope holds. At three times the best learning rate it stays below 8 while the loss is high."""

UPHILL = 5.0
"""Slope at the end of an update, in units of the loss: the minimum along its way lies far behind. At three times
the best learning rate it stays below 3.5 while the loss is high."""

EARLY = 0.05
"""Of a loss that is not finite a few steps later, what the first update promised: a twentieth is five times
what usual learning rates give at the first step of plain gradient descent."""

STUCK, FAR = 0.75, 1.0
"""A loss above so much of a blind guess, and a way of the weights as long as they are: healthy trainings learn most on
such a way."""

ALL, LOST = 1.0, 3.0
"""Times the whole loss, promised by one update, and a way so many times as long as the weights, after which it should
have been kept. Long ways alone do no harm: where there is little to learn, such as in a text, good learning rates lead
on for four times the weights' length at 0.8 of a guess, and promise at most 0.6."""

PROGRESS = 0.95
"""Loss over what it was ten tracked steps before, below which a training does get somewhere, if slowly."""

BACK = 0.95
"""Loss over that of a blind guess to which a training is thrown back for a while."""

AT_ONCE, BEFORE, AFTER = 2.5, 4, 3
"""Times the highest learning rate so far, from one tracked step to the next, and the tracked batches before and after
that are compared. Restarts come back to the rate that they began with, and warm-ups take more steps."""

WORSE, RISEN = 1.15, 0.05
"""Loss after it over the loss before, and by how much it has risen, in units of a blind guess."""

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
        _breaks(run, loss),
        _worsens(run, loss),
        _overshoots(slopes, loss),
        _gets_nowhere(run, slopes[0], loss),
        _falls_back(run, loss),
    )
    found = [sign for sign in signs if sign is not None]
    return min(found, key=lambda sign: (sign.step, -sign.confidence)) if found else None


def _not_finite(run: Record, promise: Curve) -> Sign | None:
    """Look for a loss that is not finite after large updates, which are the first ones, or grow with the rate."""
    loss = run.curve("Loss")
    assert loss is not None
    place = first(~np.isfinite(loss.values))
    if place is None or place == 0 or not len(promise.values):
        return None
    flags = run.flags("NonFinite", "by_sample", int(loss.steps[place]))
    before = promise.values[promise.steps < loss.steps[place]]
    if (flags is not None and not flags.all()) or not len(before):
        return None  # a few samples: these are the cause
    early = len(before) <= WINDOW or rising(run, loss.steps)[place]
    large = float(before[-WINDOW:].max()) >= EARLY or _overflows(run, int(loss.steps[place]))
    if not early or not large:
        return None
    evidence = {
        "last step with a finite loss": int(loss.steps[place - 1]),
        "share of the loss that an update promised to take off": float(before[-WINDOW:].max()),
    }
    title = "The learning rate is too high: the training diverges"
    return Sign(int(loss.steps[place]), (), evidence, 0.85, title)


def _overflows(run: Record, step: int) -> bool:
    """Whether a squared error is infinite that the outputs are not: these are huge."""
    modules = run.curve("NonFinite", "modules")
    if modules is None or run.curve("Targets", "variance") is None:
        return False
    return bool((modules.values[modules.steps == step] == 0).any())


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


def _breaks(run: Record, loss: Curve) -> Sign | None:
    """Look for a loss that jumps while the learning rate is being raised."""
    place = first(jumps(loss) & rising(run, loss.steps))
    if place is None:
        return None
    evidence = {"loss over that of a blind guess": float(loss.values[place])}
    title = "The learning rate is too high: the loss jumps while it is being raised"
    return Sign(int(loss.steps[place]), (), evidence, 0.85, title)


def _worsens(run: Record, loss: Curve) -> Sign | None:
    """Look for a loss that is higher after the learning rate was raised at once, beyond what it had ever been."""
    rates = at(rate, loss.steps) if (rate := learning_rate(run)) is not None else None
    if rates is None or len(loss.steps) <= BEFORE + AFTER:
        return None
    highest = np.maximum.accumulate(rates)
    for place in range(BEFORE, len(loss.steps) - AFTER):
        if not rates[place] > AT_ONCE * highest[place - 1] > 0:
            continue
        before = float(np.median(loss.values[place - BEFORE : place + 1]))
        after = float(np.median(loss.values[place + 1 : place + 1 + AFTER]))
        if after > max(WORSE * before, before + RISEN):
            evidence = {
                "learning rate over the highest one before": float(
                    rates[place] / highest[place - 1]
                ),
                "loss over that of a blind guess before": before,
                "after": after,
            }
            title = "The learning rate is too high: the loss has risen since it was raised"
            return Sign(int(loss.steps[place + AFTER]), (), evidence, 0.75, title)
    return None


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
    """Look for a long way, and an update that promised the whole loss, while it stays near a blind guess."""
    updates = relative_updates(run)
    if updates is None or not len(promise.values):
        return None
    moved = way(updates)
    lowest = np.fmin(recent(loss.values, WINDOW), recent(loss.values, LONG))
    steps, (level, most) = aligned(
        Curve(loss.steps, np.where(np.arange(len(lowest)) < LONG - 1, np.nan, lowest)),
        Curve(promise.steps, np.maximum.accumulate(promise.values)),
    )
    before = np.concatenate([level[:LONG], level[:-LONG]])[: len(level)]
    stuck = (level > STUCK) & (level > PROGRESS * before) & (at(moved, steps) > LOST)
    place = first(stuck & (most > ALL))
    if place is None:
        return None
    evidence = {
        "loss over that of a blind guess": float(level[place]),
        "share of it that an update promised to take off": float(most[place]),
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
    ),
    instrument="loss",
)
