"""``cockpit show``: what a run is, and where it stands."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cockpit.cli.command import Command, run_argument
from cockpit.cli.output import print_table, say, standard_output

if TYPE_CHECKING:
    from cockpit.findings import Finding
    from cockpit.run import Run
    from cockpit.summary import EventCount

__all__ = ["COMMAND"]

EVENTS_SHOWN = 8


def _run(chosen: argparse.Namespace) -> None:
    from cockpit.run import open_run

    console = standard_output()
    run = open_run(chosen.run)
    say(console, *_header(run))
    print_table(console, run)


def _header(run: Run) -> Iterator[str]:
    """Say in a few lines what a run is."""
    from cockpit.summary import about, status_text

    what = about(run)
    yield f"Run        {run.path}, {status_text(what.status)}"
    yield f"Steps      {what.extent}"
    yield f"Model      {what.size}"
    yield from (f"Optimizer  {optimizer}" for optimizer in what.optimizers)
    yield from (f"Computed   {subject}: {basis}" for subject, basis in what.bases.items())
    yield from (f"Budget     {subject}: {text}" for subject, text in what.budget.items())
    yield from _findings(run.finding_records())
    yield from _events(what.events, what.steps)


def _findings(findings: tuple[Finding, ...]) -> Iterator[str]:
    if findings:
        yield f"Findings   {len(findings)}"
    for finding in findings:
        yield f"  {finding}"
        yield f"    {finding.action}"


def _events(events: tuple[EventCount, ...], steps: int) -> Iterator[str]:
    if not events:
        yield f"Events     none{': everything that was due was checked' if steps else ''}"
        return
    yield f"Events     {sum(event.count for event in events)}"
    for event in events[:EVENTS_SHOWN]:
        times = f" ({event.count} times)" if event.count > 1 else ""
        yield f"  {event.kind.replace('-', ' ')}: {event.subject}{times}: {event.message}"
    if len(events) > EVENTS_SHOWN:
        yield f"  and {len(events) - EVENTS_SHOWN} other kinds"


COMMAND = Command(
    "show",
    "print what a run is, and the last value of every quantity with its meaning",
    "cockpit show runs/demo.db",
    run_argument,
    _run,
)
