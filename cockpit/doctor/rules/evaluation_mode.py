"""CP208: training in evaluation mode."""

from __future__ import annotations

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import SYMPTOMS


def check(run: Record) -> Sign | NotKnown | None:
    """Look for steps at which the whole model was in evaluation mode, where that matters."""
    training = run.curve("Wiring", "modes/training")
    matter = run.curve("Wiring", "modes/matter")
    evaluating = run.curve("Wiring", "modes/evaluating")
    if training is None or matter is None or evaluating is None:
        return NotKnown("the model was not seen in its forward pass; give the cockpit the model")
    # Single layers in evaluation mode are meant: batch normalisation that is frozen.
    wrong = (training.values == 0) & (matter.values > 0) & (evaluating.values == matter.values)
    if not wrong.any():
        return None
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


RULE = Rule(
    code="CP208",
    name="evaluation-mode",
    severity="warning",
    title="The model is trained in evaluation mode",
    why="Dropout does nothing, and batch normalisation neither uses nor updates the statistics of the "
    "batch: the training is not the one that the layers are there for.",
    action="Call model.train() before the training steps, also after every evaluation.",
    source="PyTorch documentation of Module.train and Module.eval",
    needs=("Wiring",),
    check=check,
    explains=(*SYMPTOMS, "overfitting"),
)
