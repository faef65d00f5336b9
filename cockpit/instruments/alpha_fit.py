"""The fitted parabolas, normalised to one and the same valley, and where each step lands in it."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.alpha_distribution import recent_count
from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Array, Line, Panel, Points, Reference
from cockpit.instruments.reading import curve, robust_range

__all__ = ["panel"]


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
    low, high = robust_range(landed, -1.4, 1.4, limit=2.0)
    landed = np.clip(landed, low, high)
    recent = landed[-recent_count(len(landed)) :]
    valley: Array = np.linspace(low, high, 121)
    typical = np.array([np.median(recent)])
    return Panel(
        title="Steps in the valley",
        group="STEP SIZE",
        how_to_read="Each step starts at the left rim of its fitted parabola and ends on a "
        "dot: low is good, right is too far.",
        marks=(
            Reference(1.0, "loss before the step"),
            Line(valley, valley**2, "", "neutral"),
            Points(landed, landed**2, "all steps", "sky", faint=True),
            Points(recent, recent**2, f"last {len(recent)}", "vermillion"),
            Points(typical, typical**2, "their median", "neutral"),
        ),
        x_label="α",
        y_label="loss, normalised",
        x_range=(low - 0.05, high + 0.05),
        y_range=(-0.12, max(low**2, high**2) * 1.04),
    )
