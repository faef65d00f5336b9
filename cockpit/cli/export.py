"""``cockpit export``: the data of a run for other programs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cockpit.cli.command import Command, run_argument
from cockpit.cli.output import byte_output, progress, say, standard_output, stem

__all__ = ["COMMAND"]

FORMATS = {
    "csv": "one table as text",
    "parquet": "one table in columns (needs the extra parquet)",
    "json-v1": "all values as Cockpit 1.0 wrote them",
    "tensorboard": "a folder of event files, histograms too (needs the extra tensorboard)",
}
"""The names of `cockpit.export.FORMATS`, which loads pandas."""

TABLES = ("scalars", "wide", "arrays", "events", "findings")
"""The names of `cockpit.export.TABLES`."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    run_argument(parser)
    parser.add_argument(
        "--format",
        choices=tuple(FORMATS),
        default="csv",
        help="; ".join(f"{name}: {what}" for name, what in FORMATS.items()) + " (default: csv)",
    )
    parser.add_argument(
        "--table",
        choices=TABLES,
        default="scalars",
        help="what a csv or parquet file holds: the numbers, a row each or a row per step (wide), "
        "the arrays, the events or the findings (default: scalars)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="where to, - for standard output; a file that is there is replaced, event files never "
        "are (default: the run's name with the ending of the format)",
    )


def _run(chosen: argparse.Namespace) -> None:
    from cockpit.export import FORMATS as WRITERS
    from cockpit.export import export
    from cockpit.run import open_run

    run = open_run(chosen.run)
    ending = WRITERS[chosen.format].ending
    with progress("Writing") as told:
        if chosen.output == "-":
            stream = byte_output() if chosen.format == "parquet" else sys.stdout.buffer
            export(run, chosen.format, stream, table=chosen.table, on_progress=told)
            return
        target = Path(chosen.output or run.path.with_name(f"{stem(run)}{ending}"))
        export(run, chosen.format, target, table=chosen.table, on_progress=told)
    say(standard_output(), str(target))


COMMAND = Command(
    "export",
    "write the data of a run for other programs",
    "cockpit export runs/demo.db --format parquet -o demo.parquet",
    _arguments,
    _run,
)
