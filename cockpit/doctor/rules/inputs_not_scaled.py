"""CP401: data as they came from the file."""

from __future__ import annotations

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import SYMPTOMS

LARGE = 10.0
"""Root mean square of inputs. Initialisations are made for 1."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for layers that are given data of a large scale."""
    sizes = run.curves("Wiring", "data/rms")
    if not sizes:
        return NotKnown("no linear layer or convolution was seen that is given floating-point data")
    low, high = run.curves("Wiring", "data/min"), run.curves("Wiring", "data/max")
    first = {name: float(curve.values[0]) for name, curve in sizes.items()}
    large = sorted((n for n, rms in first.items() if rms > LARGE), key=lambda n: -first[n])
    if not large:
        return None
    worst = large[0]
    least, most = float(low[worst].values[0]), float(high[worst].values[0])
    bytes_ = least >= 0 and 64 < most <= 255
    evidence = {"root mean square": first[worst], "smallest": least, "largest": most}
    title = "The inputs are not scaled: they look like bytes, 0 to 255" if bytes_ else None
    step = int(sizes[worst].steps[0])
    return Sign(step, tuple(large), evidence, 0.95 if bytes_ else 0.6, title)


RULE = Rule(
    code="CP401",
    name="inputs-not-scaled",
    severity="warning",
    title="The inputs are not scaled",
    why="Initialisations and learning rates are made for inputs of about unit size. With larger ones "
    "activations, gradients and curvature grow with them, and only tiny learning rates are stable.",
    action="Subtract the mean of the training set from every feature or channel and divide by the standard "
    "deviation; or at least divide bytes by 255.",
    source='LeCun, Bottou, Orr & Müller (1998), "Efficient BackProp", section 4.3',
    needs=("Wiring",),
    check=check,
    explains=(*SYMPTOMS, "initial-loss", "non-finite", "dead-units", "saturated-activations"),
    spreads=True,
    instrument="activation-scale",
)
