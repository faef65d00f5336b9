"""How far the parameters have come, and how far one step takes them."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Mark, Panel
from cockpit.instruments.reading import latest, table, trend

__all__ = ["panel"]


@instrument("Distance", "UpdateSize", name="distance")
def panel(run: Readable) -> Panel | None:
    """Return distance and update size of all parameters together, on one axis."""
    distance, update = table(run, "Distance"), table(run, "UpdateSize")
    marks: list[Mark] = []
    if update is not None:
        marks += trend(update.total, "one update", "orange")
    if distance is not None:
        marks += trend(distance.total, "distance from the start", "blue")
    if not marks:
        return None
    return Panel(
        title="Distance and update size",
        group="STEP SIZE",
        how_to_read="Distance that flattens while updates stay large means that steps undo each "
        "other.",
        marks=tuple(marks),
        y_label="L2 norm",
        scale="log",
        headline=latest(distance.total.values) if distance is not None else "",
    )
