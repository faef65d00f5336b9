"""The accuracy on the data sets where the user logs it."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.loss import set_lines
from cockpit.instruments.panel import Panel
from cockpit.instruments.reading import number

__all__ = ["panel"]


@instrument("train_accuracy", "valid_accuracy", "test_accuracy", name="accuracy")
def panel(run: Readable) -> Panel | None:
    """Return train, validation and test accuracy."""
    lines = set_lines(run, "accuracy")
    if not lines:
        return None
    held_out = lines[min(1, len(lines) - 1)]
    return Panel(
        title="Accuracy",
        group="PERFORMANCE",
        how_to_read="Higher is better; training far above validation is overfitting, both low is "
        "underfitting.",
        marks=tuple(lines),
        y_label="accuracy",
        headline=f"{held_out.label} {number(float(held_out.y[-1]))}",
    )
