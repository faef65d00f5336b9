"""The three gradient tests in one picture: where the mini-batch gradient falls around its mean."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Band, Color, Line, Mark, Panel, Points, Reference
from cockpit.instruments.reading import Curve, curve, number

__all__ = ["panel"]

RECENT = 0.1
"""Share of the steps that is looked at, the last ones."""

AIR = 1.15
"""How far the picture reaches beyond the widest test."""


@instrument("InnerTest", "OrthoTest", "NormTest", name="grad-tests-bands")
def panel(run: Readable) -> Panel | None:
    """Return one standard deviation of the mini-batch gradient, in units of its length.

    The gradient points from the origin to (1, 0). The inner product test is the deviation along it, the
    orthogonality test that across it, and the norm test that of the whole, a circle around its tip.
    """
    tests = {name: _recent(curve(run, name)) for name in ("InnerTest", "OrthoTest", "NormTest")}
    known = {name: size for name, size in tests.items() if size is not None}
    if not known:
        return None
    reach = AIR * max(1.0, *known.values())
    low, high = -reach, 1 + reach
    marks: list[Mark] = [Reference(0.0, "no progress", axis="x")]
    if "InnerTest" in known:
        inner = known["InnerTest"]
        marks.append(_band(1 - inner, 1 + inner, -reach, reach, "inner", "orange"))
    if "OrthoTest" in known:
        marks.append(_band(low, high, -known["OrthoTest"], known["OrthoTest"], "ortho", "sky"))
    if "NormTest" in known:
        angle, norm = np.linspace(0, 2 * np.pi, 121), known["NormTest"]
        circle = 1 + norm * np.cos(angle), norm * np.sin(angle)
        marks.append(Line(*circle, "norm", "blue"))
    marks.append(Line(np.array([0.0, 1.0]), np.zeros(2), "", "neutral"))
    marks.append(Points(np.ones(1), np.zeros(1), "gradient", "neutral"))
    return Panel(
        title="Gradient tests",
        group="GRADIENTS",
        how_to_read="The spread of the gradient around its tip: a circle that reaches the dashed line means "
        "steps uphill.",
        marks=tuple(marks),
        x_label="along the gradient",
        y_label="across it",
        x_range=(low, high),
        y_range=(-reach, reach),
        headline=number(known["NormTest"]) if "NormTest" in known else "",
    )


def _recent(test: Curve | None) -> float | None:
    """Return the median of the last steps; `None` without a finite one."""
    values = np.zeros(0) if test is None else test.values[np.isfinite(test.values)]
    return float(np.median(values[-max(1, int(RECENT * len(values))) :])) if values.size else None


def _band(left: float, right: float, low: float, high: float, label: str, color: Color) -> Band:
    return Band(np.array([left, right]), np.full(2, low), np.full(2, high), label, color)
