"""The thread that writes a run file, and goes on trying where that fails."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from cockpit.errors import CockpitError
from cockpit.log.missing import Missing, counted, thinned
from cockpit.log.opening import Opening
from cockpit.log.schema import Batch
from cockpit.log.tables import Tables

COMMIT_SECONDS = 0.5
"""The longest that data stay uncommitted."""

IDLE_SECONDS = 0.1
"""Without new data for this long they are committed at once."""

WAITING_BYTES = 64 * 2**20
"""Memory that may be taken by what waits to be committed."""

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.5, 30.0
"""How long after a failure to try again; each time after twice as long."""

LAST_TRIES_SECONDS = 2.0
"""How long to go on trying at the end."""

STALL_SECONDS = 5.0
"""For how long something may wait for the thread that makes no progress."""

logger = logging.getLogger("cockpit")


@dataclass
class _Outage:
    """A time in which the file cannot be written.

    Attributes:
        reason: Why.
        since: The first step that was not committed, if any.
        began: When, on the monotonic clock.
        whole: Whether the file still has what was committed to it before.
    """

    reason: str
    since: int | None
    began: float
    whole: bool = True


class Worker:
    """The thread that owns the connection, and no reference to the `RunWriter`.

    Args:
        opening: Opens the file.
        tables: The open file; None if that has failed so far.
        problem: Why it has.
    """

    def __init__(self, opening: Opening, tables: Tables | None, problem: Exception | None) -> None:
        self.opening = opening
        self.mark: dict[str, Any] = {"created": None, "events": 0, "findings": 0}
        self._tables = tables
        self._moved: Tables | None = None  # still open, but no longer where it was
        self._damaged = False
        self._process = os.getpid()
        self._ended = False
        # What is handed over, and how much of that waits.
        self._queue: SimpleQueue[Batch | threading.Event | None] = SimpleQueue()  # None: the end
        self._hurry = threading.Event()  # somebody waits
        self._lock = threading.RLock()
        self._handed_over, self._settled = 0, 0  # bytes
        self._stalled = False
        self._dropped = Missing()  # on the way here
        # Of the thread alone.
        self._waiting: list[Batch] = []  # not committed, in order
        self._written = 0  # how many of these are in the open transaction
        self._begun = 0.0  # when that was begun
        self._lost = Missing()
        self._outage: _Outage | None = None
        self._delay, self._retry_at = 0.0, 0.0
        self._beats = 0  # progress, for those who wait
        # What the training is told.
        self._report: str | None = None
        self._reported_in: int | None = None  # process
        if tables is not None:
            self.mark = tables.mark()
        elif problem is not None:
            self._failed(problem)
            self._tell()
        self._thread = threading.Thread(target=self._serve, name="cockpit-log", daemon=True)
        self._thread.start()

    # -- called by the training's threads ----------------------------------------------------------

    def put(self, batch: Batch) -> None:
        """Hand over a batch. It is dropped, and counted, if there is no room for it."""
        if not self._is_open(batch.step):
            return
        size = batch.size
        if self._bytes_waiting + size > WAITING_BYTES and not self._has_room(size):
            with self._lock:
                self._dropped.add(batch)
            return
        with self._lock:
            self._handed_over += size
        self._queue.put(batch)

    def flush(self) -> None:
        """Wait until all that was handed over is committed, or it is clear that this is not possible now."""
        if self._ended or self._process != os.getpid():
            return
        done = threading.Event()
        self._queue.put(done)
        self._hurry.set()
        beats, since = self._beats, time.monotonic()
        while not done.wait(0.5) and self._thread.is_alive():
            if beats != self._beats:
                beats, since = self._beats, time.monotonic()
            elif time.monotonic() - since > 6 * STALL_SECONDS:
                self._say(
                    f"{self.opening.path} is not written: the disk does not answer. {GOES_ON}"
                )
                return

    def end(self) -> None:
        """Commit everything, and end the thread."""
        if self._ended or self._process != os.getpid():
            return
        self._ended = True
        self._queue.put(None)
        self._hurry.set()
        if threading.current_thread() is not self._thread:  # where the garbage collector may run
            self._thread.join()

    def end_for_good(self, folder: str | None) -> None:
        """Do what is left to do when the `RunWriter` or the interpreter goes."""
        if self._process != os.getpid():
            return
        self.end()
        report = self.take_report()
        if report is not None:
            logger.error(report)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def take_report(self) -> str | None:
        """Return what went wrong, the first time it is asked."""
        report, self._report = self._report, None
        return report

    @property
    def _bytes_waiting(self) -> int:
        return self._handed_over - self._settled

    def _is_open(self, step: int | None) -> bool:
        if self._process != os.getpid():
            self._say(
                f"{self.opening.path} is written by process {self._process}; what process {os.getpid()}, "
                "which was forked from it, records is lost. Record in one process only."
            )
            return False
        if self._ended:
            self._say(
                f"{self.opening.path} was closed; what is recorded after that{_since(step)} is "
                "lost. Call close() after the last step, or continue the file with resume=True."
            )
        return not self._ended

    def _has_room(self, size: int) -> bool:
        """Wait for room as long as the file is written, if more slowly than the training records."""
        if self._stalled and self._bytes_waiting > WAITING_BYTES // 2:
            return False
        self._stalled = False
        settled, since = self._settled, time.monotonic()
        while 0 < self._bytes_waiting > WAITING_BYTES - size:
            if self._outage is None:
                self._say(
                    f"{self.opening.path} is written more slowly than data are recorded, and the training "
                    "waits for it. Track less often, or write to a faster disk."
                )
            if self._outage is not None or time.monotonic() - since > STALL_SECONDS:
                self._stalled = True
                return False
            time.sleep(0.005)
            if settled != self._settled:
                settled, since = self._settled, time.monotonic()
        return True

    def _say(self, text: str) -> None:
        """Keep a text for the training, if it is the first one in this process."""
        if self._reported_in != os.getpid():
            self._reported_in, self._report = os.getpid(), text
        else:
            logger.info(text)

    # -- the thread --------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            item = self._next()
            if isinstance(item, Batch):
                self._waiting.append(item)
                self._proceed(at_once=False)
                continue
            self._proceed(at_once=True)
            if self._tables is not None:
                with suppress(sqlite3.Error):
                    self.mark = self._tables.mark()
            if item is None:
                break
            item.set()
        self._finish()

    def _next(self) -> Batch | threading.Event | None:
        """Return what comes next; where data wait and none come, an event as if somebody had called flush()."""
        while True:
            idle = self._tables is not None and not self._waiting
            # Whoever puts something where a thread waits for it hands over the interpreter as well, and
            # gets it back late. So while data come, this looks for them now and then.
            if not idle and self._queue.empty() and self._hurry.wait(self._pause()):
                self._hurry.clear()
            try:
                return self._queue.get(block=idle)
            except Empty:
                if self._tables is not None or time.monotonic() >= self._retry_at:
                    return threading.Event()

    def _pause(self) -> float:
        if self._tables is not None:
            return IDLE_SECONDS
        return min(max(self._retry_at - time.monotonic(), 0.0), FIRST_RETRY_SECONDS)

    def _proceed(self, *, at_once: bool) -> None:
        """Write what waits, and commit it if that is due or wanted `at_once`."""
        if self._tables is None and not at_once and time.monotonic() < self._retry_at:
            self._keep_some()
            return
        self._try(at_once=at_once)
        if self._moved is not None or self._damaged:  # it may be begun anew, without waiting
            self._try(at_once=True)
        self._tell()

    def _try(self, *, at_once: bool) -> None:
        try:
            self._catch_up()
            while at_once and self._waiting:  # the end of an outage adds an event
                self._commit()
                self._catch_up()
        except Exception as error:
            self._failed(error)

    def _catch_up(self) -> None:
        if self._tables is None:
            self._reopen()
        assert self._tables is not None
        while self._written < len(self._waiting):
            if not self._written:
                self._begun = time.monotonic()
            batch = self._waiting[self._written]
            try:
                self._tables.write(batch)
                self._written += 1
            except Exception as error:
                if _is_of_the_file(error):
                    raise
                self._set_aside(batch, error)
                continue
            self._beats += 1
            if time.monotonic() - self._begun >= COMMIT_SECONDS:
                self._commit()

    def _commit(self) -> None:
        assert self._tables is not None
        self._tables.commit()
        self._settled += sum(batch.size for batch in self._waiting[: self._written])
        del self._waiting[: self._written]
        self._written = 0
        self._beats += 1
        self._count_dropped()
        if self._outage is not None or self._lost:
            self._recovered()

    def _count_dropped(self) -> None:
        """Count what was dropped on the way here among what is lost."""
        with self._lock:
            dropped, self._dropped = self._dropped, Missing()
        self._lost.join(dropped)

    def _set_aside(self, batch: Batch, error: Exception) -> None:
        """Leave out a batch that cannot be written, whatever the state of the file."""
        assert self._tables is not None
        self._tables.roll_back()
        self._settled += batch.size
        del self._waiting[self._written]
        self._written = 0
        self._lost.add(batch)
        self._say(
            f"{self.opening.path}: {counted([batch])} cannot be stored ({_named(error)}) and are lost; the "
            "training goes on."
        )

    def _reopen(self) -> None:
        if self.opening.created is None:
            self._tables, kept = self.opening.first()
            if kept is not None:
                self._add(older_kept(self.opening.path, kept))
        else:
            before = self.opening.path
            self._tables, whole = self.opening.again(self._moved, damaged=self._damaged)
            if self._outage is not None:
                self._outage.whole &= whole
                if before != self.opening.path:
                    self._outage.reason += f"; it goes on in {self.opening.path.name}"
        if self._moved is not None:
            self._moved.close()
        self._moved, self._damaged = None, False
        self.mark = self._tables.mark()

    def _failed(self, error: Exception) -> None:
        """Get ready to try again later."""
        tables, self._tables, self._written = self._tables, None, 0
        if tables is not None and not tables.in_place:
            self._moved = tables
        elif tables is not None:
            tables.close()
        self._damaged = type(error) is sqlite3.DatabaseError
        if self._outage is None:
            steps = (batch.step for batch in self._waiting if batch.step is not None)
            self._outage = _Outage(_named(error), next(steps, None), time.monotonic())
            self._delay = 0.0
        self._delay = min(max(2 * self._delay, FIRST_RETRY_SECONDS), LONGEST_RETRY_SECONDS)
        self._retry_at = time.monotonic() + self._delay

    def _recovered(self) -> None:
        """Write down that something went wrong, now that this can be written."""
        outage, lost = self._outage, self._lost
        self._outage, self._lost = None, Missing()
        text = f"{lost} could not be written and are lost" if lost else "nothing is lost"
        if outage is not None:
            seconds = time.monotonic() - outage.began
            before = "" if outage.whole else "; what had been written before is not in this file"
            text = (
                f"not written for {seconds:.1f} s{_since(outage.since)}: {outage.reason}; "
                f"{text}{before}"
            )
            self._say(f"{self.opening.path} was {text}. The training went on, and so does the log.")
        elif lost:
            self._say(f"{self.opening.path}: {text}; the training goes on, and so does the log.")
        note = Batch(None)
        note.note("log-interrupted", self.opening.path.name, text)
        self._add(note)

    def _add(self, batch: Batch) -> None:
        with self._lock:
            self._handed_over += batch.size
        self._waiting.append(batch)

    def _tell(self) -> None:
        """Tell the training that the file cannot be written, once."""
        if self._outage is None:
            return
        values = counted(self._waiting).values
        self._say(
            f"{self.opening.path} cannot be written ({self._outage.reason}). {GOES_ON} What is recorded"
            f"{_since(self._outage.since)} ({values:,} values so far) waits in memory until the file can be "
            f"written again, which is tried again and again; beyond {WAITING_BYTES >> 20} MiB steps are "
            "dropped, evenly, and what still waits at the end is lost. Mend the cause meanwhile."
        )

    def _keep_some(self) -> None:
        """While nothing can be written, let the memory not fill up."""
        if self._bytes_waiting > WAITING_BYTES * 3 // 4:
            before = sum(batch.size for batch in self._waiting)
            self._waiting, missing = thinned(self._waiting, WAITING_BYTES // 2)
            self._settled += before - sum(batch.size for batch in self._waiting)
            self._lost.join(missing)

    def _finish(self) -> None:
        """Bring the file into the state in which it stays; if need be, tell what it lacks."""
        until = time.monotonic() + LAST_TRIES_SECONDS
        while self._tables is None and time.monotonic() < until:
            time.sleep(FIRST_RETRY_SECONDS / 2)
            self._proceed(at_once=True)
        if self._tables is None and (self._waiting or self._moved is not None):
            self._take_refuge()
        self._count_dropped()
        if self._tables is not None and self._lost:
            self._recovered()
            self._try(at_once=True)
        self._lost.join(counted(self._waiting))
        if self._outage is not None and (self._lost or self._moved is not None):
            before = "" if self._moved is None else ", and what had been written before"
            logger.error(
                f"{self.opening.path} lacks {self._lost}{before}: it could not be written "
                f"({self._outage.reason})."
            )
        if self._moved is not None:
            self._moved.close()
        if self._tables is None:
            return
        try:
            self._tables.tidy()
        except Exception as error:
            if type(error) is sqlite3.DatabaseError:
                end = "Save what is left of it with: sqlite3 FILE .recover"
            else:
                end = "Nothing is lost; it takes more room than it has to."
            self._say(
                f"{self.opening.path} could not be tidied up at the end ({_named(error)}). {end}"
            )
            with suppress(sqlite3.Error, ValueError):
                self._tables.roll_back()
        with suppress(sqlite3.Error):
            self._tables.finish()
        self._tables.close()

    def _take_refuge(self) -> None:
        """Where the file cannot be written to the last, save what it lacks among the temporary files."""
        wanted = self.opening.path
        try:
            folder = tempfile.mkdtemp(prefix="cockpit-")
        except OSError:
            return
        self.opening.path = Path(folder, wanted.name)
        self._try(at_once=True)
        if self._tables is None:
            self.opening.path = wanted
            shutil.rmtree(folder, ignore_errors=True)
        else:
            logger.error(
                f"{wanted} could not be written to the last; what it lacks is in {self.opening.path}."
            )


GOES_ON = "The training goes on."


def older_kept(path: Path, kept: Path) -> Batch:
    """Return the event that an older run file was in the way."""
    text = f"an older run file was in the way; it is now {kept}"
    logger.info("%s: %s", path, text)
    batch = Batch(None)
    batch.note("older-run-kept", kept.name, text)
    return batch


def _is_of_the_file(error: Exception) -> bool:
    """Return whether an error is one of the file, rather than of what was to be written."""
    kinds = (OSError, sqlite3.OperationalError, sqlite3.InternalError, CockpitError)
    return isinstance(error, kinds) or type(error) is sqlite3.DatabaseError


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _since(step: int | None) -> str:
    return "" if step is None else f" from step {step} on"
