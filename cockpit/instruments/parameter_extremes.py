"""How far the largest value of every parameter lies from the bulk."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Heat, Panel
from cockpit.instruments.reading import table

__all__ = ["panel"]


@instrument("ParameterStats", name="parameter-extremes")
def panel(run: Readable) -> Panel | None:
    """Return the largest magnitude in standard deviations as a heat map, parameter × step."""
    low, high = table(run, "ParameterStats", "min"), table(run, "ParameterStats", "max")
    std = table(run, "ParameterStats", "std")
    if low is None or high is None or std is None:
        return None
    if not low.values.shape == high.values.shape == std.values.shape:
        return None
    magnitude = np.maximum(np.abs(low.values), np.abs(high.values))
    varied = std.values > 1e-6 * magnitude  # a parameter of equal values has no bulk
    far = np.divide(magnitude, std.values, out=np.full_like(magnitude, np.nan), where=varied)
    return Panel(
        title="Largest parameters",
        group="STEP SIZE",
        how_to_read="A few standard deviations are usual; values far beyond them are what low "
        "precision loses first.",
        marks=(Heat(std.steps, far, "largest / std", names=std.names, scale="log"),),
    )
