"""The loss: of the mini-batches, and on the data sets where the user logs it."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Color, Line, Mark, Panel
from cockpit.instruments.reading import RECENT_LEAST, Curve, curve, latest, now_of, trend

__all__ = ["SETS", "panel", "set_lines"]

SETS: tuple[tuple[str, Color], ...] = (
    ("train", "green"),
    ("valid", "vermillion"),
    ("test", "purple"),
)


@instrument("Loss", "train_loss", "valid_loss", "test_loss", name="loss")
def panel(run: Readable) -> Panel | None:
    """Return the mini-batch loss with its moving average, and train, validation and test loss."""
    batches = curve(run, "Loss")
    marks: list[Mark] = list(trend(batches, "mini-batch") if batches is not None else ())
    marks += set_lines(run, "loss")
    if not marks:
        return None
    values = [mark.y for mark in marks if isinstance(mark, Line)]
    finite = [y[y == y] for y in values]
    positive = all((y > 0).all() for y in finite)
    return Panel(
        title="Loss",
        group="PERFORMANCE",
        how_to_read="It should fall and level off; a widening gap between training and validation "
        "is overfitting.",
        marks=tuple(marks),
        y_label="loss",
        scale="log" if positive else "linear",
        headline=_now(batches) if batches is not None else "",
    )


def _now(batches: Curve) -> str:
    """Return the loss now: the last one while there are few, a median as soon as it is noise that differs."""
    few = len(batches.values) < 2 * RECENT_LEAST or not np.isfinite(batches.values[-1])
    return latest(batches.values) if few else now_of(batches.values)


def set_lines(run: Readable, what: str) -> list[Line]:
    """Return a line per data set on which the user logged `what`."""
    lines = []
    for name, color in SETS:
        logged = curve(run, f"{name}_{what}")
        if logged is not None:
            lines.append(Line(logged.steps, logged.values, name, color))
    return lines
