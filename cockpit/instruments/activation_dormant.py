"""The share of dormant units of the modules."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Heat, Panel
from cockpit.instruments.reading import table

__all__ = ["panel"]


@instrument("ActivationStats", name="activation-dormant")
def panel(run: Readable) -> Panel | None:
    """Return the share as a heat map, module × step."""
    shares = table(run, "ActivationStats", "dormant")
    if shares is None:
        return None
    return Panel(
        title="Dormant units",
        group="ACTIVATIONS",
        how_to_read="Next to 0 is right; units that fall asleep and do not come back are capacity that is lost.",
        marks=(Heat(shares.steps, shares.values, "share", names=shares.names, limits=(0.0, 1.0)),),
    )
