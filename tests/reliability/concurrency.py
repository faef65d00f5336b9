"""One writer at full speed and many readers on one run file.

``python -m reliability.concurrency FOLDER SECONDS READERS`` does that, and prints a line of JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from cockpit import open_run
from cockpit.log import Row, RunFile, RunWriter

SCALARS = 10
"""Numbers of each step; there is an array, too, that holds the step."""

RECENT = 300
"""Steps that a reader looks at, beside a look at everything now and then."""

BURST = 100
"""Steps that are handed over before the writer may catch up."""


def write(path: Path, seconds: float, opened: Any) -> int:
    """Record steps as fast as they can be committed; return how many."""
    writer, step, end = RunWriter(path), 0, time.monotonic() + seconds
    opened.set()
    while time.monotonic() < end:
        for _ in range(BURST):
            rows = [Row(f"q{place}", float(step)) for place in range(SCALARS)]
            writer.record(step, [*rows, Row("h", np.full(20, step))])
            step += 1
        writer.flush()
    writer.close()
    return step


def look(file: RunFile, start: int | None) -> list[str]:
    """Return what is wrong with what a reader sees of a file at one moment."""
    with file._snapshot():
        steps = file.steps(start=start)[0]
        problems = []
        for one in file.series():
            if one.kind == "array":
                found = list(file.arrays(one.id, start=start))
                at = np.array([step for _, step, _ in found], dtype=np.int64)
                values = np.array([array[0] for _, _, array in found])
            else:
                _, at, values = file.scalars(one.id, start=start)
            if not np.array_equal(at, steps) or not np.array_equal(values, at):
                problems.append(f"{one.quantity} has {len(at)} of {len(steps)} steps from {start}")
        if not np.array_equal(
            steps, np.arange(steps[0], steps[0] + len(steps)) if len(steps) else []
        ):
            problems.append("steps are missing within")
    return problems


def read(path: Path, number: int, stop: Any, to: Connection) -> None:
    """Look at a file again and again, each reader in its own way, and send what was seen.

    Args:
        path: The run file.
        number: Of the reader: some open the file anew each time, others keep it open or use `open_run`.
        stop: Set at the end.
        to: Takes the number of looks, the last step, and the problems.
    """
    looks, newest, problems = 0, -1, []
    kept = RunFile(path) if number % 3 == 1 else None
    run = open_run(path) if number % 3 == 2 else None
    while not stop.is_set() and len(problems) < 5:
        looks += 1
        try:
            if run is not None:
                run.refresh()
                found = [run.series(f"q{place}") for place in (0, SCALARS - 1)]
                last = int(found[0].index[-1]) if len(found[0]) else -1
            else:
                with RunFile(path) as new:
                    file = new if kept is None else kept
                    _, _, at = file.extent()
                    last = -1 if at is None else at
                    start = None if looks % 50 == 0 else max(0, last - RECENT)
                    problems += look(file, start)
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}")
            continue
        if last < newest:
            problems.append(f"step {newest} was there, and then {last} was the last")
        newest = max(newest, last)
    if kept is not None:
        kept.close()
    to.send((looks, newest, problems))


def at_full_speed(folder: Path, seconds: float, readers: int) -> dict[str, Any]:
    """Return what a writer and so many readers have done in so many seconds."""
    path, context = folder / "run.db", multiprocessing.get_context("fork")
    stop, opened = context.Event(), context.Event()
    pipes, processes, results = [], [], context.SimpleQueue()
    writing = context.Process(target=lambda: results.put(write(path, seconds, opened)))
    writing.start()
    opened.wait()
    for number in range(readers):
        ours, theirs = context.Pipe(duplex=False)
        processes.append(context.Process(target=read, args=(path, number, stop, theirs)))
        processes[-1].start()
        pipes.append(ours)
    largest = 0
    while writing.is_alive():
        writing.join(0.5)
        try:
            largest = max(largest, os.stat(f"{path}-wal").st_size)
        except FileNotFoundError:
            continue
    steps = results.get()
    stop.set()
    seen = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    with RunFile(path) as file:
        problems = look(file, None)
        status = file.status
    return {
        "steps": steps,
        "rows_a_second": round(steps * (SCALARS + 1) / seconds),
        "looks": [looks for looks, _, _ in seen],
        "problems": problems + [one for _, _, found in seen for one in found],
        "largest_wal_mib": round(largest / 2**20, 1),
        "file_mib": round(path.stat().st_size / 2**20, 1),
        "status": status,
    }


if __name__ == "__main__":
    print(json.dumps(at_full_speed(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))))
