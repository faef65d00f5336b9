"""CP105: clipping that never does anything."""

from __future__ import annotations

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import aligned

LEAST = 15
"""Tracked steps, at all of which the gradient was written to and stayed what it was."""

ROUNDING = 1e-4
"""Relative difference of two norms that are the same: sums of millions of numbers of single precision."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for gradients that are multiplied by 1 before the optimizer gets them."""
    before, after = run.curve("Clipping", "before"), run.curve("Clipping", "after")
    written = run.curve("Clipping", "written")
    if before is None or after is None or written is None:
        return NotKnown("the gradients that the optimizer got were not seen")
    steps, (own, got, times) = aligned(before, after, written)
    if len(steps) < LEAST:
        return NotKnown(f"it takes {LEAST} tracked steps, and there are {len(steps)}")
    own, got, times = own[:LEAST], got[:LEAST], times[:LEAST]
    if not times.all() or (abs(got - own) > ROUNDING * own).any():
        return None
    evidence = {"largest norm of the gradient": float(own.max()), "steps": LEAST}
    return Sign(int(steps[LEAST - 1]), (), evidence, 0.7)


RULE = Rule(
    code="CP105",
    name="clipping-never",
    severity="note",
    title="Gradients are clipped, and no one has been long enough",
    why="The threshold is above every norm so far. It may be meant for emergencies; if it is far above, it will not "
    "help in one.",
    action="Compare the threshold with the norms: two to ten times their median catches exceptions.",
    source="Pascanu, Mikolov & Bengio (2013), arXiv:1211.5063, section 3.2: the threshold from the average norm",
    needs=("Clipping",),
    check=check,
    least=LEAST,
    instrument="grad-norm",
)
