"""Everything that reads a run, done one after the other."""

from pathlib import Path

from cockpit.errors import CockpitError
from cockpit.log import RunFile, open_file
from cockpit.run import Run, open_run


def read_run(path: Path) -> Run:
    """Read all that a file says of a run; a `CockpitError` is the only thing that may go wrong."""
    run = open_run(path)
    failures: list[CockpitError] = []

    def attempt(read, *arguments, **named):
        try:
            return read(*arguments, **named)
        except CockpitError as error:
            failures.append(error)
            return []

    for name in ("settings", "status", "parameters", "steps", "times", "quantities"):
        attempt(getattr, run, name)
    for method in (run.scalars, run.arrays, run.events, run.findings, run.wide):
        attempt(method)
    for quantity in attempt(getattr, run, "quantities"):
        for method in (run.series, run.newest, run.parts, run.arrays):
            attempt(method, quantity)
    attempt(run.refresh)
    attempt(repr, run)
    with open_file(path) as file:
        attempt(file.extent)
        attempt(file.steps)
        if isinstance(file, RunFile):
            attempt(file.output, metrics=True)
            attempt(getattr, file, "is_live")
            attempt(file.mark)
            for one in attempt(file.series):
                attempt(file.scalars_at, one.id, [0, 3, 5])
                attempt(file.scalars, one.id, start=3)
    if failures:
        raise failures[0]
    return run
