"""What a picture shows, as data: a `Panel` holds marks, axes and one sentence on how to read it.

Nothing here draws. A renderer (matplotlib, plotly, ...) draws any panel from these values alone, so
an instrument is written once and appears wherever pictures are shown. Colours are names of the
Okabe-Ito palette, which people with every kind of colour vision can tell apart; the renderer
decides how they look on its background.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "GROUPS",
    "Array",
    "Band",
    "Bars",
    "Color",
    "Group",
    "Heat",
    "Line",
    "Mark",
    "Panel",
    "Points",
    "Reference",
    "Scale",
]

Array: TypeAlias = NDArray[np.float64]
Scale: TypeAlias = Literal["linear", "log", "symlog"]
Color: TypeAlias = Literal["blue", "sky", "green", "orange", "vermillion", "purple", "neutral"]
Group: TypeAlias = Literal[
    "STEP SIZE", "GRADIENTS", "CURVATURE", "ACTIVATIONS", "PERFORMANCE", "HYPERPARAMETERS"
]

GROUPS: tuple[Group, ...] = (
    "STEP SIZE",
    "GRADIENTS",
    "CURVATURE",
    "ACTIVATIONS",
    "PERFORMANCE",
    "HYPERPARAMETERS",
)
"""The groups in the order in which they are shown."""


@dataclass(frozen=True, eq=False)
class Line:
    """Values over x, both `[n]`. NaN leaves a gap; infinities are marked at the edge."""

    x: Array
    y: Array
    label: str = ""
    color: Color = "blue"
    style: Literal["solid", "faint", "dashed"] = "solid"


@dataclass(frozen=True, eq=False)
class Band:
    """The area between `low` and `high`, over x; all `[n]`."""

    x: Array
    low: Array
    high: Array
    label: str = ""
    color: Color = "blue"


@dataclass(frozen=True, eq=False)
class Points:
    """Single points, x and y `[n]`; `faint` ones stay in the background."""

    x: Array
    y: Array
    label: str = ""
    color: Color = "blue"
    faint: bool = False


@dataclass(frozen=True, eq=False)
class Bars:
    """A histogram: `heights` `[n]` between `edges` `[n + 1]`; an outline can lie over another."""

    edges: Array
    heights: Array
    label: str = ""
    color: Color = "blue"
    outline: bool = False


@dataclass(frozen=True, eq=False)
class Heat:
    """A heat map: `values` `[rows, n]` over x `[n]`, a row per name or interval of `edges`.

    Named rows are listed from top to bottom, one with an empty name is without words; the intervals
    of `edges` `[rows + 1]` lie on a y axis as usual. `label` says what the colour means. Colours span
    `limits`, or the values without them; NaN and infinities have colours of their own.
    """

    x: Array
    values: Array
    label: str
    names: tuple[str, ...] = ()
    edges: Array | None = None
    scale: Literal["linear", "log"] = "linear"
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Reference:
    """A straight line across the picture at a value that means something, with the word for it."""

    value: float
    label: str = ""
    axis: Literal["x", "y"] = "y"


Mark: TypeAlias = Line | Band | Points | Bars | Heat | Reference


@dataclass(frozen=True, eq=False)
class Panel:
    """One picture.

    Args:
        title: What is shown, in a few words.
        group: The heading under which it stands.
        how_to_read: One sentence: how to read it and what is good.
        marks: What to draw, from back to front.
        x_label: Name of the x axis; ``"step"`` makes it the step axis, which all pictures of a
            figure share.
        y_label: Name of the y axis.
        unit: Unit of the y axis, empty for plain numbers.
        scale: Scale of the y axis.
        x_range: Part of the x axis to show; everything by default.
        y_range: Part of the y axis to show; what lies beyond is marked at the edge.
        headline: The number to take home, such as the latest value.
        equal: Whether one unit is equally long on both axes, so that a circle is round; one of the
            axes then shows more than its range.
        x_names: Words for the places 1, 2, ... on the x axis, instead of numbers.
        name: What the picture is called in addresses and findings, such as ``"alpha"``; it never
            changes. That of its instrument, which sets it.
        quantities: What is shown; its instrument sets it, too.
    """

    title: str
    group: Group
    how_to_read: str
    marks: tuple[Mark, ...]
    x_label: str = "step"
    y_label: str = ""
    unit: str = ""
    scale: Scale = "linear"
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    headline: str = ""
    equal: bool = False
    x_names: tuple[str, ...] = ()
    name: str = ""
    quantities: tuple[str, ...] = ()

    @property
    def over_steps(self) -> bool:
        """Whether the x axis counts steps."""
        return self.x_label == "step"
