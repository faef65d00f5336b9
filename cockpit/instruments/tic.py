"""The Takeuchi information criterion: gradient noise relative to curvature."""

from __future__ import annotations

from cockpit.instruments.curvature import matrix_of
from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Color, Line, Mark, Panel
from cockpit.instruments.reading import curve, now_of, scale_of, trend

__all__ = ["panel"]

KINDS: tuple[tuple[str, str, Color], ...] = (
    ("TICDiag", "diagonal", "blue"),
    ("TICTrace", "traces", "green"),
)


@instrument("TICDiag", "TICTrace", name="tic")
def panel(run: Readable) -> Panel | None:
    """Return the criterion by the diagonal and by the traces, with their moving averages."""
    marks: list[Mark] = []
    headline = ""
    for quantity, word, color in KINDS:
        criterion = curve(run, quantity)
        if criterion is not None:
            label = f"{word} of the {matrix_of(run, quantity)}"
            marks += trend(criterion, label, color)
            headline = headline or now_of(criterion.values)
    if not marks:
        return None
    return Panel(
        title="Takeuchi criterion",
        group="CURVATURE",
        how_to_read="An estimate of the gap between training and test loss, up to a factor; growth "
        "means overfitting.",
        marks=tuple(marks),
        y_label="TIC",
        scale=scale_of(*(mark.y for mark in marks if isinstance(mark, Line))),
        headline=headline,
    )
