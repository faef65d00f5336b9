"""``cockpit compare``: several runs side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cockpit.cli.command import Command
from cockpit.cli.output import say, standard_output
from cockpit.cli.report import add_output, kind_of, write
from cockpit.errors import InvalidArgument

if TYPE_CHECKING:
    from cockpit.run import Run

__all__ = ["COMMAND"]


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run files, two or more")
    add_output(parser, "a table in the terminal; with --format, standard output")


def _run(chosen: argparse.Namespace) -> None:
    from cockpit.run import open_run

    runs = [open_run(path) for path in chosen.runs]
    if len(runs) < 2:
        raise InvalidArgument(
            "one run cannot be compared. Give two or more, or use cockpit report."
        )
    kind = kind_of(chosen)
    if chosen.output is None and chosen.format is None:
        _print(runs)
    else:
        write(runs, kind, chosen.output or "-")


def _print(runs: list[Run]) -> None:
    from cockpit.comparison import compare
    from cockpit.terminal import comparison_page

    console = standard_output()
    compared = compare(runs)
    for label, run, what in zip(compared.labels, runs, compared.abouts, strict=True):
        say(console, f"{label}: {run.path}, {what.status}, {what.extent}")
    console.print(comparison_page(compared, console.width))


COMMAND = Command(
    "compare",
    "put runs side by side: best and last values, findings, settings that differ, pictures",
    "cockpit compare runs/a.db runs/b.db -o comparison.html",
    _arguments,
    _run,
)
