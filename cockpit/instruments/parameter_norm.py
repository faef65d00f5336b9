"""The norm of every parameter."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Heat, Panel
from cockpit.instruments.reading import table

__all__ = ["panel"]


@instrument("ParameterStats", name="parameter-norm")
def panel(run: Readable) -> Panel | None:
    """Return the norms as a heat map, parameter × step."""
    norms = table(run, "ParameterStats", "norm")
    if norms is None:
        return None
    return Panel(
        title="Parameter norm",
        group="STEP SIZE",
        how_to_read="Growth without end asks for weight decay or a smaller step; a fall to 0 means "
        "that weight decay wins.",
        marks=(Heat(norms.steps, norms.values, "L2 norm", names=norms.names, scale="log"),),
    )
