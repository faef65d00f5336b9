"""Whether a few values stand out among the outputs of a module."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Heat, Panel
from cockpit.instruments.reading import table

__all__ = ["panel"]


@instrument("ActivationStats", name="activation-outliers")
def panel(run: Readable) -> Panel | None:
    """Return the kurtosis (not the excess, for the sake of the logarithm), module × step."""
    excess = table(run, "ActivationStats", "kurtosis")
    if excess is None:
        return None
    return Panel(
        title="Outliers in the activations",
        group="ACTIVATIONS",
        how_to_read="3 is normal; a large kurtosis tells of a few outliers, which low precision does "
        "not bear.",
        marks=(Heat(excess.steps, excess.values + 3, "kurtosis", names=excess.names, scale="log"),),
    )
