"""The three gradient tests in one picture: how much of the mini-batch gradient is noise."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Color, Mark, Panel, Reference
from cockpit.instruments.reading import curve, now_of, trend

__all__ = ["panel"]

TESTS: tuple[tuple[str, str, Color], ...] = (
    ("InnerTest", "inner", "orange"),
    ("OrthoTest", "ortho", "sky"),
    ("NormTest", "norm", "blue"),
)


@instrument("InnerTest", "OrthoTest", "NormTest", name="grad-tests")
def panel(run: Readable) -> Panel | None:
    """Return inner product test, orthogonality test and their hypotenuse, the norm test."""
    marks: list[Mark] = [Reference(1.0, "noise = signal")]
    headline = ""
    for quantity, label, color in TESTS:
        test = curve(run, quantity)
        if test is not None:
            marks += trend(test, label, color)
            headline = now_of(test.values)
    if len(marks) == 1:
        return None
    return Panel(
        title="Gradient noise",
        group="GRADIENTS",
        how_to_read="Below 1 the mini-batch gradient can be trusted; far above 1 use larger "
        "batches or smaller steps.",
        marks=tuple(marks),
        y_label="noise / signal",
        scale="log",
        headline=headline,
    )
