"""Forwarding what is recorded to experiment trackers, beside the run file."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Full, Queue
from typing import Any, Protocol, runtime_checkable

import numpy as np

from cockpit.errors import InvalidType, warn
from cockpit.findings import Finding
from cockpit.log import Row, RunWriter

PREFIX = "cockpit"
"""First part of every name that a tracker gets to see."""

LONGEST_QUEUE = 10_000
"""Number of calls that may wait for a slow tracker before what comes is dropped."""

PATIENCE = 60.0
"""Seconds that `close` waits for what has not been sent yet."""

Send = Callable[["Tracker"], None]


@runtime_checkable
class Tracker(Protocol):
    """What forwarding needs of an experiment tracker. All calls come from one thread, in their order.

    Names are parts joined by slashes, ``"cockpit/GradNorm/0.weight"``. The values of a step may come
    after some of the next: those of two-step quantities do.
    """

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a step, by name."""

    def histogram(self, step: int, name: str, counts: np.ndarray, edges: np.ndarray) -> None:
        """Take counts `[bins]` and the edges of the bins `[bins + 1]`."""

    def event(self, step: int | None, kind: str, subject: str, message: str) -> None:
        """Take something to be known, such as a quantity that could not be checked, or a finding."""

    def close(self) -> None:
        """Send what has been held back. The tracker's own run is its owner's to end."""


def read_trackers(trackers: Any) -> list[Tracker]:
    """Return the trackers that were handed over.

    Raises:
        InvalidType: if one of them is none.
    """
    listed = list(trackers) if isinstance(trackers, Iterable) else [trackers]
    for tracker in listed:
        if not isinstance(tracker, Tracker):
            raise InvalidType(
                f"trackers holds {tracker!r}, which is none: give objects of cockpit.integrations, "
                "such as WandbTracker(run), or of your own with the methods scalars, histogram, event "
                "and close."
            )
    return listed


class ForwardingWriter:
    """A `RunWriter` that hands what it writes to trackers as well.

    They are called in a thread of their own: the training neither waits for a tracker nor fails with
    it. One that raises is reported once, and gets nothing more.

    Args:
        writer: Writes the run file.
        trackers: Where to forward to.
    """

    def __init__(self, writer: RunWriter, trackers: Iterable[Tracker]) -> None:
        self._writer, self._trackers = writer, list(trackers)
        self._queue: Queue[Send | threading.Event | None] = Queue(LONGEST_QUEUE)
        self._process, self._closed = os.getpid(), False
        self._problems: list[str] = []
        self._overflowed = False
        self._thread = threading.Thread(target=self._serve, name="cockpit-forward", daemon=True)
        self._thread.start()

    @property
    def path(self) -> Path:
        """The run file's absolute path."""
        return self._writer.path

    def record(self, step: int, rows: Sequence[Row], *, tracked: bool = True) -> None:
        """Hand over the rows of a step and return at once."""
        self._writer.record(step, rows, tracked=tracked)
        values = {
            _name(row): float(row.value)
            for row in rows
            if not row.detail and not isinstance(row.value, np.ndarray)
        }
        if values:
            self._send(lambda tracker: tracker.scalars(step, values))
        for name, counts, edges in _histograms(rows):
            self._send(lambda t, n=name, c=counts, e=edges: t.histogram(step, n, c, e))  # type: ignore[misc]
        self._warn()

    def note(self, step: int | None, kind: str, subject: str, message: str) -> None:
        """Record an event."""
        self._writer.note(step, kind, subject, message)

    def finding(self, finding: Finding) -> None:
        """Record something that is wrong with the training, and let the trackers know."""
        self._writer.finding(finding)
        subject = f"{finding.code} {finding.name}"
        self.alert(finding.step, finding.severity, subject, f"{finding.title}. {finding.action}")

    def alert(self, step: int | None, kind: str, subject: str, message: str) -> None:
        """Let the trackers know of an event that a person has to know of."""
        self._send(lambda tracker: tracker.event(step, kind, subject, message))
        self._warn()

    def mark(self) -> dict[str, Any]:
        """Return which run this is and how far it has come."""
        return self._writer.mark()

    def rewind(self, step: int, mark: Mapping[str, Any]) -> bool:
        """Drop what a resumed run will record again, from the run file; trackers get it twice."""
        return self._writer.rewind(step, mark)

    def flush(self) -> None:
        """Wait until all that was handed over is in the run file and with the trackers."""
        self._writer.flush()
        if not self._closed and self._process == os.getpid():
            done = threading.Event()
            with suppress(Full):
                self._queue.put(done, timeout=PATIENCE)
                done.wait(PATIENCE)
        self._warn()

    def close(self) -> None:
        """Finish the run file, and send what has not been sent yet; further calls do nothing."""
        self._writer.close()
        if not self._closed and self._process == os.getpid():
            self._closed = True
            with suppress(Full):
                self._queue.put(None, timeout=PATIENCE)
                self._thread.join(PATIENCE)
            if self._thread.is_alive():
                self._problems.append(
                    f"a tracker has not taken everything within {PATIENCE:g} seconds; the run file "
                    "has it all"
                )
        self._warn()

    def _send(self, call: Send) -> None:
        if self._closed or self._process != os.getpid():
            return
        try:
            self._queue.put_nowait(call)
        except Full:
            if not self._overflowed:
                self._overflowed = True
                self._problems.append(
                    "the trackers are slower than the training, and do not get everything; the run "
                    "file does. Track less often, or give the trackers less to do"
                )

    def _serve(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            for tracker in list(self._trackers):
                try:
                    if item is None:
                        tracker.close()
                    else:
                        item(tracker)
                except Exception as error:
                    self._trackers.remove(tracker)
                    self._problems.append(
                        f"{type(tracker).__name__} failed ({type(error).__name__}: {error}) and gets "
                        "nothing more; the run file does, and the training goes on"
                    )
            if item is None:
                return

    def _warn(self) -> None:
        while self._problems:
            warn(f"Forwarding: {self._problems.pop(0)}.")


def _name(row: Row) -> str:
    return "/".join(filter(None, (PREFIX, row.quantity, row.key, row.parameter)))


def _histograms(rows: Sequence[Row]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the one-dimensional histograms among the rows: name, counts, edges."""
    arrays = [
        (row, row.value)
        for row in rows
        if isinstance(row.value, np.ndarray) and row.value.ndim == 1
    ]
    edges = {row.quantity: array for row, array in arrays if row.key == "edges"}
    for row, counts in arrays:
        of_bins = edges.get(row.quantity)
        if row.key == "hist" and of_bins is not None and len(of_bins) == len(counts) + 1:
            name = "/".join(filter(None, (PREFIX, row.quantity, row.parameter)))
            yield name, counts, of_bins
