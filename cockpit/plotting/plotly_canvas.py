"""What the plotly renderer knows of its picture besides data, and how numbers and colours travel.

Numbers travel as base64 of their bytes, which plotly.js reads and which keeps NaN, a gap of a line.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from cockpit.instruments.panel import Array
from cockpit.plotting.theme import Theme

__all__ = ["Canvas", "Trace", "numbers", "translucent"]

Trace: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Canvas:
    """What every mark needs to know besides its own data.

    Args:
        theme: Colours.
        columns: So many columns of the picture have a smallest and a largest value.
        scale: Scale of the y axis, as far as the values allow it.
        threshold: Where a symlog axis becomes linear.
        over_steps: Whether the x axis counts steps.
        across: Width of the axes in pixels.
        up: Their height in pixels.
        seen: Lower and upper end of the y axis; None where nothing has to fit in.
    """

    theme: Theme
    columns: int
    scale: Literal["linear", "log", "symlog"] = "linear"
    threshold: float = 1.0
    over_steps: bool = True
    across: float = 600.0
    up: float = 180.0
    seen: tuple[float, float] | None = None

    def height(self, value: float) -> float:
        """Return how many pixels a value lies above the lower end of the y axis."""
        low, high = self.axis(self.seen or (0.0, 1.0))
        return (self.axis((value,))[0] - low) / ((high - low) or 1.0) * self.up

    def axis(self, values: Sequence[float]) -> list[float]:
        """Return values in the coordinates of the y axis, which of a log axis are exponents."""
        placed = self.place(np.asarray(values, float))
        if self.scale == "log":
            placed = np.log10(np.maximum(placed, 1e-300))
        return [float(value) for value in placed]

    def place(self, y: Array) -> Array:
        """Return where on the axis values are: plotly has no symlog axis, so it gets a linear one."""
        if self.scale != "symlog":
            return y
        with np.errstate(invalid="ignore"):
            return np.sign(y) * np.log10(1 + np.abs(y) / self.threshold)


def numbers(values: Array) -> dict[str, str]:
    """Return numbers `[n]` or `[n, m]` as plotly.js reads them fastest; infinities become gaps."""
    finite = np.where(np.isfinite(values), values, np.nan)
    spec = {"dtype": "f8", "bdata": base64.b64encode(finite.astype("<f8").tobytes()).decode()}
    return spec if finite.ndim == 1 else spec | {"shape": ", ".join(map(str, finite.shape))}


def translucent(color: str, alpha: float) -> str:
    """Return ``#rrggbb`` as the same colour that lets the background through."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"
