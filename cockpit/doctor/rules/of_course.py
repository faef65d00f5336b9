"""What rules about the course of a training have in common."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Curve, Record

SYMPTOMS = (
    "learning-rate-too-high",
    "learning-rate-too-low",
    "loss-spikes",
    "stalled",
    "underfitting",
    "labels-shuffled",
    "labels-partly-wrong",
)
"""Rules that see a training from outside: what they find may follow from how it is put together."""

RAISED, LATELY = 1.5, 5
"""Times what a learning rate was, from which on it counts as raised, and for how many tracked steps that is lately."""

FEWEST = 16
"""Targets without which their distribution says nothing."""


def aligned(*curves: Curve) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the steps at which all curves have finite values, and these values."""
    steps = curves[0].steps
    for curve in curves[1:]:
        steps = np.intersect1d(steps, curve.steps, assume_unique=True)
    values = [curve.values[np.isin(curve.steps, steps, assume_unique=True)] for curve in curves]
    finite = np.isfinite(np.array(values)).all(0)
    return steps[finite], [of_one[finite] for of_one in values]


def unexplained(run: Record) -> Curve | None:
    """Return the loss over that of the best blind guess, which knows the distribution of the targets only.

    That is the entropy of the classes, or the variance of what is to be predicted: 1 for a model that
    has learned nothing else, 0 for a perfect one. None where the targets were not seen.
    """
    loss, seen = run.curve("Targets", "loss"), run.curve("Targets", "seen")
    guess = run.curve("Targets", "entropy") or run.curve("Targets", "variance")
    if loss is None or seen is None or guess is None:
        return None
    steps, (loss_at, guess_at, seen_at) = aligned(loss, guess, seen)
    known = (seen_at >= FEWEST) & (guess_at > 0)
    return Curve(steps[known], loss_at[known] / guess_at[known])


def relative_loss(run: Record) -> Curve:
    """Return the loss over that of a blind guess, or where that is not known, over the first one."""
    known, loss = unexplained(run), run.curve("Loss")
    if known is not None and len(known.steps):
        return known
    if loss is None or not len(loss.values) or not loss.values[0] > 0:
        return Curve(np.zeros(0, np.int64), np.zeros(0))
    finite = np.isfinite(loss.values)
    return Curve(loss.steps[finite], loss.values[finite] / loss.values[0])


def relative_updates(run: Record) -> Curve | None:
    """Return the size of the updates relative to the parameters, of the weight in the middle at every step.

    Weights have two dimensions or more; biases and the like begin at zero. None where no update was seen.
    """
    weights = {one.name for one in run.parameters if len(one.shape) > 1}
    curves = [c for name, c in run.curves("UpdateRatio").items() if name in weights]
    if not curves:
        return None
    most = max(curves, key=lambda curve: len(curve.steps))
    table = np.array([c.values for c in curves if len(c.steps) == len(most.steps)])
    known = np.isfinite(table).any(0)
    if not known.any():
        return None
    return Curve(most.steps[known], np.nanmedian(table[:, known], axis=0))


def way(updates: Curve) -> Curve:
    """Return the length of the way so far, in units of the weights' own size."""
    between = np.diff(updates.steps) * (updates.values[1:] + updates.values[:-1]) / 2
    return Curve(updates.steps, np.concatenate([[0.0], np.cumsum(between)]))


def promised(run: Record) -> tuple[Curve, Curve] | None:
    """Return the slopes along the updates over the loss: what each promised to take off it, and where it ended.

    The first is −∇L·d / L, to first order the share of the loss that the update d takes off; the second
    ∇L·d / L on the next mini-batch, above 0 where the loss rises at the end of the update. None where
    they were not tracked.
    """
    loss, start, end = (
        run.curve("Loss"),
        run.curve("UpdateSlopes", "start"),
        run.curve("UpdateSlopes", "end"),
    )
    if loss is None or start is None or end is None:
        return None
    steps, (loss_at, start_at, end_at) = aligned(loss, start, end)
    known = loss_at > 0
    return (
        Curve(steps[known], -start_at[known] / loss_at[known]),
        Curve(steps[known], end_at[known] / loss_at[known]),
    )


def raised(run: Record, steps: np.ndarray) -> np.ndarray:
    """Return at which steps the learning rate is above what it was at first, `[n]`."""
    rate = learning_rate(run)
    if rate is None:
        return np.zeros(len(steps), bool)
    higher: np.ndarray = at(rate, steps) > RAISED * rate.values[0]
    return higher


def rising(run: Record, steps: np.ndarray, *, last: bool = False) -> np.ndarray:
    """Return at which steps the learning rate is on its way up, `[n]`.

    It is being raised and was at the last three tracked steps, or it has been raised by half and more within the last
    five.

    Args:
        run: The run.
        steps: The steps.
        last: Whether it counts as raised for longer where it is at the last step, and not at the one before.
    """
    rate = learning_rate(run)
    if rate is None or not len(steps):
        return np.zeros(len(steps), bool)
    now = at(rate, steps)
    up = np.concatenate([[False], np.diff(now) > 0])
    lasting = up & np.roll(up, 1) & np.roll(up, 2) & (np.arange(len(up)) > 2)
    before = np.concatenate([np.full(LATELY, now[0]), now])
    lowest = np.lib.stride_tricks.sliding_window_view(before, LATELY + 1).min(1)
    following = np.append(now[1:], np.inf if last else -np.inf)
    beside = np.maximum(following, np.append(now[:1], now[:-1]))
    known = np.minimum(now, beside)  # a single step is none
    raised_lately: np.ndarray = known > RAISED * np.where(lowest > 0, lowest, np.inf)
    return lasting | raised_lately


def learning_rate(run: Record) -> Curve | None:
    """Return that of the first parameter that has one."""
    rates = run.curves("Wiring", "learning_rate").values()
    known = [curve for curve in rates if len(curve.steps) and curve.values[0] > 0]
    return known[0] if known else None


def at(curve: Curve, steps: np.ndarray) -> np.ndarray:
    """Return the last known values of a curve at some steps, `[len(steps)]`; before its first one, that one."""
    found: np.ndarray = curve.values[
        np.maximum(np.searchsorted(curve.steps, steps, side="right") - 1, 0)
    ]
    return found


def recent(values: np.ndarray, width: int) -> np.ndarray:
    """Return the medians of each value and the ones right before it, `[n]`; NaN for the first ones."""
    medians = np.full(len(values), np.nan)
    if len(values) >= width:
        windows = np.lib.stride_tricks.sliding_window_view(values, width)
        medians[width - 1 :] = np.median(windows, axis=1)
    return medians


def averages(values: np.ndarray, width: int) -> np.ndarray:
    """Return the means of each value and the ones right before it, `[n]`; NaN for the first ones."""
    means = np.full(len(values), np.nan)
    if len(values) >= width:
        means[width - 1 :] = np.convolve(values, np.full(width, 1 / width), "valid")
    return means


def first(holds: np.ndarray) -> int | None:
    """Return the first place at which something holds; None where it never does."""
    return int(np.argmax(holds)) if holds.any() else None
