"""The normalised step length over the steps."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Panel, Reference
from cockpit.instruments.reading import curve, now_of, robust_range, trend

__all__ = ["MEANINGS", "panel"]

MEANINGS = ((-1.0, "no move"), (0.0, "minimum"), (1.0, "mirror point"))


@instrument("Alpha", name="alpha")
def panel(run: Readable) -> Panel | None:
    """Return each step's length in units of the local parabola, with the moving median."""
    alpha = curve(run, "Alpha")
    if alpha is None:
        return None
    return Panel(
        title="Step length α",
        group="STEP SIZE",
        how_to_read="Below 0 steps stop short of the local minimum, above 0 they overshoot; "
        "around or a little above 0 is healthy.",
        marks=(
            *(Reference(value, word) for value, word in MEANINGS),
            *trend(alpha, "moving median", kind="median"),
        ),
        y_label="α",
        y_range=robust_range(alpha.values, -1.4, 1.4, limit=4.0),
        headline=now_of(alpha.values),
    )
