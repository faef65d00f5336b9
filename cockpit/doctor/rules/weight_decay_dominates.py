"""CP112: weight decay moves the parameters more than the loss does."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Curve, Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import aligned, at, first, recent, relative_loss

HALF = 0.5
"""Of an update. Usual weight decay is a hundredth of it or less, also where it has come into balance."""

LEFT = 0.1
"""Loss over that of a blind guess. Where less is left to learn, decay is all that moves, and does no harm."""

WINDOW = 5
"""Tracked steps in the middle of which it dominates."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for weights whose updates lead to zero, or are smaller than their decay."""
    weights = {one.name for one in run.parameters if len(one.shape) > 1}
    inwards = {n: c for n, c in run.curves("Shrinkage").items() if n in weights}
    if not inwards:
        return NotKnown("no update was seen; track configuration('health')")
    found = {}
    for name, curve in inwards.items():
        share = _share(run, name)
        places = [
            (int(one.steps[place]), float(np.nanmax(level)))
            for one in (curve, share)
            if one is not None
            for level in [recent(one.values, WINDOW)]
            for place in [first(level > HALF)]
            if place is not None
        ]
        if places and _decays(run, name):
            found[name] = min(places)
    if 2 * len(found) < len(inwards):
        return None
    worst = sorted(found, key=lambda name: -found[name][1])
    evidence = {
        "part of the updates that is decay, or leads to zero": found[worst[0]][1],
        "weights": len(found),
        "of": len(inwards),
    }
    step = sorted(step for step, _ in found.values())[(len(inwards) - 1) // 2]
    loss = relative_loss(run)
    if len(loss.steps) and float(at(loss, np.array([step]))[0]) < LEFT:
        return None
    return Sign(step, () if len(found) == len(inwards) else tuple(worst), evidence, 0.9)


def _decays(run: Record, name: str) -> bool:
    """Whether an optimizer lets it decay, as far as is known: a penalty in the loss is not seen."""
    curve = run.curve("Wiring", "weight_decay", name)
    return curve is None or not (curve.values == 0).all()


def _share(run: Record, name: str) -> Curve | None:
    """Return learning rate times weight decay over the relative size of the updates."""
    rate, decay, ratio = (
        run.curve("Wiring", "learning_rate", name),
        run.curve("Wiring", "weight_decay", name),
        run.curve("UpdateRatio", "", name),
    )
    if rate is None or decay is None or ratio is None:
        return None
    steps, (r, d, u) = aligned(rate, decay, ratio)
    return Curve(steps, r * d / np.where(u > 0, u, np.inf))


RULE = Rule(
    code="CP112",
    name="weight-decay-dominates",
    severity="warning",
    title="Weight decay moves the weights more than the loss does",
    why="The weights shrink towards zero faster than they learn, or are held near it: the model cannot become "
    "as large as its task needs.",
    action="Make weight decay 10 to 100 times smaller. What counts is its product with the learning rate: 1e-4 and "
    "less for usual trainings.",
    source="Loshchilov & Hutter (2019), arXiv:1711.05101; definition: the decay is that product times the weights",
    needs=("Shrinkage",),
    check=check,
    least=WINDOW,
    explains=(
        "labels-shuffled",
        "underfitting",
        "stalled",
        "learning-rate-too-low",
        "learning-rate-too-high",
        "batch-too-small",
        "dormant-units",
        "vanishing-gradients",
        "dead-units",
        "labels-partly-wrong",
    ),
    spreads=True,
    instrument="parameter-norm",
)
