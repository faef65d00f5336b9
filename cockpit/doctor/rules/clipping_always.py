"""CP104: every gradient is clipped."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import aligned

LEAST = 10
"""Tracked steps, all with a gradient that was clipped."""

EQUAL, NEARLY = 1e-3, 0.1
"""How much the norm or the largest element differs between steps after clipping: not at all, but for rounding; and the
norm where each parameter is clipped by itself, some of which may be short enough now and then."""

EVENED = 4.0
"""Times as much that the norm differed before, where it is nearly the same."""

FACTOR = 3.0
"""By which the gradient in the middle is shortened. Less is what clipping is for."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for gradients that the optimizer gets with the same norm at every step."""
    before, after = run.curve("Clipping", "before"), run.curve("Clipping", "after")
    largest = run.curve("Clipping", "largest")
    if before is None or after is None:
        return NotKnown("the gradients that the optimizer got were not seen")
    if largest is None:
        return None  # nothing has written to a gradient
    steps, (own, got, element) = aligned(before, after, largest)
    if len(steps) < LEAST:
        return NotKnown(f"it takes {LEAST} tracked steps, and there are {len(steps)}")
    own, got, element = own[:LEAST], got[:LEAST], element[:LEAST]
    shortened = float(np.median(own / np.where(got > 0, got, np.inf)))
    kind = next((n for n, v in (("norm", got), ("element", element)) if _spread(v) <= EQUAL), None)
    if kind is None and _spread(got) < min(NEARLY, _spread(own) / EVENED):
        kind = "norm"
    if kind is None or shortened < FACTOR or (own <= got).any():
        return None
    evidence = {
        "clipped to": f"a {kind} of {float((got if kind == 'norm' else element)[0]):.3g}",
        "norm of the gradient before": [float(np.min(own)), float(np.max(own))],
        "shortened by a factor of": shortened,
    }
    return Sign(int(steps[LEAST - 1]), (), evidence, 0.9)


def _spread(values: np.ndarray) -> float:
    """Return how far values are apart, relative to the largest one."""
    return float(np.ptp(values) / max(float(np.max(values)), 1e-300))


RULE = Rule(
    code="CP104",
    name="clipping-always",
    severity="warning",
    title="Every gradient is clipped",
    why="All steps get gradients of the same length, however steep the loss is: the threshold sets the step size, "
    "and the learning rate does not mean what it says.",
    action="Set the threshold above the usual norm of the gradient, two to ten times the median, so that it catches "
    "the exceptions; then find the learning rate anew.",
    source="Pascanu, Mikolov & Bengio (2013), arXiv:1211.5063, section 3.2: the threshold from the average norm",
    needs=("Clipping",),
    check=check,
    least=LEAST,
    explains=("learning-rate-too-low", "stalled", "underfitting"),
    instrument="grad-norm",
)
