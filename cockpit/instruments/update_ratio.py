"""How far one step moves the parameters, relative to their size."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Panel, Reference
from cockpit.instruments.reading import spread, table

__all__ = ["panel"]


@instrument("UpdateRatio", name="update-ratio")
def panel(run: Readable) -> Panel | None:
    """Return the median and the range of the ratio over the parameters, and the rule of thumb."""
    ratios = table(run, "UpdateRatio")
    if ratios is None:
        return None
    return Panel(
        title="Update ratio",
        group="STEP SIZE",
        how_to_read="About 0.001 is a rule of thumb for weights: far below they hardly learn, far "
        "above they are thrown about.",
        marks=(Reference(1e-3, "rule of thumb"), *spread(ratios, "orange")),
        y_label="update / parameter",
        scale="log",
    )
