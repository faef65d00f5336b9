"""The sharpness of the loss in the metric of the optimizer."""

from __future__ import annotations

from cockpit.instruments.curvature import usable
from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Line, Mark, Panel
from cockpit.instruments.reading import curve, latest, scale_of, trend, unconverged

__all__ = ["panel"]


@instrument("PreconditionedSharpness", name="preconditioned-sharpness")
def panel(run: Readable) -> Panel | None:
    """Return the sharpness, and the bound of the optimizer."""
    sharpness = curve(run, "PreconditionedSharpness", "sharpness")
    bound = curve(run, "PreconditionedSharpness", "bound")
    if sharpness is None or bound is None:
        return None
    marks: list[Mark] = [*trend(sharpness, "sharpness", "purple")]
    marks.append(Line(bound.steps, usable(bound.values), "stability bound", "neutral", "dashed"))
    marks += unconverged(run, "PreconditionedSharpness", sharpness)
    return Panel(
        title="Preconditioned sharpness",
        group="CURVATURE",
        how_to_read="Training tends to rise to the optimizer's stability bound; well above it, the loss "
        "is about to grow.",
        marks=tuple(marks),
        y_label="eigenvalue",
        scale="log" if (sharpness.values > 0).all() else scale_of(sharpness.values),
        headline=latest(sharpness.values),
    )
