"""What a very long run takes: memory of the writer and of readers, room on the disk.

``python -m reliability.long_runs FOLDER SCALARS ARRAYS`` simulates one, and prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from cockpit import open_run
from cockpit.log import Row, RunFile, RunWriter

SERIES = 50
"""Numbers of a step."""

HISTOGRAMS = 5
"""Series of histograms, each with a hundred bins."""

RETENTION = 50

PACE = 50_000
"""Values that are handed over before the writer may catch up: no training records as fast as this does."""


def simulate(
    path: Path, scalars: int, arrays: int, retention: int | None, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Write a run; return what that took.

    Args:
        path: The run file.
        scalars: Numbers in all.
        arrays: Histograms in all, spread evenly.
        retention: See `RunWriter`.
        tell: Takes how far it has come.
    """
    generator, steps = np.random.default_rng(0), scalars // SERIES
    every = max(1, steps // max(1, arrays // HISTOGRAMS))
    peaks, begun, waited = [], time.monotonic(), 0.0
    with closing(RunWriter(path, retention=retention)) as writer:
        for step in range(steps):
            numbers = generator.normal(size=SERIES).tolist()
            rows = [Row(f"q{place}", number) for place, number in enumerate(numbers)]
            if step % every == 0:
                rows += [
                    Row(f"h{place}", generator.poisson(20.0, 100), parameter="layer.weight")
                    for place in range(HISTOGRAMS)
                ]
            writer.record(step, rows)
            if step % (PACE // SERIES) == 0:
                writer.flush()
            if step % max(1, steps // 20) == 0:
                peaks.append(resident())
                tell(f"{100 * step // steps} %, {peaks[-1]:.0f} MiB of memory")
        beginning = time.monotonic()
    waited = time.monotonic() - beginning
    return {
        "seconds": round(time.monotonic() - begun, 1),
        "seconds_to_close": round(waited, 1),
        "writer_mib_at_first": round(peaks[1], 1),
        "writer_mib_at_last": round(max(peaks[2:]), 1),
        "file_mib": round(path.stat().st_size / 2**20, 2),
        "steps": steps,
    }


def read(path: Path) -> dict[str, Any]:
    """Read a run in the ways in which the page and the terminal do; return what that takes."""
    before, begun = resident(), time.monotonic()
    with RunFile(path) as file:
        series = {one.quantity: one for one in file.series()}
        numbers = sum(
            len(file.scalars(one.id)[2]) for one in series.values() if one.kind == "scalar"
        )
        one_series = resident() - before
        arrays = {
            name: sum(1 for _ in file.arrays(one.id))
            for name, one in series.items()
            if one.kind == "array"
        }
        iterated = resident() - before
    with open_run(path) as run:
        newest = run.newest("h0")
        run.refresh()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "numbers": numbers,
        "arrays": arrays,
        "newest": None if newest is None else newest[0],
        "reader_mib_after_each_series": round(one_series, 1),
        "reader_mib_after_all_arrays": round(iterated, 1),
        "reader_peak_mib": round(peak - before, 1),
        "read_seconds": round(time.monotonic() - begun, 1),
    }


def resident() -> float:
    """Return the memory of this process in MiB."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:  # the most so far, where the system does not tell more
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def alone(what: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Return what a function returns in a process of its own, whose memory is its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as file:
            json.dump(what(*arguments), file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        answer = file.read()
    os.waitpid(child, 0)
    return json.loads(answer)


def measure(folder: Path, scalars: int, arrays: int) -> dict[str, Any]:
    """Simulate a run that keeps everything and one that thins its histograms, and read both."""
    results = {}
    for name, retention in (("everything", None), ("retention", RETENTION)):
        path = folder / f"{name}.db"

        def tell(text: str, name: str = name) -> None:
            print(f"\r{name}: {text}   ", end="", file=sys.stderr, flush=True)

        results[name] = alone(simulate, path, scalars, arrays, retention, tell) | alone(read, path)
        print(file=sys.stderr)
    return results


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
