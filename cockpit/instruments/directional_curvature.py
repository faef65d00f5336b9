"""The curvature along the gradient and along the update."""

from __future__ import annotations

from cockpit.instruments.curvature import descent_bound
from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Line, Mark, Panel
from cockpit.instruments.reading import curve, now_of, scale_of, trend

__all__ = ["panel"]


@instrument("DirectionalCurvature", name="directional-curvature")
def panel(run: Readable) -> Panel | None:
    """Return both curvatures, and the bound 2/η where it holds."""
    gradient = curve(run, "DirectionalCurvature", "gradient")
    update = curve(run, "DirectionalCurvature", "update")
    if gradient is None:
        return None
    marks: list[Mark] = [*trend(gradient, "along the gradient", "purple")]
    if update is not None:
        marks += trend(update, "along the update", "orange")
    marks += descent_bound(run, gradient.steps)
    return Panel(
        title="Directional curvature",
        group="CURVATURE",
        how_to_read="Above 2/η a step along the gradient raises the loss; a low update avoids the sharp "
        "directions.",
        marks=tuple(marks),
        y_label="curvature",
        scale=scale_of(*(mark.y for mark in marks if isinstance(mark, Line))),
        headline=now_of(gradient.values),
    )
