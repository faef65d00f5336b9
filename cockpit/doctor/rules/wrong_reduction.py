"""CP307: a sum in the place of a mean, or a mean of a mean."""

from __future__ import annotations

import math

from cockpit.doctor.record import Curve, Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules import learning_rate_too_high, learning_rate_too_low

LENIENT = 2.0
"""Times what steps that are too small promise at most otherwise: that the loss is divided once too often is known, and
that they are small is asked in order to leave alone what is divided on purpose."""

PASSES, LEAST = 4.0, 3
"""Passes for which a loss is divided, and tracked steps that have to show that there is one. Half a loss is meant."""

MANY = 8.0
"""Times that a loss is divided that are no micro-batches of one batch."""

ROUNDING = 1e-3
"""Relative error of a weight that is a whole number, or one over it."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for a loss that is so many times a mean, in a training whose steps are as much too large or small."""
    weights, seen = run.curve("Wiring", "loss/weight"), run.curve("Targets", "seen")
    if weights is None or seen is None or not weights.values[0] > 0:
        return NotKnown("the loss is not one cross-entropy or squared error, whose weight is known")
    weight, targets = float(weights.values[0]), float(seen.values[0])
    times = max(weight, 1 / weight)
    if not 2 <= times < math.inf:
        return None
    # A sum over some of the dimensions that the targets have, or over the samples of a batch and then divided by all.
    whole_number = abs(times - round(times)) < ROUNDING * times
    whole = whole_number and not targets % round(times)
    summed = weight > 1
    if not whole and (summed or times < MANY):
        return None  # any other factor is meant
    harm = learning_rate_too_high.check(run) if summed else learning_rate_too_low.slow(run, LENIENT)
    what = f"summed over {round(times)}" if summed else f"divided by {times:.4g} once too often"
    if not isinstance(harm, Sign):
        # The learning rate was made for it, as it seems.
        if summed or not whole_number:
            return None
        return (
            _twice(weights, what) if round(times) == targets else _for_nothing(run, weights, times)
        )
    evidence = {"the losses of the targets are": what, **harm.evidence}
    title = (
        "The loss is a sum, and the learning rate too high for it"
        if summed
        else "The loss is divided twice, and the learning rate too low for it"
    )
    return Sign(harm.step, (), evidence, max(harm.confidence, 0.9), title)


def _twice(weights: Curve, what: str) -> Sign:
    """Say that a mean was divided by the number of its terms."""
    evidence = {"the losses of the targets are": what}
    title = "The mean loss is divided by the number of its terms once more"
    return Sign(int(weights.steps[0]), (), evidence, 0.7, title, severity="note")


def _for_nothing(run: Record, weights: Curve, times: float) -> Sign | None:
    """Say that a loss is divided as for several backward passes, where there is one."""
    several, added = run.curve("Wiring", "accumulated"), run.curves("Wiring", "added_to").values()
    if several is None or several.values.any() or len(several.steps) < LEAST or times < PASSES:
        return None
    if any((curve.values > 0).any() for curve in added):
        return None
    evidence = {"the mean loss is divided by": round(times)}
    title = "The loss is divided as for several backward passes, and every one of them is followed by an update"
    return Sign(int(several.steps[LEAST - 1]), (), evidence, 0.6, title, severity="note")


RULE = Rule(
    code="CP307",
    name="wrong-reduction",
    severity="error",
    title="The loss is reduced in a way that the learning rate was not made for",
    why="A sum makes gradients as many times larger as there are samples, a second division as many times smaller. "
    "Learning rates and thresholds that are usual are made for the mean.",
    action='Use the mean over all targets, reduction="mean", and do not divide by the batch size again. If the sum '
    "is meant, divide the learning rate by the number of its terms.",
    source="definition: the sum of the weights of all targets in the loss is 1 for a mean",
    needs=("Wiring", "Targets"),
    check=check,
    explains=(
        "learning-rate-too-high",
        "learning-rate-too-low",
        "non-finite",
        "loss-spikes",
        "labels-shuffled",
        "underfitting",
        "stalled",
        "dead-units",
        "dormant-units",
        "saturated-activations",
    ),
)
