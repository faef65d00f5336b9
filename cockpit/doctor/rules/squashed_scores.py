"""CP303: scores that cannot take all values."""

from __future__ import annotations

from cockpit.doctor.record import Record
from cockpit.doctor.rule import Rule, Sign
from cockpit.doctor.rules.of_course import SYMPTOMS
from cockpit.doctor.rules.of_loss import above, fact

TIGHT = 0.1
"""Least loss that the bound leaves, over that of a blind guess. Scores between -1 and 1 have 0.35 for ten classes;
bounds that are meant, such as 30 tanh(x / 30) or cosines over a temperature of 0.1, have next to none."""

KINDS = {"tanh": "tanh", "relu": "relu", "activation": "an activation"}


def check(run: Record) -> Sign | None:
    """Look for an activation between the last layer and the loss, and for bounds that keep scores from being sure."""
    if any(fact(run, f"after_{kind}") is not None for kind in ("softmax", "sigmoid", "norm")):
        return None  # rules of their own
    for kind, name in KINDS.items():
        step = fact(run, f"after_{kind}")
        if step is not None:
            return Sign(step, (), {"operation before the loss": name}, 0.8)
    least = above(run, "least", TIGHT)
    if least is None:
        return None
    evidence = {"least loss that is possible, over that of a blind guess": least[1]}
    title = "The scores are bounded: no prediction can become sure"
    return Sign(least[0], (), evidence, 0.8, title)


RULE = Rule(
    code="CP303",
    name="squashed-scores",
    severity="warning",
    title="An activation lies between the last layer and the loss",
    why="Scores of classes are meant to take all values. ReLU cuts off those below 0, and their gradient "
    "with them; tanh, clamp and cosines keep all between -1 and 1, so that no prediction can become sure.",
    action="Leave out the activation after the last layer. Where the bound is meant, multiply with a factor of 10 or "
    "more.",
    source="PyTorch documentation of CrossEntropyLoss, which takes unnormalised scores",
    needs=("Wiring",),
    check=check,
    explains=(*SYMPTOMS, "initial-loss"),
)
