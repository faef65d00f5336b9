"""The sharpness along the update, from evaluations of the loss alone."""

from __future__ import annotations

from cockpit.instruments.curvature import usable
from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Line, Mark, Panel
from cockpit.instruments.reading import curve, latest, scale_of, trend

__all__ = ["panel"]


@instrument("CriticalSharpness", name="critical-sharpness")
def panel(run: Readable) -> Panel | None:
    """Return the sharpness, and 2/η with the learning rate of the step."""
    sharpness, bound = curve(run, "CriticalSharpness"), curve(run, "CriticalSharpness", "bound")
    if sharpness is None:
        return None
    marks: list[Mark] = [*trend(sharpness, "2/η critical", "purple")]
    if bound is not None:
        marks.append(Line(bound.steps, usable(bound.values), "2/η", "neutral", "dashed"))
    return Panel(
        title="Critical sharpness",
        group="CURVATURE",
        how_to_read="At 2/η the update goes as far as to raise the loss again; below, a larger step "
        "would still lower it.",
        marks=tuple(marks),
        y_label="sharpness",
        scale="log" if (sharpness.values > 0).all() else scale_of(sharpness.values),
        headline=latest(sharpness.values),
    )
