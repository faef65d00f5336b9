"""How stale Adam's estimates are, parameter by parameter."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Heat, Panel
from cockpit.instruments.reading import table

__all__ = ["panel"]


@instrument("AdamStaleness", name="adam-staleness-layers")
def panel(run: Readable) -> Panel | None:
    """Return the staleness as a heat map, parameter × step; `None` for a single parameter."""
    stale = table(run, "AdamStaleness")
    if stale is None or len(stale.names) < 2:
        return None
    return Panel(
        title="Adam's staleness by parameter",
        group="STEP SIZE",
        how_to_read="A row that reaches 2 and more often does so shortly before the loss has a "
        "spike.",
        marks=(Heat(stale.steps, stale.values, "staleness", names=stale.names),),
    )
