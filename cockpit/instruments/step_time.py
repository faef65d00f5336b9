"""How long a step takes."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Panel
from cockpit.instruments.reading import Curve, curve, now_of, trend

__all__ = ["panel"]


@instrument("Time", name="step-time")
def panel(run: Readable) -> Panel | None:
    """Return the wall-clock time per step between tracked steps."""
    time = curve(run, "Time")
    if time is None or len(time.steps) < 2:
        return None
    seconds = np.diff(time.values) / np.diff(time.steps)
    return Panel(
        title="Time per step",
        group="PERFORMANCE",
        how_to_read="Flat is healthy; spikes are evaluation or data loading, a slow rise is a "
        "leak.",
        marks=trend(Curve(time.steps[1:], seconds), "moving median", kind="median"),
        y_label="time",
        unit="s",
        scale="log",
        headline=f"{now_of(seconds)} s" if np.isfinite(seconds).any() else "",
    )
