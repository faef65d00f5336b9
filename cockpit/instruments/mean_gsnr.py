"""The signal-to-noise ratio of the gradient."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Panel
from cockpit.instruments.reading import curve, now_of, trend

__all__ = ["panel"]


@instrument("MeanGSNR", name="mean-gsnr")
def panel(run: Readable) -> Panel | None:
    """Return the ratio, averaged over all elements, with its moving average."""
    ratio = curve(run, "MeanGSNR")
    if ratio is None:
        return None
    return Panel(
        title="Signal-to-noise ratio",
        group="GRADIENTS",
        how_to_read="High while the samples agree where to go, falling as they begin to disagree; "
        "slow decline is good.",
        marks=trend(ratio, "moving average", "purple"),
        y_label="mean GSNR",
        scale="log",
        headline=now_of(ratio.values),
    )
