"""Letters: how wide a text is, where to break it, how to write a number under an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.textpath import text_to_path

__all__ = ["shorten", "shorten_all", "tick_text", "tick_texts", "width_of", "wrap"]

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@lru_cache(maxsize=2**14)  # the same words are measured again and again
def width_of(text: str, size: float, weight: str = "normal") -> float:
    """Return the width of a text in points, with some reserve for how small letters are rounded."""
    properties = FontProperties(size=size, weight=weight)
    if not (text.isascii() and text.isprintable()):
        text = _as_drawn(text, properties)
    return (
        float(text_to_path.get_text_width_height_descent(text, properties, ismath=False)[0]) * 1.1
    )


def _as_drawn(text: str, properties: FontProperties) -> str:
    """Return a text with the box that is drawn for a letter which the font does not have."""
    font = get_font(findfont(properties))
    return "".join(c if font.get_char_index(ord(c)) else "\ufffd" for c in text)


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
    """Shorten dotted names alike, so that they can still be told apart.

    What all of them begin with goes first, as it tells nothing. Then the middle is cut; where that
    makes names equal, their first words become single letters with their numbers instead,
    ``conv1.weight`` ``c1.weight``, from the left.
    """
    parts = [name.split(".") for name in names]
    if max(width_of(name, size) for name in names) > width and len(names) > 1:
        shared = 0
        while all(len(p) > shared + 1 and p[shared] == parts[0][shared] for p in parts):
            shared += 1
        if shared:
            parts = [["…" + p[shared], *p[shared + 1 :]] for p in parts]
    cut = [shorten(".".join(p), width, size) for p in parts]
    if len(set(cut)) == len(set(names)):
        return cut
    for place in range(max(map(len, parts)) - 1):
        if max(width_of(".".join(p), size) for p in parts) <= width:
            break
        parts = [
            [*p[:place], _initial(p[place]), *p[place + 1 :]] if place + 1 < len(p) else p
            for p in parts
        ]
    return [shorten(".".join(p), width, size) for p in parts]


def _initial(word: str) -> str:
    """Return the first letter of a word and the digits at its end: ``conv1`` is ``c1``."""
    start, rest = ("…", word[1:]) if word.startswith("…") else ("", word)
    return start + rest[:1] + rest[1:][len(rest[1:].rstrip("0123456789")) :]


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
    return _power(value)


def tick_texts(values: Sequence[float]) -> list[str]:
    """Return numbers as they stand beside one scale, all written alike.

    Where one of them needs a power of ten, all have one, and where one is in thousands, all that can be
    are: 500, 2k, 10k.
    """
    texts = [tick_text(value) for value in values]
    if any(_is_power(text) for text in texts):
        return [_power(value) if value else "0" for value in values]
    if any(text.endswith("k") for text in texts):
        pairs = zip(values, texts, strict=True)
        return [f"{v / 1e3:.4g}k".replace("-", "−") if 1e3 <= abs(v) < 1e4 else t for v, t in pairs]
    return texts


def _is_power(text: str) -> bool:
    return text[-1:] in set("⁰¹²³⁴⁵⁶⁷⁸⁹")


def _power(value: float) -> str:
    """Return a number other than zero by its power of ten: 10⁻⁷, 2·10¹⁰."""
    size, sign = abs(value), "−" if value < 0 else ""
    exponent = math.floor(math.log10(size) + 1e-9)
    power = f"10{str(exponent).translate(SUPERSCRIPT)}"
    mantissa = f"{size / 10.0**exponent:.3g}"
    return f"{sign}{power}" if mantissa == "1" else f"{sign}{mantissa}·{power}"
