"""What was measured, and how it is shown: on the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group
from rich.padding import Padding
from rich.table import Table as Terminal
from rich.text import Text

GAP = 3
"""Characters between two columns on the terminal."""


@dataclass(frozen=True)
class Aim:
    """A number that should not be larger than a limit."""

    what: str
    value: float
    limit: float

    @property
    def met(self) -> bool:
        """Whether it is not."""
        return self.value <= self.limit

    @property
    def verdict(self) -> str:
        """The limit, and whether it is met."""
        return f"<= {self.limit:.4g}: {'met' if self.met else 'MISSED'}"

    def __str__(self) -> str:
        return f"{self.what} {self.value:.4g} {self.verdict}"


@dataclass(frozen=True)
class Table:
    """A table of words and numbers that are formatted already.

    Args:
        title: What stands above it.
        head: Names of the columns.
        rows: As many cells as there are columns, in each row; a cell may have several lines.
        words: The columns that hold words, and stand on the left.
        notes: Sentences below it.
        optional: The columns that a narrow terminal does without, the first one first.
    """

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    words: tuple[str, ...] = ()
    notes: Sequence[str] = ()
    optional: tuple[str, ...] = ()

    def terminal(self, width: int) -> Group:
        """Return the table for a terminal of a width."""
        shown, dropped = self._fitting(width)
        table = Terminal(box=box.SIMPLE_HEAD)
        for name in (self.head[column] for column in shown):
            words = name in self.words
            table.add_column(Text(name), justify="left" if words else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(row[column]) for column in shown))
        notes = list(self.notes)
        if dropped:
            notes.append(
                f"Left out, for want of room: {', '.join(name.strip() for name in dropped)}."
            )
        title = Text(self.title, style="bold")
        return Group(title, table, *(Padding(Text(note), (0, 0, 0, 2)) for note in notes), "")

    def _fitting(self, width: int) -> tuple[list[int], list[str]]:
        """Return the columns that fit, and the names of those that do not."""
        needed = [
            GAP + max(len(line) for cell in cells for line in cell.split("\n"))
            for cells in zip(self.head, *self.rows, strict=True)
        ]
        shown, dropped = list(range(len(self.head))), []
        for name in self.optional:
            if sum(needed[column] for column in shown) + 2 <= width:
                break
            shown.remove(self.head.index(name))
            dropped.append(name)
        return shown, dropped

    def markdown(self) -> str:
        """Return the table in Markdown."""
        rule = ["---" if name in self.words else "---:" for name in self.head]
        body = [[cell.replace("\n", "; ").replace("|", "\\|") for cell in row] for row in self.rows]
        table = "\n".join(_line(cells) for cells in [self.head, rule, *body])
        notes = "".join(f"\n{note}\n" for note in self.notes)
        return f"## {self.title}\n\n{table}\n{notes}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Section:
    """What was found about one subject.

    Args:
        tables: As they are shown.
        aims: What should be reached, each with a name that says where it belongs.
        data: The same numbers for programs, of JSON's kinds.
        text: What is shown as it stands, such as the tables of `cockpit.profile`.
    """

    tables: list[Table]
    aims: list[Aim]
    data: Mapping[str, object]
    text: str = ""
