"""CP611: attention logits that grow."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_layers import held

LARGE, TIMES = 30.0, 4.0
"""Largest logit, and what that is of the first one. Healthy small language models were seen to reach 19."""

SPREAD = 0.3
"""Of the entropy that there could be: that the logits are large does no harm while attention chooses softly. Below, it
may do none either, which makes this a note: at three times their best rate, small language models were seen at 0.07
with logits of 400, and trained well. That attention has collapsed is a finding of its own."""

LEAST = 3
"""Tracked steps in a row."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for layers whose logits have grown and whose attention has become hard by that."""
    logits = run.curves("AttentionStats", "largest_logit")
    spreads = run.curves("AttentionStats", "spread")
    if not logits:
        return NotKnown("no attention logits were seen; track AttentionStats")
    found = {
        name: place
        for name, curve in logits.items()
        if name in spreads
        and len(spreads[name].steps) == len(curve.steps)
        and (place := held(_hard(curve.values, spreads[name].values), LEAST)) is not None
    }
    if not found:
        return None
    largest = {name: float(logits[name].values[place]) for name, place in found.items()}
    names = sorted(largest, key=lambda name: -largest[name])
    evidence = {
        "largest logit": largest[names[0]],
        "at first": float(logits[names[0]].values[0]),
        "modules": len(names),
    }
    step = min(int(logits[name].steps[place]) for name, place in found.items())
    return Sign(step, tuple(names), evidence, 0.85)


def _hard(logits: np.ndarray, spreads: np.ndarray) -> np.ndarray:
    """Return at which steps the attention of a layer has become hard, `[n]`."""
    grown = (logits > LARGE) & (logits > TIMES * logits[:1])
    hard: np.ndarray = grown & (spreads < SPREAD)
    return hard


RULE = Rule(
    code="CP611",
    name="attention-logit-growth",
    severity="note",
    title="Attention logits have grown, and attention is hard",
    why="The softmax becomes hard and its gradient vanishes; in low precision the logits lose their digits. "
    "It often goes before a loss that diverges.",
    action="Lower the learning rate of queries and keys, normalise both before their product, or put weight "
    "decay on their projections.",
    source='Dehghani et al. (2023), "Scaling Vision Transformers to 22 Billion Parameters", section 2.2',
    needs=(),
    check=check,
    least=LEAST,
    instrument="attention-logits",
)
