"""CP602: what comes back to the first layers is many times what comes back to the last ones."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_layers import NOTHING_IS_LEARNED, error_signals

TIMES = 10.0
"""How many times the signal that comes back to the last layer. Networks that train begin below 1.5, and nine ReLU
layers of twice the usual gain with 25."""


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
    times = np.nan_to_num(values[:, 0] / values[-1, 0], posinf=0.0)
    order = [k for k in np.argsort(-times) if times[k] > TIMES]
    if not order:
        return None
    evidence = {
        "times the signal at the last layer": float(times[order[0]]),
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
