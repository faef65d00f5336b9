"""CP607: units that begin with the same weights."""

from __future__ import annotations

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_layers import NOTHING_IS_LEARNED, at_first

SHARE = 0.5
"""Of a layer's units, that have the weights of another one. Random weights have none."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for layers before the last one with twins; those of the last one have targets that differ."""
    curves = run.curves("Wiring", "layers/twins")
    if not curves:
        return NotKnown("no linear layer or convolution was seen; give the cockpit the model")
    twins = at_first(curves)
    last = list(twins)[-1]
    found = {name: share for name, share in twins.items() if share > SHARE and name != last}
    if not found:
        return None
    names = sorted(found, key=lambda name: -found[name])
    evidence = {"share of units with the weights of another one": found[names[0]]}
    return Sign(int(curves[names[0]].steps[0]), tuple(names), evidence, 0.95)


RULE = Rule(
    code="CP607",
    name="symmetric-units",
    severity="warning",
    title="Units of a layer begin with the same weights",
    why="Units that are equal compute the same, and where they also have the same part in what follows, they "
    "get the same gradient and stay equal: the layer works as if it had a single unit.",
    action="Draw the weights at random (nn.init.kaiming_normal_); constants are for biases.",
    source='Goodfellow, Bengio & Courville (2016), "Deep Learning", section 8.4',
    needs=("Wiring",),
    check=check,
    explains=(
        *NOTHING_IS_LEARNED,
        "learning-rate-too-high",
        "bad-initialisation",
        "vanishing-gradients",
        "exploding-gradients",
        "dead-units",
        "dormant-units",
    ),
    spreads=True,
)
