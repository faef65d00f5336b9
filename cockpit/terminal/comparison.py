"""How a comparison looks in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cockpit.comparison import Comparison, Row
from cockpit.printable import printable

__all__ = ["comparison_page"]

NAME, VALUE = 24, 13
"""Widths that a column of names and one of values get at least."""


def comparison_page(compared: Comparison, width: int) -> RenderableType:
    """Return several runs side by side; more than the width has room for come below.

    Args:
        compared: What there is to show.
        width: Of the terminal, in characters.
    """
    parts: list[RenderableType] = []
    for title, rows in (
        ("finding", compared.findings),
        ("setting", compared.settings),
        ("best", compared.best),
        ("now", compared.now),
    ):
        parts += _tables(title, compared.labels, rows, max(2, (width - NAME) // VALUE))
    if not compared.settings:
        parts.insert(0, Text(f"No setting differs; {compared.equal} are the same."))
    return Group(*parts)


def _tables(
    title: str, labels: Sequence[str], rows: Sequence[Row], at_once: int
) -> Iterator[RenderableType]:
    for start in range(0, len(labels), at_once):
        part = slice(start, start + at_once)
        if not rows:
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        table.add_column(title, style="bold", max_width=NAME + 8, overflow="fold")
        for label in labels[part]:
            table.add_column(Text(printable(label)), overflow="fold")
        for row in rows:
            texts = (row.name, *(value or "-" for value in row.values[part]))
            table.add_row(*(Text(printable(text)) for text in texts))
        yield Text()
        yield table
