"""The largest logit of the attention modules."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Color, Line, Mark, Panel
from cockpit.instruments.reading import medians, number, scale_of, spread, table

__all__ = ["panel"]

COLORS: tuple[Color, ...] = ("blue", "orange", "green", "vermillion")


@instrument("AttentionStats", name="attention-logits")
def panel(run: Readable) -> Panel | None:
    """Return a line per module, or where there are many the median and the range of all."""
    logits = table(run, "AttentionStats", "largest_logit")
    if logits is None:
        return None
    now = medians(logits)
    marks: tuple[Mark, ...] = spread(logits, "blue", "all modules")
    if len(logits.names) <= len(COLORS):
        rows = zip(logits.names, logits.values, COLORS, strict=False)
        marks = tuple(Line(logits.steps, row, name, color) for name, row, color in rows)
    return Panel(
        title="Largest attention logit",
        group="ACTIVATIONS",
        how_to_read="Growth into the tens goes before a collapse of the entropy and a diverging "
        "loss.",
        marks=marks,
        y_label="logit",
        scale="log" if scale_of(logits.values) == "log" else "linear",
        headline=f"~{number(float(np.nanmax(now)))}" if np.isfinite(now).any() else "",
    )
