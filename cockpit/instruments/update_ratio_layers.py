"""How far one step moves each parameter, relative to its size."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Heat, Panel
from cockpit.instruments.reading import table

__all__ = ["panel"]


@instrument("UpdateRatio", name="update-ratio-layers")
def panel(run: Readable) -> Panel | None:
    """Return the ratio as a heat map, parameter × step; `None` for a single parameter."""
    ratios = table(run, "UpdateRatio")
    if ratios is None or len(ratios.names) < 2:
        return None
    return Panel(
        title="Update ratio by parameter",
        group="STEP SIZE",
        how_to_read="Similar colours mean that all layers move at the same pace; a row that fades "
        "hardly learns.",
        marks=(Heat(ratios.steps, ratios.values, "ratio", names=ratios.names, scale="log"),),
    )
