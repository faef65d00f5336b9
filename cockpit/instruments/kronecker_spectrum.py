"""The largest eigenvalue of each parameter's Kronecker-factored curvature."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Heat, Panel
from cockpit.instruments.reading import table

__all__ = ["panel"]


@instrument("KroneckerSpectrum", name="kronecker-spectrum")
def panel(run: Readable) -> Panel | None:
    """Return the eigenvalues as a heat map, parameter × step."""
    largest = table(run, "KroneckerSpectrum", "largest")
    if largest is None:
        return None
    heat = Heat(largest.steps, largest.values, "eigenvalue", names=largest.names, scale="log")
    return Panel(
        title="Sharpness by parameter",
        group="CURVATURE",
        how_to_read="The layers with the largest eigenvalues are the sharpest: they limit the learning "
        "rate.",
        marks=(heat,),
    )
