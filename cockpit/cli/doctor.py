"""``cockpit doctor``: what is wrong with a run, and what to do."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cockpit.cli.command import Command, run_argument
from cockpit.cli.output import say, standard_output
from cockpit.findings import SEVERITIES

__all__ = ["COMMAND"]

FORMATS = {
    "text": "for a terminal",
    "json": "for programs",
    "sarif": "SARIF 2.1.0, for code hosts and editors",
    "markdown": "for a page",
}
"""The names of `cockpit.doctor.formats.FORMATS`."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    run_argument(parser)
    parser.add_argument(
        "--format",
        choices=tuple(FORMATS),
        default="text",
        help="; ".join(f"{name}: {what}" for name, what in FORMATS.items()) + " (default: text)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="-",
        help="where to; a file that is there is replaced (default: -, standard output)",
    )
    parser.add_argument(
        "--fail-on",
        choices=SEVERITIES,
        default="note",
        help="the least severity that makes the exit code 1 (default: note, any finding)",
    )


def _run(chosen: argparse.Namespace) -> int:
    from cockpit.doctor import diagnose
    from cockpit.doctor.formats import FORMATS as WRITERS
    from cockpit.replacing import replace_file

    diagnosis = diagnose(chosen.run)
    text = WRITERS[chosen.format](diagnosis, str(chosen.run))
    if chosen.output == "-":
        sys.stdout.write(text)
    else:
        replace_file(Path(chosen.output), text.encode())
        say(standard_output(), chosen.output)
    failing = SEVERITIES[: SEVERITIES.index(chosen.fail_on) + 1]
    return int(any(finding.severity in failing for finding in diagnosis.findings))


COMMAND = Command(
    "doctor",
    "say what is wrong with a training, where, since when, and what to do",
    "cockpit doctor runs/demo.db --fail-on error",
    _arguments,
    _run,
)
