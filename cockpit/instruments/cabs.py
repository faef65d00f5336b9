"""The batch size that the noise of the gradient asks for."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Panel
from cockpit.instruments.reading import batch_size_in_use, curve, now_of, trend

__all__ = ["panel"]


@instrument("CABS", name="cabs")
def panel(run: Readable) -> Panel | None:
    """Return the suggested batch size with its moving average, and the logged one."""
    size = curve(run, "CABS")
    if size is None:
        return None
    return Panel(
        title="Batch size by CABS",
        group="GRADIENTS",
        how_to_read="Far above the batch size in use, noise is large for this learning rate: use "
        "larger batches or a smaller rate.",
        marks=(
            *batch_size_in_use(run, size.steps),
            *trend(size, "moving average", "green"),
        ),
        y_label="suggested batch size",
        scale="log",
        headline=now_of(size.values),
    )
