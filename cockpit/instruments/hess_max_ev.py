"""The sharpness of the loss: the largest eigenvalue of its Hessian."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Line, Mark, Panel
from cockpit.instruments.reading import curve, latest, scale_of, stability_bound, trend, unconverged

__all__ = ["panel"]


@instrument("HessMaxEV")
def panel(run: Readable) -> Panel | None:
    """Return the eigenvalue, and the bound 2/η where the learning rate was logged."""
    sharpness = curve(run, "HessMaxEV")
    if sharpness is None:
        return None
    marks: list[Mark] = [*trend(sharpness, "largest eigenvalue", "purple")]
    marks += stability_bound(run, sharpness.steps)
    marks += unconverged(run, "HessMaxEV", sharpness)
    return Panel(
        title="Sharpness",
        group="CURVATURE",
        how_to_read="Gradient descent is stable below 2/η and tends to rise until there; sudden "
        "growth precedes divergence.",
        marks=tuple(marks),
        y_label="eigenvalue",
        scale=scale_of(*(mark.y for mark in marks if isinstance(mark, Line))),
        headline=latest(sharpness.values),
    )
