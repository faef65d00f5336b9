"""``cockpit watch``: a run in the terminal, while it trains."""

from __future__ import annotations

import argparse

from cockpit.cli.command import Command, at_least, run_argument
from cockpit.cli.output import standard_output

__all__ = ["COMMAND"]


def _arguments(parser: argparse.ArgumentParser) -> None:
    run_argument(parser)
    parser.add_argument(
        "--interval",
        type=at_least(0.1),
        default=1.0,
        metavar="SECONDS",
        help="time between two updates (default: 1)",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="print the table once, as is done wherever the output is no terminal",
    )


def _run(chosen: argparse.Namespace) -> None:
    from cockpit.terminal import watch

    watch(chosen.run, once=chosen.once, interval=chosen.interval, console=standard_output())


COMMAND = Command(
    "watch",
    "follow a run in the terminal: curves, values and findings, until q is pressed",
    "cockpit watch runs/demo.db",
    _arguments,
    _run,
)
