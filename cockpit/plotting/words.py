"""Words as they are drawn: names come from models and users, and may hold whatever a string can."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any

from cockpit.instruments.panel import Panel
from cockpit.printable import printable

__all__ = ["missing_glyphs_ignored", "printable_panel"]


def printable_panel(panel: Panel) -> Panel:
    """Return a panel with printable words, those of its marks included.

    What has no shape can neither be measured nor drawn, and what turns the direction of writing would turn
    the words around it.
    """
    shown: Panel = _printable(replace(panel, marks=tuple(map(_printable, panel.marks))))
    return shown


def _printable(item: Any) -> Any:
    """Return a panel or a mark with printable words."""
    if not is_dataclass(item) or isinstance(item, type):
        return item
    words: dict[str, Any] = {}
    for one in fields(item):
        value = getattr(item, one.name)
        if _is_odd(value):
            words[one.name] = printable(value)
        elif isinstance(value, tuple) and any(map(_is_odd, value)):
            words[one.name] = tuple(map(printable, value))
    return replace(item, **words) if words else item


def _is_odd(value: Any) -> bool:
    return isinstance(value, str) and not value.isprintable()


@contextmanager
def missing_glyphs_ignored() -> Iterator[None]:
    """Draw letters that the font does not have as boxes, without a warning for each of them.

    Whoever calls a layer by an emoji can do nothing about the fonts of this machine.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .*missing from", category=UserWarning)
        yield
