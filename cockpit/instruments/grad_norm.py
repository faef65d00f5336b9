"""The norm of the whole gradient over the steps."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Panel
from cockpit.instruments.reading import now_of, table, trend

__all__ = ["panel"]


@instrument("GradNorm", name="grad-norm")
def panel(run: Readable) -> Panel | None:
    """Return the norm of the gradient of all parameters together."""
    norms = table(run, "GradNorm")
    if norms is None:
        return None
    return Panel(
        title="Gradient norm",
        group="GRADIENTS",
        how_to_read="A slow decline is normal; spikes hint at bad batches or large steps, "
        "zero at a dead network.",
        marks=trend(norms.total, "moving average", "blue"),
        y_label="L2 norm",
        scale="log",
        headline=now_of(norms.total.values),
    )
