"""CP601: what comes back to the first layers is nothing beside what comes back to the last ones."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_layers import (
    NOTHING_IS_LEARNED,
    error_signals,
    from_the_start,
    held,
)

LEFT = 1e-3
"""What is left of the signal on its way back. Networks that train have more than 0.02 of it in every layer, and
with the usual initialisation ten layers of tanh have 0.01; eight sigmoids leave 1e-6."""

AT_FIRST, BY_OTHERS = 3, 0.05
"""Tracked steps from the first one on that are enough where no single layer takes it all: what the others leave of it.
Units of the last layers then seem dead, since no signal reaches them either."""


def check(run: Record) -> Sign | NotKnown | None:
    """Compare the signal that comes back to each layer with the largest one that comes back to a later layer."""
    table = error_signals(run)
    if table is None:
        return NotKnown(
            "the gradients and inputs of two layers or more are not known; give the model"
        )
    steps, names, values = table
    later = np.fmax.accumulate(values[::-1], axis=0)[::-1]  # of it and those after it
    left = values / later  # NaN where nothing comes back at all, which has other causes
    vanishes = np.any(left < LEFT, axis=0)
    steepest = np.nanmin(values[:-1] / values[1:], axis=0, initial=1.0)
    by_depth = from_the_start(np.nanmin(left, axis=0, initial=1.0) < BY_OTHERS * steepest)
    places = [p for p in (held(vanishes), held(vanishes & by_depth, AT_FIRST)) if p is not None]
    if not places:
        return None
    place = min(places)
    now = left[:, place]
    order = [k for k in np.argsort(now) if now[k] < LEFT]
    evidence = {
        "signal left of what comes back to a later layer": float(now[order[0]]),
        "layers": len(order),
        "of": len(names),
    }
    return Sign(int(steps[place]), tuple(names[k] for k in order), evidence, 0.9)


RULE = Rule(
    code="CP601",
    name="vanishing-gradients",
    severity="warning",
    title="Gradients vanish on their way back: the first layers learn nothing",
    why="The layers before are as they were initialised, whatever the data, and those after work on what "
    "these random layers let through.",
    action="Use ReLU or GELU in the place of sigmoid and tanh between layers, initialise weights so that "
    "signals keep their size (nn.init.kaiming_normal_), and add shortcuts or normalisation layers.",
    source='Glorot & Bengio (2010), "Understanding the difficulty of training deep feedforward neural networks"',
    needs=("GradNorm", "Wiring"),
    check=check,
    least=AT_FIRST,
    explains=(*NOTHING_IS_LEARNED, "dead-units"),
    spreads=True,
    instrument="grad-norm-layers",
)
