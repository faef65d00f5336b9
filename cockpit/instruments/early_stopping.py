"""Whether the gradient can still be told from its noise."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Panel, Reference
from cockpit.instruments.reading import curve, now_of, trend

__all__ = ["FAR", "panel"]

FAR = -20.0
"""From here on, a linear axis would no longer show where 0 is crossed."""


@instrument("EarlyStopping", name="early-stopping")
def panel(run: Readable) -> Panel | None:
    """Return the criterion with its moving average; above the line it says to stop."""
    evidence = curve(run, "EarlyStopping")
    if evidence is None:
        return None
    return Panel(
        title="Early stopping",
        group="GRADIENTS",
        how_to_read="Below 0 the gradient stands out from its noise and training makes progress; "
        "above 0 it does not.",
        marks=(Reference(0.0, "noise = signal"), *trend(evidence, "moving average")),
        y_label="criterion",
        scale="symlog" if np.fmin.reduce(evidence.values) < FAR else "linear",
        headline=now_of(evidence.values),
    )
