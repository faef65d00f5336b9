"""The batch size at which noise and signal of the gradient are equally large."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Array, Line, Panel
from cockpit.instruments.reading import batch_size_in_use, curve, moving, number

__all__ = ["SHARE", "panel", "smooth_scale"]

SHARE = 0.1
"""Share of the steps that the moving averages are over; both estimates are very noisy."""


@instrument("GradientNoiseScale", name="gradient-noise-scale")
def panel(run: Readable) -> Panel | None:
    """Return the ratio of the moving averages of trace and squared norm, the raw one, and the logged size.

    The estimate of the squared norm may be negative: a raw value below the picture is marked at its
    edge, and where even the average is not positive, the line has a gap.
    """
    raw, trace = curve(run, "GradientNoiseScale", "noise_scale"), None
    marks: list[Line] = []
    if raw is not None:
        marks.append(Line(raw.steps, raw.values, "single steps", "sky", "faint"))
    trace = curve(run, "GradientNoiseScale", "trace")
    signal = curve(run, "GradientNoiseScale", "squared_norm")
    headline = ""
    if trace is not None and signal is not None and len(trace.steps) == len(signal.steps):
        ratio = smooth_scale(trace.values, signal.values)
        marks.append(Line(trace.steps, ratio, "ratio of moving averages", "blue"))
        headline = f"~{number(float(ratio[-1]))}" if np.isfinite(ratio[-1]) else ""
    if not marks:
        return None
    steps = np.unique(np.concatenate([mark.x for mark in marks]))
    marks[:0] = batch_size_in_use(run, steps)
    return Panel(
        title="Noise scale",
        group="GRADIENTS",
        how_to_read="A batch much smaller than this wastes steps, a much larger one wastes "
        "samples.",
        marks=tuple(marks),
        y_label="batch size",
        scale="log",
        headline=headline,
    )


def smooth_scale(trace: Array, squared_norm: Array) -> Array:
    """Return the ratio of the moving averages, NaN where that of the squared norm is not positive."""
    above, below = moving(trace, share=SHARE), moving(squared_norm, share=SHARE)
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)
