"""Where values stop being finite."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Color, Line, Panel
from cockpit.instruments.reading import curve, table

__all__ = ["first_module", "panel"]

KINDS: tuple[tuple[str, Color], ...] = (
    ("modules", "vermillion"),
    ("gradients", "blue"),
    ("samples", "orange"),
)


@instrument("NonFinite", name="non-finite")
def panel(run: Readable) -> Panel | None:
    """Return how many modules, gradients and samples have a value that is not finite."""
    found = [(kind, color, curve(run, "NonFinite", kind)) for kind, color in KINDS]
    lines = [Line(c.steps, c.values, kind, color) for kind, color, c in found if c is not None]
    if not lines:
        return None
    # Curves of zeros would lie on one another: where nothing was hit, one of them says so.
    lines = [line for line in lines if (line.y > 0).any()] or lines[:1]
    affected = np.concatenate([line.x[line.y > 0] for line in lines])
    headline = "all finite"
    if affected.size:
        step = float(affected.min())
        headline = f"{first_module(run, step) or 'gradients'}, step {step:.0f}"
    return Panel(
        title="NaN and infinities",
        group="ACTIVATIONS",
        how_to_read="All are 0 in a healthy run; with gradient scaling, infinite gradients now and "
        "then are usual.",
        marks=tuple(lines),
        y_label="how many",
        scale="symlog" if affected.size else "linear",
        y_range=None if affected.size else (-0.05, 1.0),
        headline=headline,
    )


def first_module(run: Readable, step: float) -> str:
    """Return the first module, in the order of the calls, that was hit at a step; "" for none."""
    values, order = table(run, "NonFinite", "values"), table(run, "NonFinite", "order")
    if values is None or order is None or values.names != order.names:
        return ""
    hit = (values.values[:, values.steps == step] > 0).any(1)
    places = np.where(hit, order.values[:, order.steps == step].max(1, initial=-1), np.inf)
    return values.names[int(places.argmin())] if hit.any() else ""
