"""CP605: sigmoids and tanhs at the ends of their range."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_layers import NOTHING_IS_LEARNED, lasting

AT_FIRST, LATER = 0.5, 0.9
"""Of a module's values, with less than a tenth of the slope left. The usual initialisations begin with next to
none; trainings of tanh networks that go well were seen to end with 0.8 in their first layer."""

LEAST = 3
"""Tracked steps in a row."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for saturated modules before the last one: what ends in a sigmoid may be sure of itself."""
    modules = list(run.curves("ActivationStats", "rms"))
    shares = run.curves("ActivationStats", "saturated")
    if not shares:
        return NotKnown("there is no nn.Sigmoid and no nn.Tanh, of which alone saturation is known")
    inner = {name: curve for name, curve in shares.items() if name != modules[-1]}
    found = lasting(inner, _saturated, LEAST)
    if found is None:
        return None
    step, places = found
    worst = {name: float(shares[name].values[place]) for name, place in places.items()}
    names = sorted(worst, key=lambda name: -worst[name])
    evidence = {"share of saturated values": worst[names[0]], "modules": len(names)}
    return Sign(step, tuple(names), evidence, 0.9)


def _saturated(shares: np.ndarray) -> np.ndarray:
    """Return at which steps a module is saturated, `[n]`."""
    from_the_start = np.logical_and.accumulate(shares > AT_FIRST)
    saturated: np.ndarray = from_the_start | (shares > LATER)
    return saturated


RULE = Rule(
    code="CP605",
    name="saturated-activations",
    severity="warning",
    title="Activations are saturated",
    why="At the ends of its range a sigmoid or tanh has next to no slope: no gradient passes, and what lies "
    "before it learns nothing.",
    action="Initialise the layer before it with smaller weights, scale the inputs, lower the learning rate, or "
    "normalise before the activation.",
    source='Glorot & Bengio (2010), "Understanding the difficulty of training deep feedforward neural networks"',
    needs=("ActivationStats",),
    check=check,
    least=LEAST,
    explains=(*NOTHING_IS_LEARNED, "vanishing-gradients"),
    spreads=True,
    instrument="activation-saturated",
)
