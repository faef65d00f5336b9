"""The trace of the curvature, parameter by parameter."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.curvature import matrix_of
from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Heat, Panel
from cockpit.instruments.reading import table

__all__ = ["panel"]


@instrument("HessTrace", name="hess-trace-layers")
def panel(run: Readable) -> Panel | None:
    """Return the traces as a heat map, parameter × step; `None` for a single parameter."""
    traces = table(run, "HessTrace")
    if traces is None or len(traces.names) < 2:
        return None
    negative = bool((traces.values[np.isfinite(traces.values)] < 0).any())
    return Panel(
        title="Trace by parameter",
        group="CURVATURE",
        how_to_read="Layers whose trace is orders of magnitude above that of the others limit the "
        "learning rate.",
        marks=(
            Heat(
                traces.steps,
                traces.values,
                f"trace of the {matrix_of(run, 'HessTrace')}",
                names=traces.names,
                scale="linear" if negative else "log",
            ),
        ),
    )
