"""The samples whose gradients are unusually large."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Panel, Points, Reference
from cockpit.instruments.reading import Curve, number, stacked, trend

__all__ = ["OUTLIER", "panel"]

OUTLIER = 3.5
"""The robust z-score above which a sample is an outlier (Iglewicz & Hoaglin, 1993)."""


@instrument("PerSampleOutliers", name="per-sample-outliers")
def panel(run: Readable) -> Panel | None:
    """Return the largest score of every mini-batch, and the scores of the other samples named."""
    seen = stacked(run, "PerSampleOutliers", "scores")
    if seen is None:
        return None
    steps, scores = seen
    largest, others = np.fmax.reduce(scores, axis=1), scores[:, 1:]
    known = ~np.isnan(others)
    above = float(np.mean(largest > OUTLIER))
    return Panel(
        title="Outliers in the batch",
        group="GRADIENTS",
        how_to_read="Scores up to about 3.5 are usual; samples far above may be mislabelled, broken "
        "or of the wrong scale.",
        marks=(
            Reference(OUTLIER, "outlier"),
            Points(
                np.repeat(steps, known.sum(1)),
                others[known],
                "other large scores",
                "sky",
                faint=True,
            ),
            *trend(Curve(steps, largest), "largest", "vermillion"),
        ),
        y_label="robust z-score",
        scale="log" if (scores[~np.isnan(scores)] > 0).all() else "symlog",
        headline=f"{number(100 * above)} % with an outlier",
    )
