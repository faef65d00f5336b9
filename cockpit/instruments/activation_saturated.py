"""The share of saturated values in the outputs of sigmoid and tanh."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Heat, Panel
from cockpit.instruments.reading import table

__all__ = ["panel"]


@instrument("ActivationStats", name="activation-saturated")
def panel(run: Readable) -> Panel | None:
    """Return the share as a heat map, module × step, of the modules with a bounded range."""
    shares = table(run, "ActivationStats", "saturated")
    if shares is None:
        return None
    return Panel(
        title="Saturated units",
        group="ACTIVATIONS",
        how_to_read="Saturated units pass no gradient on: at a share near 1, the layers before hardly "
        "learn.",
        marks=(Heat(shares.steps, shares.values, "share", names=shares.names, limits=(0.0, 1.0)),),
    )
