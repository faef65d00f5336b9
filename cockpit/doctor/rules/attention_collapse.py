"""CP610: attention that looks at one key only."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_layers import LEAST, NOTHING_IS_LEARNED, from_the_start, lasting

AT_FIRST, LATER = 0.1, 0.03
"""Of the entropy that there could be, in the mean over the heads: 1.4 keys of 32, and 1.1. The usual initialisations
begin above 0.9; small language models that train well at a high rate were seen to end with 0.065 in a layer."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for layers whose attention has lost its entropy."""
    spreads = run.curves("AttentionStats", "spread")
    if not spreads:
        return NotKnown("no attention weights were seen; track AttentionStats")
    found = lasting(spreads, _collapsed)
    if found is None:
        return None
    step, places = found
    worst = {name: float(spreads[name].values[place]) for name, place in places.items()}
    names = sorted(worst, key=lambda name: worst[name])
    evidence = {"entropy over the largest possible one": worst[names[0]], "modules": len(names)}
    return Sign(step, tuple(names), evidence, 0.85)


def _collapsed(spreads: np.ndarray) -> np.ndarray:
    """Return at which steps the attention of a layer has collapsed, `[n]`."""
    return from_the_start(spreads < AT_FIRST) | (spreads < LATER)


RULE = Rule(
    code="CP610",
    name="attention-entropy-collapse",
    severity="warning",
    title="Attention has collapsed: every query looks at a single key",
    why="A softmax that is all but hard passes next to no gradient to queries and keys, and so it stays; in "
    "training it often goes before a loss that diverges.",
    action="Lower the learning rate or warm it up for longer, normalise queries and keys, and look at the "
    "initialisation of their projections and at the factor 1/√d.",
    source='Zhai et al. (2023), "Stabilizing Transformer Training by Preventing Attention Entropy Collapse"',
    needs=(),
    check=check,
    least=LEAST,
    explains=("attention-logit-growth", *NOTHING_IS_LEARNED),
    instrument="attention-entropy",
)
