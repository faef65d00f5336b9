"""What commands print, and where to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from cockpit.errors import InvalidArgument
from cockpit.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

    from cockpit.run import Run

__all__ = ["byte_output", "print_table", "progress", "say", "standard_output", "stem"]


def standard_output() -> Console:
    """Return the console that prints to standard output."""
    from rich.console import Console

    return Console()


def say(console: Console, *lines: str) -> None:
    """Print lines as they are, however long; nothing in them does anything to a terminal."""
    for line in lines:
        console.print(printable(line), markup=False, highlight=False, emoji=False, soft_wrap=True)


def print_table(console: Console, run: Run) -> None:
    """Print the last value of every quantity with its meaning."""
    from cockpit.summary import NOTHING, as_table, readings

    lines = readings(run)
    console.print()
    console.print(as_table(lines) if lines else NOTHING)
    console.print()


def stem(run: Run) -> str:
    """Return the name of a run's file without its ending."""
    return run.path.name.removesuffix(".db").removesuffix(".json")


def byte_output() -> BinaryIO:
    """Return standard output for a file that is no text.

    Raises:
        InvalidArgument: It is a terminal, in which such a file does harm.
    """
    if sys.stdout.isatty():
        raise InvalidArgument(
            "this is no text for a terminal. Give a file with -o, or send it on: ... -o - > FILE"
        )
    return sys.stdout.buffer


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show on standard error how far something is, if that is a terminal; the bar goes in the end.

    Args:
        what: What is done, such as ``"Drawing"``.

    Yields:
        A function to be told how much is done, of how much.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn(what),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("", total=None)
    with bar:
        yield lambda done, total: bar.update(task, completed=done, total=total)
