"""The instrument of every quantity that has none of its own."""

from __future__ import annotations

import re
from functools import partial
from typing import Literal

from cockpit.instruments.instrument import Instrument, Readable
from cockpit.instruments.panel import Color, Group, Heat, Line, Mark, Panel
from cockpit.instruments.reading import curve, joined, latest, scale_of, trend

__all__ = ["of", "panel"]

COLORS: tuple[Color, ...] = ("blue", "orange", "green", "vermillion", "purple", "sky")

HYPERPARAMETERS = re.compile(
    r"momentum|weight_decay|batch_size|learning_rate|dropout|(^|_)lr($|_)|beta"
)


def of(quantity: str) -> Instrument:
    """Return the default instrument of a quantity, or of a metric that the user logged."""
    return Instrument(partial(panel, quantity=quantity), (quantity,), f"quantity:{quantity}")


def panel(run: Readable, quantity: str) -> Panel | None:
    """Return lines with a moving average, or a heat map where there are many values.

    Args:
        run: The run.
        quantity: Name of a quantity, or of a metric that the user logged.

    Returns:
        The panel, or `None` when the quantity has no scalars.
    """
    parts = run.parts(quantity, details=False) or run.parts(quantity)
    found = {part: curve(run, quantity, part) for part in parts}
    curves = {part: data for part, data in found.items() if data is not None}
    if not curves:
        return None
    if len(curves) == 1 or "" in curves:
        own = curves.get("") or next(iter(curves.values()))
        return _lines(quantity, trend(own, "moving average"), latest(own.values))
    if len(curves) <= 3 and not set(curves) <= set(run.parameters):
        pairs = zip(COLORS, curves.items(), strict=False)
        lines = [mark for color, (part, data) in pairs for mark in trend(data, part, color)]
        return _lines(quantity, tuple(lines), "")
    how = "Each row is one value; rows that differ or change stand out."
    steps, values = joined([(data.steps, data.values) for data in curves.values()])
    scale: Literal["log", "linear"] = "log" if scale_of(values) == "log" else "linear"
    heat = Heat(steps, values, "value", names=tuple(curves), scale=scale)
    return Panel(_title(quantity), _group(quantity), how, (heat,))


def _lines(quantity: str, marks: tuple[Mark, ...], headline: str) -> Panel:
    averaged = any(isinstance(mark, Line) and mark.style == "faint" for mark in marks)
    how = "Faint: every value; strong: their moving average." if averaged else "Every value."
    scale = scale_of(*(mark.y for mark in marks if isinstance(mark, Line)))
    return Panel(_title(quantity), _group(quantity), how, marks, scale=scale, headline=headline)


def _group(quantity: str) -> Group:
    if HYPERPARAMETERS.search(quantity):
        return "HYPERPARAMETERS"
    return "PERFORMANCE" if quantity.islower() else "GRADIENTS"


def _title(quantity: str) -> str:
    """Return a metric's name as words; the name of a quantity stays what it is."""
    return quantity.replace("_", " ").capitalize() if quantity.islower() else quantity
