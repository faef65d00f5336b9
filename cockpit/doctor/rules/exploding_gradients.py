"""CP602: what comes back to the first layers is many times what comes back to the last ones."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_layers import NOTHING_IS_LEARNED, error_signals

TIMES = 10.0
"""How many times the signal that comes back to the last layer. Networks that train begin below 1.5, and nine ReLU
layers of twice the usual gain with 25."""

GROWN = 12.0
"""How many times the signal that comes back to a later layer before the last one, whose own weights may be small.
Networks that train begin below 7.5."""

BY_OTHERS = 3.0
"""Of that, what all layers make of it but the one that makes most: a single one has causes of its own."""


def check(run: Record) -> Sign | NotKnown | None:
    """Compare the signals that come back to the layers at first with that of the last one.

    Later on gradients explode for other reasons, such as a learning rate that is too high.
    """
    table = error_signals(run)
    if table is None:
        return NotKnown(
            "the gradients and inputs of two layers or more are not known; give the model"
        )
    steps, names, values = table
    first = values[:, 0]
    hidden = np.append(first[:-1], np.nan)  # the last layer apart
    later = np.fmin.accumulate(hidden[::-1])[::-1]
    times, grown = (np.nan_to_num(first / one, posinf=0.0) for one in (first[-1], later))
    most_of_one = np.nanmax(hidden[:-1] / hidden[1:], initial=1.0)
    grown = np.where(grown > BY_OTHERS * most_of_one, grown, 0.0)
    of_last = bool((times > TIMES).any())
    most, limit = (times, TIMES) if of_last else (grown, GROWN)
    order = [k for k in np.argsort(-most) if most[k] > limit]
    if not order:
        return None
    evidence = {
        f"times the signal at {'the last' if of_last else 'a later'} layer": float(most[order[0]]),
        "layers": len(order),
        "of": len(names),
    }
    return Sign(int(steps[0]), tuple(names[k] for k in order), evidence, 0.85)


RULE = Rule(
    code="CP602",
    name="exploding-gradients",
    severity="warning",
    title="Gradients explode on their way back",
    why="No learning rate fits all layers: what moves the last ones throws the first ones about.",
    action="Initialise weights so that signals keep their size (nn.init.kaiming_normal_ or xavier), add "
    "normalisation layers, and clip the gradient.",
    source='Pascanu, Mikolov & Bengio (2013), "On the difficulty of training recurrent neural networks"',
    needs=("GradNorm", "Wiring"),
    check=check,
    explains=(*NOTHING_IS_LEARNED, "learning-rate-too-high", "non-finite", "initial-loss"),
    spreads=True,
    instrument="grad-norm-layers",
)
