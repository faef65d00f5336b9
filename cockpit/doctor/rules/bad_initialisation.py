"""CP606: layers whose weights begin at another scale than the usual initialisations have."""

from __future__ import annotations

import math

import numpy as np

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_layers import NOTHING_IS_LEARNED, at_first

LOW, HIGH = 0.08, 2.8
"""By which the layer in the middle may scale what it is given. PyTorch's own initialisation has 0.58, Xavier's 1,
Kaiming's 1.41, and that of GPT-2 has 0.16 for a width of 64; this is twice as far on both sides."""

APART = 15.0
"""How many times more or less than the layer in the middle a single one has to have. GPT-2's initialisation has
layers that are 7 times apart at a depth of 48; with 10 times, small networks were still seen to train as well."""

OFFSET, INPUTS = 0.5, 16
"""Mean of the weights of a unit over their root mean square, and inputs without which it may be chance. Random numbers
around 0 have 0.2 for 16 inputs; those between 0 and 1 have 0.87."""


def check(run: Record) -> Sign | NotKnown | None:
    """Compare the gains of the layers with the usual ones, and with each other."""
    gains = at_first(run.curves("Wiring", "layers/gain"))
    if not gains:
        return NotKnown("no linear layer or convolution was seen; give the cockpit the model")
    last = list(gains)[-1]
    # A last layer that begins small is good practice, and branches may begin at 0.
    small = {name for name, gain in gains.items() if gain == 0 or name == last}
    middle = float(np.median([gain for gain in gains.values() if gain > 0] or [1.0]))
    as_a_whole = not LOW < middle < HIGH
    usual = (LOW * HIGH) ** 0.5 if as_a_whole else middle
    off = {
        name: abs(np.log(gain / usual))
        for name, gain in gains.items()
        if gain > (HIGH if as_a_whole else usual * APART)
        or (name not in small and gain < (LOW if as_a_whole else usual / APART))
    }
    if not off:
        return _of_one_sign(run)
    names = sorted(off, key=lambda name: -off[name])
    step = int(run.curves("Wiring", "layers/gain")[names[0]].steps[0])
    evidence = {
        "gain of the layer": gains[names[0]],
        "gain of the layer in the middle": middle,
        "layers": len(names),
        "of": len(gains),
    }
    return Sign(step, tuple(names), evidence, 0.9)


def _of_one_sign(run: Record) -> Sign | None:
    """Look for inner layers whose weights do not begin around 0: whatever their inputs have in common grows."""
    offsets = at_first(run.curves("Wiring", "layers/offset"))
    shapes = {one.name.removesuffix(".weight"): one.shape for one in run.parameters}
    wide = [n for n in offsets if math.prod(shapes.get(n, (0, 0))[1:]) >= INPUTS]
    found = sorted((n for n in wide if offsets[n] > OFFSET), key=lambda n: -offsets[n])
    if not found:
        return None
    step = int(run.curves("Wiring", "layers/offset")[found[0]].steps[0])
    evidence = {
        "mean of the weights over their root mean square": offsets[found[0]],
        "layers": len(found),
    }
    title = "Weights do not begin around 0"
    return Sign(step, tuple(found), evidence, 0.85, title)


RULE = Rule(
    code="CP606",
    name="bad-initialisation",
    severity="warning",
    title="Weights begin at a scale that signals do not survive",
    why="Each layer multiplies signals and gradients by its gain, the root mean square norm of a unit's "
    "weights. Where that is far from 1, they vanish or explode with depth, activations saturate, and the "
    "first loss is far off.",
    action="Initialise with nn.init.kaiming_normal_ (ReLU) or xavier_normal_ (tanh), and look for a factor that "
    "is applied twice, or a standard deviation that does not go with the number of inputs.",
    source='He, Zhang, Ren & Sun (2015), "Delving Deep into Rectifiers", section 2.2',
    needs=("Wiring",),
    check=check,
    explains=(
        *NOTHING_IS_LEARNED,
        "learning-rate-too-high",
        "vanishing-gradients",
        "exploding-gradients",
        "saturated-activations",
        "dead-units",
        "dormant-units",
        "initial-loss",
        "non-finite",
    ),
    spreads=True,
    instrument="activation-scale",
)
