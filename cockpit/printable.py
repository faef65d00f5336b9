"""Texts of a run as a terminal may show them: names come from whoever wrote the file."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    r"""Return a text on one line that does nothing to a terminal.

    Breaks, tabs and unusual spaces become blanks. Other control characters, such as the escape that
    begins a colour or the title of the window, and those that turn the direction of writing become
    their escapes in Python, such as ``\x1b``.
    """
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else " " if sign.isspace() else ascii(sign)[1:-1]
        for sign in text
    )
