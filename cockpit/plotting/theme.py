"""Light and dark: what colours, lines and letters look like."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from matplotlib.colors import Colormap, LinearSegmentedColormap

from cockpit.errors import InvalidArgument
from cockpit.instruments.panel import Color, Group

__all__ = ["THEMES", "Style", "Theme", "theme_of"]

Style: TypeAlias = Literal["light", "dark"]


@dataclass(frozen=True)
class Theme:
    """The colours of a figure. Palettes are Okabe-Ito's, lightened where the background is dark."""

    background: str
    card: str
    border: str
    grid: str
    text: str
    muted: str
    colors: dict[Color, str]
    groups: dict[Group, str]
    sequence: tuple[str, ...]
    """Colours of a heat map from small to large, monotone in lightness."""
    diverging: tuple[str, ...]
    missing: str
    """Colour of a cell of a heat map without a number."""
    infinite: str
    """Colour of a cell with an infinity, which stands out from both maps of colours."""
    font: str = "sans-serif"
    rc: dict[Any, Any] = field(
        default_factory=lambda: {
            "text.usetex": False,
            "axes.unicode_minus": True,
            "path.simplify": True,
            "savefig.facecolor": "auto",
            "savefig.bbox": None,
        }
    )

    @property
    def sequential(self) -> Colormap:
        """Colour map of values of one sign."""
        return LinearSegmentedColormap.from_list("sequence", self.sequence).with_extremes(
            bad=self.missing
        )

    @property
    def two_sided(self) -> Colormap:
        """Colour map of values around zero."""
        return LinearSegmentedColormap.from_list("diverging", self.diverging).with_extremes(
            bad=self.missing
        )


LIGHT = Theme(
    background="#eef1f5",
    card="#ffffff",
    border="#d9dfe7",
    grid="#e9edf2",
    text="#17202c",
    muted="#5c6a7c",
    colors={
        "blue": "#0072b2",
        "sky": "#56b4e9",
        "green": "#009e73",
        "orange": "#e69f00",
        "vermillion": "#d55e00",
        "purple": "#b8609a",
        "neutral": "#3d4a5c",
    },
    groups={
        "STEP SIZE": "#d55e00",
        "GRADIENTS": "#0072b2",
        "CURVATURE": "#b8609a",
        "ACTIVATIONS": "#b77f00",
        "PERFORMANCE": "#008a65",
        "HYPERPARAMETERS": "#5c6a7c",
    },
    sequence=("#f4f7fb", "#cfe3f3", "#8cc3e8", "#3f97d0", "#0068a8", "#06406e", "#081c36"),
    diverging=("#8a3a00", "#d55e00", "#f2b48a", "#f7f7f7", "#8cc3e8", "#0072b2", "#06406e"),
    missing="#dcdcdc",
    infinite="#e0218a",
)

DARK = Theme(
    background="#0c1118",
    card="#151c26",
    border="#273140",
    grid="#222c39",
    text="#eef3f9",
    muted="#98a6b8",
    colors={
        "blue": "#4aa8e8",
        "sky": "#8fd0f7",
        "green": "#2bc496",
        "orange": "#f5b82e",
        "vermillion": "#ff8a3d",
        "purple": "#dd8fc2",
        "neutral": "#c3cedb",
    },
    groups={
        "STEP SIZE": "#ff8a3d",
        "GRADIENTS": "#4aa8e8",
        "CURVATURE": "#dd8fc2",
        "ACTIVATIONS": "#f5b82e",
        "PERFORMANCE": "#2bc496",
        "HYPERPARAMETERS": "#98a6b8",
    },
    sequence=("#17202c", "#123a5c", "#0f5d94", "#2a8acb", "#6bbcf0", "#b6e0fb", "#fbfdff"),
    diverging=("#ffc79e", "#ff8a3d", "#8a4a20", "#1d2632", "#1f5f8f", "#4aa8e8", "#b6e0fb"),
    missing="#3a3f47",
    infinite="#ff4fb0",
)

THEMES: dict[str, Theme] = {"light": LIGHT, "dark": DARK}


def theme_of(style: str) -> Theme:
    """Return the theme of that name.

    Raises:
        InvalidArgument: There is none.
    """
    if style not in THEMES:
        raise InvalidArgument(f"style must be one of {', '.join(map(repr, THEMES))}, got {style!r}")
    return THEMES[style]
