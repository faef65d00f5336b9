"""The three gradient tests in one picture: where the mini-batch gradient falls around its mean."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Band, Color, Line, Mark, Panel, Points, Reference
from cockpit.instruments.reading import Curve, curve, now_of, recent_of

__all__ = ["panel"]

AIR = 1.15
"""How far the picture reaches beyond the widest test."""

WIDE = 10.0
"""How far bands go on, in reaches of the picture, which shows more than these where its axes are unequal."""


@instrument("InnerTest", "OrthoTest", "NormTest", name="grad-tests-bands")
def panel(run: Readable) -> Panel | None:
    """Return one standard error of the mini-batch gradient, in units of its length.

    The gradient points from the origin to (1, 0). The inner product test is the error along it, the
    orthogonality test that across it, and the norm test that of the whole, a circle around its tip. A
    step along the mini-batch gradient goes uphill where the error along it exceeds its length.
    """
    tests = {name: curve(run, name) for name in ("InnerTest", "OrthoTest", "NormTest")}
    known = {name: size for name, test in tests.items() if (size := _recent(test)) is not None}
    if not known:
        return None
    reach = AIR * max(1.0, *known.values())
    far = WIDE * reach
    marks: list[Mark] = [Reference(0.0, "no progress", axis="x")]
    if "InnerTest" in known:
        inner = known["InnerTest"]
        marks.append(_band(1 - inner, 1 + inner, -far, far, "inner", "orange"))
    if "OrthoTest" in known:
        marks.append(_band(-far, far, -known["OrthoTest"], known["OrthoTest"], "ortho", "sky"))
    if "NormTest" in known:
        angle, norm = np.linspace(0, 2 * np.pi, 121), known["NormTest"]
        circle = 1 + norm * np.cos(angle), norm * np.sin(angle)
        marks.append(Line(*circle, "norm", "blue"))
    marks.append(Line(np.array([0.0, 1.0]), np.zeros(2), "", "neutral"))
    marks.append(Points(np.ones(1), np.zeros(1), "gradient", "neutral"))
    return Panel(
        title="Gradient tests",
        group="GRADIENTS",
        how_to_read="One standard error around the gradient's tip: if inner reaches the dashed line, steps "
        "may well go uphill.",
        marks=tuple(marks),
        x_label="along the gradient",
        y_label="across it",
        x_range=(-reach, 1 + reach),
        y_range=(-reach, reach),
        headline=now_of(norm_test.values) if (norm_test := tests["NormTest"]) is not None else "",
        equal=True,
    )


def _recent(test: Curve | None) -> float | None:
    """Return the median of the last steps; `None` without a finite one."""
    values = np.zeros(0) if test is None else recent_of(test.values)
    return float(np.median(values)) if values.size else None


def _band(left: float, right: float, low: float, high: float, label: str, color: Color) -> Band:
    return Band(np.array([left, right]), np.full(2, low), np.full(2, high), label, color)
