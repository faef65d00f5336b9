"""How well the samples agree on the direction."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Mark, Panel, Reference
from cockpit.instruments.reading import curve, now_of, trend

__all__ = ["panel"]


@instrument("GradientAlignment", name="gradient-alignment")
def panel(run: Readable) -> Panel | None:
    """Return the mean cosine between gradients of two samples, and the share of negative ones."""
    cosine = curve(run, "GradientAlignment", "mean_cosine")
    negative = curve(run, "GradientAlignment", "negative_share")
    marks: list[Mark] = [Reference(0.0, "no agreement"), Reference(0.5, "half and half")]
    if negative is not None:
        marks += trend(negative, "share of negative ones", "orange")
    if cosine is not None:
        marks += trend(cosine, "mean cosine", "blue")
    if len(marks) == 2:
        return None
    return Panel(
        title="Gradient alignment",
        group="GRADIENTS",
        how_to_read="Cosines start positive and fall towards 0; a negative share above a half means "
        "samples in conflict.",
        marks=tuple(marks),
        y_label="cosine, share",
        headline=now_of(cosine.values) if cosine is not None else "",
    )
