"""The size of the outputs of the modules."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Heat, Panel
from cockpit.instruments.reading import table

__all__ = ["panel"]


@instrument("ActivationStats", name="activation-scale")
def panel(run: Readable) -> Panel | None:
    """Return the standard deviation as a heat map, module × step."""
    std = table(run, "ActivationStats", "std")
    if std is None:
        return None
    return Panel(
        title="Spread of the activations",
        group="ACTIVATIONS",
        how_to_read="Rows that keep their colour are healthy; one that changes all the time is "
        "drifting away.",
        marks=(Heat(std.steps, std.values, "std", names=std.names, scale="log"),),
    )
