"""What makes a command, and the readers of numbers that commands share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Command", "at_least", "run_argument"]


@dataclass(frozen=True)
class Command:
    """One command of ``cockpit``.

    Args:
        name: What it is called.
        what: What it does, as the list of commands says it.
        example: A full line that uses it.
        arguments: Adds its arguments to a parser.
        run: Does it, and may return an exit code. Its errors become exit codes: see `cockpit.cli.main`.
    """

    name: str
    what: str
    example: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]


def run_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a run file."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run file")


def at_least(least: float) -> Callable[[str], float]:
    """Make a reader of numbers, whole ones if `least` is whole."""

    def read(text: str) -> float:
        kind = type(least)
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value < math.inf:
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"must be {what} of at least {least}, got {text!r}")
        return value

    return read
