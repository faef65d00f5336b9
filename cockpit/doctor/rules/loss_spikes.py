"""CP103: a training that went well is thrown back."""

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
    rising,
)

WINDOW = 5
"""Tracked batches before, in the middle of which the loss was."""

LEAST = WINDOW + 2
"""Tracked batches that it takes: those, the one that jumps, and the next one."""

TIMES, RISE = 3.0, 0.3
"""By how much the loss is above that: times, and in units of a blind guess. Healthy trainings have single batches of
that kind at three times their best rate, and never two in a row."""

TWICE, HIGHER, LEARNED = 1.5, 0.5, 0.95
"""The same of the lower one of two steps in a row, whichever they are, in a training that has learned anything: healthy
ones have up to twice as much as before, and 0.36 more."""

UPHILL = 5.0
"""Slope where an update ended, in units of the loss of a blind guess. At three times the best learning rate it stays
below 1.7."""

GOOD = 0.7
"""Loss over that of a blind guess, below which the training went well; what never did has other causes."""

STALE = 3.0
"""Gradient in units of Adam's estimate of it; 1 while the estimate is up to date."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for a loss that jumps, and for an update that leads far up."""
    loss, slopes = relative_loss(run), promised(run)
    if len(loss.steps) < LEAST:
        return NotKnown(f"it takes the losses of {LEAST} batches; track configuration('health')")
    before, good = _before(loss)
    place = first(jumps(loss) & ~rising(run, loss.steps))
    signs = []
    if place is not None:
        evidence = {
            "loss over the one before": float(loss.values[place] / before[place]),
            **_staleness(run, int(loss.steps[place])),
        }
        signs.append(Sign(int(loss.steps[place]), (), evidence, 0.85))
    signs += _between(run, loss, before)
    if slopes is not None and len(slopes[1].steps):
        signs += _uphill(run, slopes[1], loss, Curve(loss.steps, np.where(good, before, np.inf)))
    return min(signs, key=lambda sign: sign.step) if signs else None


def _between(run: Record, loss: Curve, before: np.ndarray) -> list[Sign]:
    """Look for two steps in a row, between those that are tracked, at which the loss was as high."""
    two, raw = run.curve("LossPeaks", "two"), run.curve("Loss")
    if two is None or raw is None:
        return []
    steps, (peak, own, relative, usual) = aligned(two, raw, loss, Curve(loss.steps, before))
    peak = peak * relative / np.where(own != 0, own, np.inf)  # in units of a blind guess
    up = (usual < LEARNED) & (peak > TWICE * usual) & (peak > usual + HIGHER)
    place = first(up & ~rising(run, steps, last=True))
    if place is None:
        return []
    evidence = {"loss of two steps in a row over the one before": float(peak[place] / usual[place])}
    title = "The loss jumps for some steps"
    return [Sign(int(steps[place]), (), evidence, 0.85, title)]


def _before(loss: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss before each batch, `[n]`, and whether the training had gone well by then, `[n]`."""
    before = np.concatenate([[np.nan], recent(loss.values, WINDOW)[:-1]])[: len(loss.values)]
    return before, np.fmin.accumulate(np.where(np.isfinite(before), before, np.inf)) < GOOD


def jumps(loss: Curve) -> np.ndarray:
    """Return where the loss of a training that went well jumps, and the next batch is as bad, `[n]`."""
    if len(loss.values) < LEAST:
        return np.zeros(len(loss.values), bool)
    before, good = _before(loss)
    up: np.ndarray = good & (loss.values > TIMES * before) & (loss.values > before + RISE)
    return up & _stays_up(loss.values)


def _stays_up(loss: np.ndarray) -> np.ndarray:
    """Return where the next batch is worse than all of those before, too, `[n]`.

    A single one may just be hard: one of 16 samples can have 2.5 times the loss of others at the same weights.
    """
    highest = np.lib.stride_tricks.sliding_window_view(loss, WINDOW).max(1)  # of [k, k + WINDOW)
    stays = np.zeros(len(loss), bool)
    stays[WINDOW:-1] = loss[WINDOW + 1 :] > highest[: len(loss) - WINDOW - 1]
    return stays


def _uphill(run: Record, end: Curve, loss: Curve, before: Curve) -> list[Sign]:
    """Look for the first update that ended far up, after others that did not."""
    went_well = at(before, end.steps) < GOOD
    slope = end.values * at(loss, end.steps)
    place = first(went_well & (slope > UPHILL) & ~rising(run, end.steps, last=True))
    if place is None:
        return []
    step = int(end.steps[place])
    evidence = {
        "slope where the update ended, in units of a blind guess": float(slope[place]),
        **_staleness(run, step),
    }
    title = "An update leads far up, and the loss jumps"
    return [Sign(step, (), evidence, 0.85, title)]


def _staleness(run: Record, step: int) -> dict[str, float]:
    """Return Adam's staleness at the last tracked step up to there, where it was an early sign."""
    curves = run.curves("AdamStaleness").values()
    values = [float(at(c, np.array([step]))[0]) for c in curves if len(c.steps)]
    worst = max(values, default=0.0)
    return {"gradient over Adam's estimate of it": worst} if worst > STALE else {}


RULE = Rule(
    code="CP103",
    name="loss-spikes",
    severity="warning",
    title="The loss jumps",
    why="A single step has undone many. The training comes back slowly, if at all, and what caused it will come back, "
    "too.",
    action="Look at the batch of that step, and at the learning rate then. Clip the gradient to a few times its "
    "usual norm; with Adam, a smaller beta2 follows gradients that grow.",
    source="Wortsman, Dettmers, Zettlemoyer et al. (2023), arXiv:2304.13013; Chowdhery et al. (2022), "
    "arXiv:2204.02311, section 5.1",
    needs=("Loss",),
    check=check,
    least=LEAST,
    explains=(
        "learning-rate-too-high",
        "non-finite",
        "labels-partly-wrong",
        "stalled",
        "dead-units",
    ),
    instrument="loss",
)
