"""Run the fault benchmark: ``make faults``, or ``python -m benchmarks.faults --help``."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # every run has one thread, and there are several runs

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import health
from benchmarks.faults import page
from benchmarks.faults.judging import Judged, bands, judge, shown
from benchmarks.faults.kinds import BY_NAME
from benchmarks.faults.recording import read, record, write_index
from benchmarks.faults.splits import HALVES, HEALTHY, Planned, planned
from benchmarks.faults.summary import Half
from benchmarks.faults.sweep import explore, write_rates
from benchmarks.faults.training import ARCHITECTURES, OPTIMIZERS

RUNS = Path("runs") / "faults"
COST = "cost/health.json"
"""What the preset costs, in the folder of the runs."""


def main(arguments: Sequence[str]) -> int:
    """Do what the command says.

    Returns:
        0, or 1 if something failed or is missing.
    """
    options = parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    return command(options)


def parser() -> argparse.ArgumentParser:
    """Return what reads the arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults",
        description="Train with known faults and without, and count what the doctor says of it.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    make = commands.add_parser("run", help="make the runs that are not there yet")
    make.add_argument("--again", action="store_true", help="also those that are there")
    make.set_defaults(command=run)

    tell = commands.add_parser(
        "report", help="say what the doctor and the baselines say of the runs"
    )
    tell.add_argument(
        "--write",
        action="store_true",
        help="write benchmarks/results/faults.json and .md, and the table of docs/fault-benchmark.md",
    )
    tell.set_defaults(command=report)

    for command in (make, tell):
        command.add_argument(
            "--half", choices=HALVES, action="append", help="only this half of the runs"
        )
        command.add_argument(
            "--only",
            action="append",
            choices=[HEALTHY, *BY_NAME],
            metavar="KIND",
            help="only this kind of fault, or healthy; may be given several times",
        )
        command.add_argument(
            "--architecture", action="append", choices=ARCHITECTURES, help="only this one"
        )

    price = commands.add_parser(
        "cost", help="measure what the doctor's preset costs; nothing else should run meanwhile"
    )
    price.add_argument("--quick", action="store_true", help="small batches and few repeats")
    price.set_defaults(command=cost)

    rates = commands.add_parser("sweep", help="find the best learning rates anew")
    rates.set_defaults(command=find_rates)

    for command in (make, tell, price):
        command.add_argument("--runs", type=Path, default=RUNS, help="folder of the run files")
    for command in (make, tell, rates):
        command.add_argument(
            "--jobs", type=int, default=os.cpu_count() or 1, help="how many processes"
        )
    return parser


def chosen(options: argparse.Namespace) -> list[Planned]:
    """Return the runs that the options ask for."""
    return [
        plan
        for half in options.half or HALVES
        for plan in planned(half)
        if not options.only or plan.kind in options.only
        if not options.architecture or plan.architecture in options.architecture
    ]


def run(options: argparse.Namespace) -> int:
    """Make the runs."""
    options.runs.mkdir(parents=True, exist_ok=True)
    plans = [
        plan
        for plan in chosen(options)
        if options.again or not (options.runs / f"{plan.name}.json").exists()
    ]
    console = Console(stderr=True)
    failed = 0
    for result in results(
        console, "training", partial(record, folder=options.runs), plans, options.jobs
    ):
        failed += result is None
        write_index(options.runs)
    there = len(write_index(options.runs))
    console.print(
        f"{len(plans) - failed} runs made, {failed} failed; {there} are in {options.runs}."
    )
    return int(failed > 0)


def report(options: argparse.Namespace) -> int:
    """Judge the runs, print the tables, and write them if that is asked for."""
    console = Console()
    console = console if console.is_terminal else Console(width=page.WIDTH)
    halves, missing = [], 0
    for name in options.half or HALVES:
        plans = [plan for plan in chosen(options) if plan.half == name]
        there = [plan for plan in plans if (options.runs / f"{plan.name}.json").exists()]
        missing += len(plans) - len(there)
        if there:
            halves.append(Half(name, judged(options, there, console)))
    if missing:
        Console(stderr=True).print(
            f"{missing} runs are missing in {options.runs}. Make them: python -m benchmarks.faults run."
        )
    for half in halves:
        for table in page.tables(half):
            console.print(table.terminal(console.width))
    if options.write and missing:
        Console(stderr=True).print("Nothing is written of a part of the runs.")
    elif options.write:
        for path in page.write(halves, page.kept_cost(options.runs / COST)):
            console.print(f"Written: {os.path.relpath(path)}")
    return int(missing > 0)


def judged(options: argparse.Namespace, plans: Sequence[Planned], console: Console) -> list[Judged]:
    """Judge some runs of a half."""
    of_healthy = bands(known for known in read(options.runs) if known["kind"] == HEALTHY)
    paths = [options.runs / f"{plan.name}.json" for plan in plans]
    found = [one for one in results(console, "judging", judge, paths, options.jobs) if one]
    found.sort(key=lambda one: one.run["file"])
    return [shown(one, options.runs, of_healthy) for one in found]


def cost(options: argparse.Namespace) -> int:
    """Measure the cost of the preset, print it and keep it beside the runs."""
    options.runs.mkdir(parents=True, exist_ok=True)
    console = Console()
    with console.status("measuring"):
        section = health.measured(options.quick, lambda: None)
    for table in section.tables:
        console.print(table.terminal(console.width))
    (options.runs / COST).parent.mkdir(exist_ok=True)
    page.keep_cost(options.runs / COST, section)
    return 0


def find_rates(options: argparse.Namespace) -> int:
    """Find the best learning rates and those that are too high."""
    console = Console()
    pairs = list(product(ARCHITECTURES, OPTIMIZERS))
    found = [one for one in results(console, "exploring", explore, pairs, options.jobs) if one]
    if len(found) < len(pairs):
        return 1
    for one in sorted(found, key=lambda one: (one.architecture, one.optimizer)):
        told = (
            f"{one.architecture} {one.optimizer}: best {one.best:g}, too high from {one.edge:g} on"
        )
        console.print(told, highlight=False)
    write_rates(found)
    return 0


def results(
    console: Console, what: str, function: Callable[[Any], Any], arguments: Sequence[Any], jobs: int
) -> Iterator[Any]:
    """Yield a function's values as they come, None for an error, which is printed; show how far it is."""
    columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        for future in bar.track(futures(function, arguments, jobs), total=len(arguments)):
            if (error := future.exception()) is None:
                yield future.result()
                continue
            console.print("".join(traceback.format_exception(error)), markup=False, highlight=False)
            yield None


def futures(
    function: Callable[[Any], Any], arguments: Sequence[Any], jobs: int
) -> Iterator[Future[Any]]:
    """Yield what is done: one after the other in this process, or in several others."""
    if jobs == 1:
        for argument in arguments:
            future: Future[Any] = Future()
            try:
                future.set_result(function(argument))
            except Exception as error:
                future.set_exception(error)
            yield future
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as workers:
        yield from as_completed(workers.submit(function, argument) for argument in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
