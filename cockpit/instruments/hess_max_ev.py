"""The sharpness of the loss: the largest eigenvalue of its Hessian."""

from __future__ import annotations

from cockpit.instruments.curvature import matrix_of, stability_bound
from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Line, Mark, Panel
from cockpit.instruments.reading import curve, latest, scale_of, trend, unconverged

__all__ = ["panel"]


@instrument("HessMaxEV", name="hess-max-ev")
def panel(run: Readable) -> Panel | None:
    """Return the eigenvalue, and the optimizer's bound where there is one."""
    sharpness = curve(run, "HessMaxEV")
    if sharpness is None:
        return None
    marks: list[Mark] = [*trend(sharpness, "largest eigenvalue", "purple")]
    marks += stability_bound(run, sharpness.steps)
    marks += unconverged(run, "HessMaxEV", sharpness)
    return Panel(
        title="Sharpness",
        group="CURVATURE",
        how_to_read="Stable below the optimizer's bound, to which it tends to rise; sudden growth precedes "
        "divergence.",
        marks=tuple(marks),
        y_label=f"eigenvalue of the {matrix_of(run, 'HessMaxEV')}",
        scale=scale_of(*(mark.y for mark in marks if isinstance(mark, Line))),
        headline=latest(sharpness.values),
    )
