"""The learning rate that the user logs."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Line, Panel
from cockpit.instruments.reading import curve, latest

__all__ = ["panel"]


@instrument("learning_rate", name="learning-rate")
def panel(run: Readable) -> Panel | None:
    """Return the learning rate over the steps."""
    rate = curve(run, "learning_rate")
    if rate is None:
        return None
    return Panel(
        title="Learning rate",
        group="HYPERPARAMETERS",
        how_to_read="The schedule as applied; compare its turns with those of step length and "
        "loss.",
        marks=(Line(rate.steps, rate.values, "", "purple"),),
        y_label="η",
        headline=latest(rate.values),
    )
