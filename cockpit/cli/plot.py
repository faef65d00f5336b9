"""``cockpit plot``: all pictures of a run in one file."""

from __future__ import annotations

import argparse
from pathlib import Path

from cockpit.cli.command import Command, run_argument
from cockpit.cli.output import say, standard_output, stem
from cockpit.cli.pictures import draw

__all__ = ["COMMAND"]


def _arguments(parser: argparse.ArgumentParser) -> None:
    run_argument(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="the picture: .png, .pdf, .svg, ... (default: the run's name with .png)",
    )
    parser.add_argument("--dark", action="store_true", help="light on dark")


def _run(chosen: argparse.Namespace) -> None:
    from cockpit.run import open_run

    run = open_run(chosen.run)
    picture = chosen.output or run.path.with_name(f"{stem(run)}.png")
    drawn = draw(run, picture, dark=chosen.dark)
    say(standard_output(), str(drawn))


COMMAND = Command(
    "plot",
    "draw all pictures of a run into one file",
    "cockpit plot runs/demo.db -o demo.svg --dark",
    _arguments,
    _run,
)
