"""Print what tracking costs: ``make bench``, or ``python -m benchmarks --quick`` for a first look."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # the profiler talks to itself otherwise

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.machine import described, machine
from benchmarks.report import Report
from benchmarks.subjects import SUBJECTS
from benchmarks.tables import Section

RESULTS = Path(__file__).parent / "results"
MINUTES = 15
WIDTH = 160
"""Columns that the widest table takes, where there is no terminal to say how wide it is."""


def main(arguments: Sequence[str]) -> int:
    """Measure, print and keep the results.

    Returns:
        0; 1 if a subject failed, or with ``--strict`` if an aim is missed.
    """
    options = parser().parse_args(arguments)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=WIDTH, highlight=False)
    started = time.monotonic()
    report = Report(machine(), options.quick, MINUTES)
    console.print(f"{report.preface}\n{described(report.machine)}\n")
    failed = []
    with progress_bar(console, len(options.only)) as advance:
        for name in options.only:
            try:
                section = SUBJECTS[name](options.quick, advance(name))
            except Exception:
                failed.append(name)
                console.print(f"{name} failed: {traceback.format_exc()}", markup=False)
                continue
            report.sections[name] = section
            show(console, section)
    report.minutes = (time.monotonic() - started) / 60
    console.print("\n".join(report.closing()), markup=False)
    whole = set(options.only) == SUBJECTS.keys()
    stem = "quick" if options.quick else "full"
    written = report.write(RESULTS / (stem if whole and not failed else "partial"))
    console.print(f"Written to {' and '.join(os.path.relpath(path) for path in written)}.")
    return 1 if failed or (options.strict and report.missed) else 0


def parser() -> argparse.ArgumentParser:
    """Return what reads the arguments."""
    names = ", ".join(SUBJECTS)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure what tracking costs, side by side with the plain training step. Nothing "
        f"else should run meanwhile. It takes up to {MINUTES} minutes on two cores.",
        epilog=f"Subjects: {names}. The results go to benchmarks/results/: full.json and full.md, with "
        "--quick quick.*, and with --only partial.*. Aims that are missed are said, and only with "
        "--strict make it end with exit code 1.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="small batches and few repeats, to see that it works"
    )
    parser.add_argument(
        "--only",
        type=subjects,
        default=list(SUBJECTS),
        metavar="SUBJECT,...",
        help="measure only some of the subjects",
    )
    parser.add_argument("--strict", action="store_true", help="exit code 1 if an aim is missed")
    return parser


def subjects(names: str) -> list[str]:
    """Return the subjects that are named, in the order in which they are measured.

    Raises:
        ArgumentTypeError: if there is none of a name.
    """
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    unknown = sorted(wanted - SUBJECTS.keys())
    if unknown or not wanted:
        raise argparse.ArgumentTypeError(
            f"there is no subject {', '.join(unknown) or 'named'}. Choose from {', '.join(SUBJECTS)}."
        )
    return [name for name in SUBJECTS if name in wanted]


def show(console: Console, section: Section) -> None:
    """Print what was found about a subject."""
    for table in section.tables:
        console.print(table.terminal(console.width))
    if section.text:
        console.print(section.text, markup=False, highlight=False)


@contextmanager
def progress_bar(console: Console, total: int) -> Iterator[Callable[[str], Callable[[], None]]]:
    """Show which subject is being measured; yields a function from its name to what it calls meanwhile.

    It is drawn between two measurements only: a thread that draws would be measured as well.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("subjects, {task.fields[steps]} measurements"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("", total=total, steps=0)
        begun = steps = 0
        drawn = 0.0

        def tick() -> None:
            nonlocal steps, drawn
            steps += 1
            if time.monotonic() - drawn > 1:
                bar.update(task, steps=steps, refresh=True)
                drawn = time.monotonic()

        def begin(name: str) -> Callable[[], None]:
            nonlocal begun
            bar.update(task, description=name, completed=begun, refresh=True)
            begun += 1
            return tick

        yield begin


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
