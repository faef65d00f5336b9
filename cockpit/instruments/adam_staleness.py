"""How stale Adam's estimates of the gradient's size are."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Panel, Reference
from cockpit.instruments.reading import scale_of, spread, table

__all__ = ["panel"]


@instrument("AdamStaleness", name="adam-staleness")
def panel(run: Readable) -> Panel | None:
    """Return the median and the range over the parameters, with what is usual and what is not."""
    stale = table(run, "AdamStaleness")
    if stale is None:
        return None
    return Panel(
        title="Adam's staleness",
        group="STEP SIZE",
        how_to_read="About 1 is up to date; from 2 on the gradient grows faster than Adam's "
        "estimate of it follows.",
        marks=(Reference(1.0, "fresh"), Reference(2.0, "stale"), *spread(stale, "vermillion")),
        y_label="gradient / estimate",
        scale="log" if scale_of(stale.values) == "log" else "linear",
    )
