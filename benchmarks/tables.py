"""What was measured, and how it is shown: on the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.table import Table

HEAD = ("tracked", "step [ms]", "quartiles", "x plain", "peak [MiB]", "x plain", "aims")


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

    def __str__(self) -> str:
        return (
            f"{self.what} {self.value:.3g} <= {self.limit:.3g}: {'met' if self.met else 'MISSED'}"
        )


@dataclass(frozen=True)
class Row:
    """The cost of tracking one set of quantities on every step.

    Args:
        tracked: Name of the set.
        milliseconds: Of a step, lower quartile, median and upper quartile.
        ratio: To the plain step, the median over the repeats.
        peak: Bytes of all tensors at the worst moment of a step.
        plain_peak: The same of the plain step.
        aims: What should be reached.
    """

    tracked: str
    milliseconds: tuple[float, float, float]
    ratio: float
    peak: int
    plain_peak: int
    aims: list[Aim] = field(default_factory=list)

    def cells(self) -> Iterator[str]:
        """Yield the words of the table's row."""
        low, median, high = self.milliseconds
        yield self.tracked
        yield f"{median:.1f}"
        yield f"{low:.1f}-{high:.1f}"
        yield f"{self.ratio:.2f}"
        yield f"{self.peak / 2**20:.1f}"
        yield f"{self.peak / self.plain_peak:.2f}"
        yield "\n".join(map(str, self.aims))


def terminal(title: str, rows: list[Row]) -> Table:
    """Return the table for the terminal."""
    table = Table(title=title, title_justify="left")
    for name in HEAD:
        words = name in ("tracked", "aims")
        table.add_column(name, justify="left" if words else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row.cells())
    return table


def markdown(title: str, rows: list[Row]) -> str:
    """Return the table in Markdown."""
    lines = [HEAD, ["---" if name in ("tracked", "aims") else "---:" for name in HEAD]]
    body = [[cell.replace("\n", ", ") for cell in row.cells()] for row in rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in [*lines, *body])
    return f"## {title}\n\n{table}\n"
