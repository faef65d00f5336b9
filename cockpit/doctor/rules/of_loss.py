"""What rules about the loss have in common."""

from __future__ import annotations

from cockpit.doctor.record import Record


def fact(run: Record, name: str) -> int | None:
    """Return the first step at which something was seen in the graph of the loss; None where it was not."""
    curve = run.curve("Wiring", f"loss/{name}")
    if curve is None or not (curve.values == 1).any():
        return None
    return int(curve.steps[curve.values == 1][0])
