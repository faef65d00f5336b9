"""CP203: parameters that are kept from being trained."""

from __future__ import annotations

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign


def check(run: Record) -> Sign | NotKnown | None:
    """Look for parameters with ``requires_grad=False`` beside trained ones."""
    coverage = run.settings.get("coverage")
    if not isinstance(coverage, dict) or "frozen" not in coverage:
        return NotKnown("the cockpit was given parameters and not the model; give the model")
    frozen = coverage["frozen"]
    if not frozen:
        return None
    first = run.curve("Loss")
    step = 0 if first is None or not len(first.steps) else int(first.steps[0])
    # Most who freeze parameters mean it.
    evidence = {"frozen": len(frozen), "trained": int(coverage.get("trained", 0))}
    return Sign(step, tuple(map(str, frozen)), evidence, 0.3)


RULE = Rule(
    code="CP203",
    name="frozen-parameters",
    severity="note",
    title="Parameters are frozen",
    why="They have requires_grad=False, so they stay what they are.",
    action="Nothing, if that is meant, as in fine-tuning. If not, call requires_grad_(True) on them "
    "before the optimizer and the cockpit are made.",
    source="definition: requires_grad=False when the cockpit was made",
    needs=(),
    check=check,
    explains=("underfitting", "labels-shuffled", "learning-rate-too-low"),
)
