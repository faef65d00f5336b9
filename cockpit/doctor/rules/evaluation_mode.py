"""CP208: training in evaluation mode."""

from __future__ import annotations

from cockpit.doctor.record import Curve, Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import SYMPTOMS


def check(run: Record) -> Sign | NotKnown | None:
    """Look for steps at which the whole model was in evaluation mode, where that matters."""
    training = run.curve("Wiring", "modes/training")
    matter = run.curve("Wiring", "modes/matter")
    evaluating = run.curve("Wiring", "modes/evaluating")
    if training is None or matter is None or evaluating is None:
        return NotKnown("the model was not seen in its forward pass; give the cockpit the model")
    # Batch normalisation whose statistics are known may be frozen: that is meant, and not counted.
    partly = run.curves("Wiring", "modes/evaluated")
    wrong = (training.values == 0) & (matter.values > 0) & (evaluating.values == matter.values)
    if not wrong.any():
        return _of_parts(partly)
    step = int(training.steps[wrong][0])
    count = int(matter.values[wrong][0])
    evidence = {
        "layers that go by the mode": count,
        "tracked steps in evaluation mode": int(wrong.sum()),
        "of": len(wrong),
    }
    title = None
    if step > training.steps[0]:
        title = "From some step on the model is trained in evaluation mode"
    return Sign(step, (), evidence, 0.9, title)


def _of_parts(partly: dict[str, Curve]) -> Sign | None:
    """Look for trained parts in evaluation mode, within a model that is not."""
    found = {name: curve for name, curve in partly.items() if (curve.values > 0).any()}
    if not found:
        return None
    step = min(int(curve.steps[curve.values > 0][0]) for curve in found.values())
    # A part and what it contains, which is evaluated with it: the part is named first.
    names = sorted(found, key=lambda name: name.count("."))
    title = "A part of the model is trained in evaluation mode"
    return Sign(step, tuple(names), {"parts": len(names)}, 0.7, title)


RULE = Rule(
    code="CP208",
    name="evaluation-mode",
    severity="warning",
    title="The model is trained in evaluation mode",
    why="Dropout does nothing, and batch normalisation neither uses nor updates the statistics of the "
    "batch: the training is not the one that the layers are there for.",
    action="Call model.train() before the training steps, also after every evaluation. Where only a part is to be "
    "kept as it is, freeze its parameters as well: requires_grad_(False).",
    source="PyTorch documentation of Module.train and Module.eval",
    needs=("Wiring",),
    check=check,
    explains=(
        *SYMPTOMS,
        "overfitting",
        "dead-units",
        "dormant-units",
        "vanishing-gradients",
        "non-finite",
    ),
    spreads=True,
)
