"""CP603: units that are silent on every sample."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_layers import (
    FEW,
    NOTHING_IS_LEARNED,
    at_first,
    few_samples,
    from_the_start,
    lasting,
    layer_of,
    units_of,
)

AT_FIRST, LATER = 0.5, 0.9
"""Of the units of a layer. Trainings that go well begin with 0.23 at most, and were seen to end with 0.64: some units
are of use for few samples only, and a batch need not have one of these."""

UNITS = 8
"""Without so many in a layer, all of them may begin dead by chance: it is the layer that is too small."""

GAIN = 0.3
"""Of the layer before, half of what PyTorch's own initialisation has: below, its bias is what decides, and units that
are silent are so because no signal reaches them, not because they have died."""

LEAST = 3
"""Tracked steps in a row."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for activations most of whose units are zero throughout."""
    shares = run.curves("ActivationStats", "dead")
    if not shares:
        return NotKnown(
            "the outputs of modules were not seen; track ActivationStats, give the model"
        )
    if few_samples(run):
        return NotKnown(FEW)
    wide = {
        name: curve for name, curve in shares.items() if (units_of(run, name) or UNITS) >= UNITS
    }
    gains = at_first(run.curves("Wiring", "layers/gain"))
    reached = {n: c for n, c in wide.items() if gains.get(layer_of(run, n) or n, np.inf) > GAIN}
    at_once, later = (
        lasting(curves, holds, LEAST) for curves, holds in ((reached, _dead), (wide, _died))
    )
    found = at_once or later
    if found is None:
        return None
    step, places = found
    worst = {name: float(shares[name].values[place]) for name, place in places.items()}
    # Of those that are about as bad, the one that comes first: what follows a dead layer dies with it.
    names = sorted(worst, key=lambda name: -round(worst[name], 1))
    evidence = {"share of units that are zero": worst[names[0]], "modules": len(names)}
    title = "All units of a layer are dead" if worst[names[0]] == 1 else None
    return Sign(step, tuple(names), evidence, 0.85 if title else 0.8, title)


def _dead(shares: np.ndarray) -> np.ndarray:
    """Return at which steps most units of a module are dead, `[n]`."""
    return from_the_start(shares > AT_FIRST) | _died(shares)


def _died(shares: np.ndarray) -> np.ndarray:
    """Return at which steps as good as all units of a module are dead, `[n]`."""
    return shares > LATER


RULE = Rule(
    code="CP603",
    name="dead-units",
    severity="warning",
    title="Most units are dead",
    why="A unit that is zero on every sample passes no gradient on, so that it stays dead: capacity that is "
    "lost, and where all units of a layer are dead, nothing before it learns any more.",
    action="Look at the biases, which may be far below 0, and lower the learning rate, a large step being what "
    "kills units; begin again from a checkpoint from before. LeakyReLU and GELU do not die.",
    source='Maas, Hannun & Ng (2013), "Rectifier Nonlinearities Improve Neural Network Acoustic Models"',
    needs=("ActivationStats",),
    check=check,
    least=LEAST,
    explains=(*NOTHING_IS_LEARNED, "no-gradient", "vanishing-gradients", "dormant-units"),
    spreads=True,
    instrument="activation-zeros",
)
