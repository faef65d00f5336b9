"""How the size of the activations changes from layer to layer."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Line, Mark, Panel
from cockpit.instruments.reading import table

__all__ = ["panel"]


@instrument("ActivationStats", name="activation-depth")
def panel(run: Readable) -> Panel | None:
    """Return standard deviation and mean over the depth, at the first and the last step."""
    std = table(run, "ActivationStats", "std")
    mean = table(run, "ActivationStats", "mean")
    if std is None or len(std.names) < 2:
        return None
    depth = np.arange(1.0, len(std.names) + 1)
    first, last = f"std, step {std.steps[0]:.0f}", f"std, step {std.steps[-1]:.0f}"
    marks: list[Mark] = []
    if mean is not None and mean.names == std.names:
        marks.append(
            Line(
                depth,
                np.abs(mean.values[:, -1]),
                f"|mean|, step {mean.steps[-1]:.0f}",
                "neutral",
                "dashed",
            )
        )
    if len(std.steps) > 1:
        marks.append(Line(depth, std.values[:, 0], first, "orange"))
    marks.append(Line(depth, std.values[:, -1], last, "blue"))
    return Panel(
        title="Activations over depth",
        group="ACTIVATIONS",
        how_to_read="Level lines are healthy; growth or decay from layer to layer points at the "
        "initialisation.",
        marks=tuple(marks),
        x_label="module, in call order",
        y_label="size",
        scale="log",
        x_range=(0.5, len(std.names) + 0.5),
        x_names=std.names,
    )
