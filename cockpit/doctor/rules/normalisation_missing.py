"""CP608: a deep network without normalisation."""

from __future__ import annotations

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_layers import at_first

DEEP = 8
"""Linear layers and convolutions from which on a network is deep: those of ten years ago that trained without
normalisation or shortcuts had as many. With one in eight of these it is as good as without."""


def check(run: Record) -> Sign | NotKnown | None:
    """Count layers with weights and layers that normalise."""
    curves = run.curves("Wiring", "layers/gain")
    layers = at_first(curves)
    norms = run.curve("Wiring", "norms/count")
    if not layers or norms is None:
        return NotKnown("the layers were not seen; give the cockpit the model")
    count = int(norms.values[0])
    if len(layers) < DEEP * (count + 1):
        return None
    step = min(int(curve.steps[0]) for curve in curves.values())
    evidence = {"linear layers and convolutions": len(layers), "normalisation layers": count}
    title = "A deep network has hardly any normalisation layers" if count else None
    return Sign(step, (), evidence, 0.5, title)


RULE = Rule(
    code="CP608",
    name="normalisation-missing",
    severity="note",
    title="A deep network has no normalisation layer",
    why="Without them, the size of signals and gradients is left to the initialisation and drifts with every "
    "step: deep networks take small learning rates then, and fail more easily.",
    action="Add nn.BatchNorm2d after convolutions, or nn.LayerNorm at the start of residual branches. Nothing, "
    "if the initialisation is made for a network without, as Fixup is, or if you normalise in a function.",
    source='Ioffe & Szegedy (2015), "Batch Normalization"; Zhang, Dauphin & Ma (2019), "Fixup Initialization"',
    needs=("Wiring",),
    check=check,
    explains=("labels-shuffled", "underfitting"),
)
