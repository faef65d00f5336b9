"""``cockpit report`` and ``cockpit compare``: all there is to see of runs, in one file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cockpit.cli.command import Command, run_argument
from cockpit.cli.output import byte_output, progress, say, standard_output, stem
from cockpit.errors import InvalidArgument

if TYPE_CHECKING:
    from cockpit.run import Run

__all__ = ["COMMAND", "add_output", "kind_of", "write"]

ENDINGS = {"html": ".html", "markdown": ".md", "json": ".json", "png": ".png"}
"""What names of files end in, by format: those of `cockpit.report.FORMATS`, which loads pandas."""


def add_output(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the arguments that say what to write, and where to."""
    parser.add_argument(
        "--format",
        choices=tuple(ENDINGS),
        help="html: a page that needs neither network nor script; markdown; json: for programs; "
        "png: the pictures alone (default: as the name ends, or html)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help=f"where to, - for standard output; a file that is there is replaced (default: {default})",
    )


def kind_of(chosen: argparse.Namespace) -> str:
    """Return the format that was asked for, by itself or by the ending of the name.

    Raises:
        InvalidArgument: The ending is that of no format.
    """
    if chosen.format:
        return str(chosen.format)
    ending = Path(chosen.output or "").suffix.lower()
    if not ending or chosen.output == "-":
        return "html"
    by_ending = {end: kind for kind, end in ENDINGS.items()} | {".htm": "html"}
    if ending not in by_ending:
        raise InvalidArgument(
            f"{chosen.output} does not say which format is meant. Choose a name that ends in "
            f"{', '.join(by_ending)}, or give --format."
        )
    return by_ending[ending]


def write(runs: list[Run], kind: str, output: str) -> None:
    """Write a report, and say where it is."""
    from cockpit.report import report

    with progress("Drawing") as told:
        if output == "-":
            stream = byte_output() if kind == "png" else sys.stdout.buffer
            report(runs, stream, kind=kind, on_progress=told)
            return
        report(runs, output, kind=kind, on_progress=told)
    say(standard_output(), output)


def _arguments(parser: argparse.ArgumentParser) -> None:
    run_argument(parser)
    add_output(parser, "RUN-report.html, or .md, .json, .png")


def _run(chosen: argparse.Namespace) -> None:
    from cockpit.run import open_run

    kind = kind_of(chosen)
    run = open_run(chosen.run)
    default = run.path.with_name(f"{stem(run)}-report{ENDINGS[kind]}")
    write([run], kind, chosen.output or str(default))


COMMAND = Command(
    "report",
    "write all there is to see of a run into one file: findings, pictures, values, settings",
    "cockpit report runs/demo.db -o report.html",
    _arguments,
    _run,
)
