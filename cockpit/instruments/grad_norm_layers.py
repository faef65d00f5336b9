"""The norm of the gradient, parameter by parameter."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Heat, Panel
from cockpit.instruments.reading import table

__all__ = ["panel"]


@instrument("GradNorm", name="grad-norm-layers")
def panel(run: Readable) -> Panel | None:
    """Return the gradient norm as a heat map, parameter × step; `None` for a single parameter."""
    norms = table(run, "GradNorm")
    if norms is None or len(norms.names) < 2:
        return None
    return Panel(
        title="Gradient norm by parameter",
        group="GRADIENTS",
        how_to_read="Similar colours mean that all layers learn; a row that fades has stopped "
        "learning.",
        marks=(Heat(norms.steps, norms.values, "L2 norm", names=norms.names, scale="log"),),
    )
