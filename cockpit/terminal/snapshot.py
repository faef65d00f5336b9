"""What a terminal shows of a run at one moment, as data."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cockpit.findings import SEVERITIES, Finding
from cockpit.run import Run
from cockpit.summary import About, Reading, about, ordered, reading_of
from cockpit.terminal.trends import trend_of

__all__ = ["Snapshot", "age", "growing", "snapshot", "version_of"]

PACE_OVER = 50
"""Over how many of the last tracked steps the pace is measured."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A run as it is now.

    Args:
        path: The run file.
        about: What the run is.
        pace: Steps per second lately; NaN if not known.
        written: When the last step was tracked, in seconds since 1970; NaN if none was.
        findings: What is wrong with it, the worst and then the earliest first.
        lines: The value and the meaning of each quantity.
        trends: The curve of each, `[n]` each; empty where there is none.
    """

    path: str
    about: About
    pace: float
    written: float
    findings: tuple[Finding, ...]
    lines: tuple[Reading, ...]
    trends: tuple[np.ndarray, ...]


def snapshot(run: Run) -> Snapshot:
    """Return what there is to show of a run; `Run.refresh` it before to have what is new."""
    *_, last = growing(run)
    return last


def growing(run: Run) -> Iterator[Snapshot]:
    """Yield what there is to show of a run, with one quantity more each time: long ones take time."""
    times = run.times
    steps, wall = times["step"].to_numpy(float), times["wall"].to_numpy(float)
    seconds = times["monotonic"].to_numpy(float)[-PACE_OVER:]
    elapsed = float(seconds[-1] - seconds[0]) if len(seconds) > 1 else 0.0
    findings = sorted(
        run.finding_records(), key=lambda one: (SEVERITIES.index(one.severity), one.step)
    )
    shown = Snapshot(
        path=str(run.path),
        about=about(run),
        pace=float(steps[-1] - steps[-len(seconds)]) / elapsed if elapsed > 0 else np.nan,
        written=float(wall[-1]) if len(wall) else np.nan,
        findings=tuple(findings),
        lines=(),
        trends=(),
    )
    yield shown
    for quantity in ordered(run.quantities):
        lines = (*shown.lines, reading_of(run, quantity))
        shown = replace(shown, lines=lines, trends=(*shown.trends, trend_of(run, quantity)))
        yield shown


def version_of(path: str | os.PathLike[str]) -> tuple[object, ...]:
    """Return something that changes whenever the run file does, without opening it."""
    found: list[object] = []
    for name in (os.fspath(path), f"{os.fspath(path)}-wal"):
        try:
            stat = os.stat(name)
            found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        except OSError:
            found.append(None)
    return tuple(found)


def age(then: float) -> str:
    """Return how long ago a moment was, in words."""
    seconds = max(0.0, time.time() - then)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
