"""The fitted parabolas, normalised to one and the same valley, and where each step lands in it."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.alpha_distribution import recent_count
from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Array, Line, Panel, Points, Reference
from cockpit.instruments.reading import curve

__all__ = ["panel"]

LEAST, MOST = 1.4, 2.0
"""How far the picture reaches on either side, at least and at most; steps beyond are at its rim."""


@instrument("Alpha", name="alpha-fit")
def panel(run: Readable) -> Panel | None:
    """Return the valley y = α² with the steps on it.

    A fit w0 + w1 s + w2 s² with w2 > 0 has its minimum at s* = −w1 / (2 w2). With α = s / s* − 1 as
    abscissa and the loss above the minimum in units of that at the start as ordinate, every fit is
    the parabola y = α².
    """
    alpha, curvature = curve(run, "Alpha"), curve(run, "Alpha", "w2")
    if alpha is None or curvature is None:
        return None
    convex = np.isin(alpha.steps, curvature.steps[curvature.values > 0])
    landed = alpha.values[convex & np.isfinite(alpha.values)]
    if not landed.size:
        return None
    low = float(np.clip(landed.min(), -MOST, -LEAST))
    high = float(np.clip(landed.max(), LEAST, MOST))
    recent = landed[-recent_count(len(landed)) :]
    valley: Array = np.linspace(low, high, 121)
    typical = np.array([np.median(recent)])
    return Panel(
        title="Steps in the valley",
        group="STEP SIZE",
        how_to_read="Steps start at α = −1 of their parabola and end on a dot, best a low one; fits without "
        "minimum are left out.",
        marks=(
            Reference(1.0, "loss before the step"),
            Line(valley, valley**2, "", "neutral"),
            Points(*_inside(landed, low, high), "all steps", "sky", faint=True),
            Points(*_inside(recent, low, high), f"last {len(recent)}", "vermillion"),
            Points(*_inside(typical, low, high), "their median", "neutral"),
        ),
        x_label="α",
        y_label="loss, normalised",
        x_range=(low - 0.05, high + 0.05),
        y_range=(-0.12, max(low**2, high**2) * 1.04),
    )


def _inside(alpha: Array, low: float, high: float) -> tuple[Array, Array]:
    """Return where steps land in the valley; one beyond the picture is at its rim, infinitely high.

    So it is marked at the edge, instead of lying among those that land inside.
    """
    beyond = (alpha < low) | (alpha > high)
    return np.clip(alpha, low, high), np.where(beyond, np.inf, alpha**2)
