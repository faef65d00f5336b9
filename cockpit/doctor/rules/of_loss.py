"""What rules about the loss have in common."""

from __future__ import annotations

from cockpit.doctor.record import Record


def above(run: Record, name: str, limit: float) -> tuple[int, float] | None:
    """Return the first step at which a number of the loss's graph was above a limit, and the number."""
    curve = run.curve("Wiring", f"loss/{name}")
    if curve is None or not (curve.values > limit).any():
        return None
    place = int((curve.values > limit).argmax())
    return int(curve.steps[place]), float(curve.values[place])


def fact(run: Record, name: str) -> int | None:
    """Return the first step at which something was seen in the graph of the loss; None where it was not."""
    found = above(run, name, 0.5)
    return None if found is None else found[0]
