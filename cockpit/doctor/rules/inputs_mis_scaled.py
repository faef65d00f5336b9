"""CP402: data with an offset, with one feature that drowns the others, or next to nothing in all."""

from __future__ import annotations

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_layers import NOTHING_IS_LEARNED

OFFSET = 4.0
"""Mean in units of the deviation. Images from 0 to 1, which train well, have about 1."""

TINY = 0.02
"""Root mean square. Beside a usual bias it is next to nothing: what tells the samples apart is drowned in what is the
same for all. Images from 0 to 1 have 0.3 to 0.6, of handwriting 0.3."""

SHARE = 0.67
"""Of one feature or channel in the sum of all squares: twice as much as all others together."""

FEATURES = 4
"""Without so many, such as in a picture, the share of one of them says little."""


def check(run: Record) -> Sign | NotKnown | None:
    """Compare the mean of the data with their deviation, and the largest feature with all of them."""
    means, sizes = run.curves("Wiring", "data/mean"), run.curves("Wiring", "data/rms")
    if not sizes:
        return NotKnown("no linear layer or convolution was seen that is given floating-point data")
    shapes = {one.name: one.shape for one in run.parameters}
    shares = run.curves("Wiring", "data/largest_share")
    for layer, size in sizes.items():
        mean, rms = float(means[layer].values[0]), float(size.values[0])
        deviation = max(rms**2 - mean**2, 0.0) ** 0.5
        step = int(size.steps[0])
        if 0 < rms < TINY and layer == next(iter(sizes)):
            evidence = {"root mean square": rms}
            return Sign(step, (layer,), evidence, 0.85, "The inputs are tiny")
        if abs(mean) > OFFSET * deviation > 0:
            evidence = {"mean": mean, "standard deviation": deviation}
            return Sign(step, (layer,), evidence, 0.85, "The inputs have a large offset")
        inputs = shapes.get(f"{layer}.weight", (0, 0))[1]
        share = float(shares[layer].values[0]) if layer in shares else 0.0
        if inputs >= FEATURES and share > SHARE:
            evidence = {"share of the largest feature in the squares": share, "features": inputs}
            return Sign(
                step, (layer,), evidence, 0.85, "One feature of the inputs drowns the others"
            )
    return None


RULE = Rule(
    code="CP402",
    name="inputs-mis-scaled",
    severity="warning",
    title="The inputs are badly scaled",
    why="The curvature of the first layer's loss is that of the inputs' squares: along an offset, or along one "
    "large feature, only small learning rates are stable, and along all others these hardly move.",
    action="Subtract the mean of the training set from every feature or channel, and divide each by its own "
    "standard deviation; look for a division that is done twice.",
    source='LeCun, Bottou, Orr & Müller (1998), "Efficient BackProp", section 4.3',
    needs=("Wiring",),
    check=check,
    explains=(
        *NOTHING_IS_LEARNED,
        "learning-rate-too-high",
        "inputs-not-scaled",
        "initial-loss",
        "vanishing-gradients",
        "exploding-gradients",
        "saturated-activations",
        "dead-units",
        "non-finite",
    ),
    spreads=True,
    instrument="activation-scale",
)
