"""Letters: how wide a text is, where to break it, how to write a number under an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

__all__ = ["shorten", "shorten_all", "tick_text", "width_of", "wrap"]

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def width_of(text: str, size: float, weight: str = "normal") -> float:
    """Return the width of a text in points, with some reserve for how small letters are rounded."""
    properties = FontProperties(size=size, weight=weight)
    return (
        float(text_to_path.get_text_width_height_descent(text, properties, ismath=False)[0]) * 1.1
    )


def wrap(text: str, width: float, size: float, weight: str = "normal") -> list[str]:
    """Break a text into lines no wider than `width` points; a single word may be."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and width_of(longer, size, weight) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def shorten(name: str, width: float, size: float) -> str:
    """Cut a name in the middle, so that it is no wider than `width` points; both ends tell most."""
    keep = len(name)
    short = name
    while keep > 3 and width_of(short, size) > width:
        keep -= 1
        short = (
            f"{name[: math.ceil(keep * 0.5)]}…{name[len(name) - keep + math.ceil(keep * 0.5) :]}"
        )
    return short


def shorten_all(names: Sequence[str], width: float, size: float) -> list[str]:
    """Shorten dotted names alike: what all of them begin with goes first, as it tells nothing."""
    if max(width_of(name, size) for name in names) > width:
        parts = [name.split(".") for name in names]
        shared = 0
        while all(len(p) > shared + 1 and p[shared] == parts[0][shared] for p in parts):
            shared += 1
        if shared and len(names) > 1:
            names = ["…" + ".".join(p[shared:]) for p in parts]
    return [shorten(name, width, size) for name in names]


def tick_text(value: float, _position: int | None = None) -> str:
    """Return a number as it stands under an axis: 0.01, 250, 20k, 1.5M, 10⁻⁷."""
    size = abs(value)
    if size < 1e-300:
        return "0"
    sign = "−" if value < 0 else ""
    if 1e-3 <= size * (1 + 1e-9) < 1e4:
        return f"{sign}{size:.4g}"
    if 1e4 <= size * (1 + 1e-9) < 1e9:
        factor, letter = (1e6, "M") if size * (1 + 1e-9) >= 1e6 else (1e3, "k")
        return f"{sign}{size / factor:.4g}{letter}"
    exponent = math.floor(math.log10(size) + 1e-9)
    power = f"10{str(exponent).translate(SUPERSCRIPT)}"
    mantissa = f"{size / 10.0**exponent:.3g}"
    return f"{sign}{power}" if mantissa == "1" else f"{sign}{mantissa}·{power}"
