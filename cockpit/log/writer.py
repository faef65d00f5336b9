"""Writing a run file from a thread: training neither waits for the disk nor fails with it."""

from __future__ import annotations

import itertools
import json
import logging
import operator
import os
import shutil
import sqlite3
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from cockpit.errors import InvalidArgument, InvalidType, RunFileInUse, warn
from cockpit.findings import Finding
from cockpit.log.arrays import ArrayWriter
from cockpit.log.reader import RunFile
from cockpit.log.scalars import ScalarWriter
from cockpit.log.schema import (
    SET_META,
    Batch,
    ParameterInfo,
    Point,
    Row,
    create_tables,
    describe_run,
    rewind,
)

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be renamed anyway
    fcntl = None  # type: ignore[assignment]

COMMIT_SECONDS = 0.5  # the longest that data stay uncommitted
IDLE_SECONDS = 0.1  # without new data for this long they are committed at once

_logger = logging.getLogger("cockpit")


class RunWriter:
    """Writes one run file.

    What is handed over is committed by a thread within about half a second, one step's rows always
    together. Whatever goes wrong there never reaches the training: it is reported once, as a
    `CockpitWarning`, and what comes after it is dropped. Data are complete after `close`, and also
    when the interpreter exits or the writer is garbage-collected without it; ``kill -9`` costs the
    last half second.

    Args:
        path: The run file; folders are created. An older run file there is kept under the first
            free name ``stem-1.db``, ``stem-2.db``, ... ``None`` writes to a temporary folder that
            goes when the writer does.
        settings: What to store about the run; what JSON does not know is stored as its `repr`.
        parameters: The model's parameters, in its order.
        resume: Continue the run file at `path` if there is one. Values of a step that it already
            has are replaced.

    Raises:
        InvalidArgument: Nothing can be written at `path`, or the run to resume has parameters of
            other shapes.
        NotARunFile: The file at `path` is no run file; it is left alone.
        RunFileInUse: A process of this machine that is still alive writes to the file.

    Attributes:
        path: The run file's absolute path.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        settings: Mapping[str, Any] | None = None,
        parameters: Sequence[ParameterInfo] = (),
        resume: bool = False,
    ) -> None:
        folder = tempfile.mkdtemp(prefix="cockpit-") if path is None else None
        self.path = Path(folder, "run.db") if folder else Path(path or "").expanduser().absolute()
        kept = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_dir():
                raise IsADirectoryError("it is a folder")
            with _alone_in(self.path.parent):
                if self.path.exists():
                    _refuse_if_in_use(self.path)
                    kept = None if resume else _move_away(self.path)
                connection = _open(self.path, settings, parameters)
        except (OSError, sqlite3.Error) as error:
            raise InvalidArgument(
                f"no run file can be written at {self.path}: {error}. "
                "Give the path of a file, in a folder that may be written to."
            ) from error
        self._worker = _Worker(connection, self.path)
        weakref.finalize(self, self._worker.end_for_good, folder)
        if kept is not None:
            text = f"an older run file was in the way; it is now {kept}"
            _logger.info("%s: %s", self.path, text)
            self.note(None, "older-run-kept", kept.name, text)

    def record(self, step: int, rows: Sequence[Row], *, tracked: bool = True) -> None:
        """Hand over the rows of a step and return at once; arrays are copied.

        Args:
            step: The global step.
            rows: Its values; they replace those recorded before for the same series and step.
            tracked: Whether to enter the step, with the time, into the table of tracked steps.

        Raises:
            InvalidType: A value is no number and no array of numbers.
        """
        batch = Batch(_step_number(step))
        if tracked:
            batch.times = time.time(), time.monotonic()
        for row in rows:
            batch.add(row)
        self._hand_over(batch)

    def note(self, step: int | None, kind: str, subject: str, message: str) -> None:
        """Record an event, such as ``note(7, "not-checked", "Alpha", "the fit is singular")``."""
        batch = Batch(None if step is None else _step_number(step))
        batch.note(kind, subject, message)
        self._hand_over(batch)

    def finding(self, finding: Finding) -> None:
        """Record something that is wrong with the training."""
        batch = Batch(finding.step)
        batch.findings.append((finding.step, json.dumps(finding.record())))
        self._hand_over(batch)

    def mark(self) -> dict[str, Any]:
        """Return which run this is and how far it has come; what was recorded is committed by then."""
        self.flush()
        with RunFile(self.path) as file:
            return file.mark()

    def rewind(self, step: int, mark: Mapping[str, Any]) -> bool:
        """Drop what a resumed run will record again: all that came after a `mark` was taken.

        Args:
            step: The last step before the mark.
            mark: The mark.

        Returns:
            Whether the file is that of the run in which the mark was taken. If not, it is left alone.
        """
        with RunFile(self.path) as file:
            if file.created != mark["created"]:
                return False
        findings = mark.get("findings", 0)  # marks of releases without findings do not say
        self._hand_over(Batch(None, rewind=Point(step, mark["events"], findings)))
        return True

    def flush(self) -> None:
        """Wait until all that was handed over is committed, and so readable by other processes."""
        self._worker.flush()
        self._warn()

    def close(self) -> None:
        """Commit everything, mark the run as closed, leave one file; further calls do nothing."""
        self._worker.end()
        self._warn()

    def __repr__(self) -> str:
        return f"RunWriter({str(self.path)!r})"

    def _hand_over(self, batch: Batch) -> None:
        if self._worker.accepts(batch):
            self._worker.queue.put(batch)
        self._warn()

    def _warn(self) -> None:
        report = self._worker.take_report()
        if report is not None:
            warn(report)


class _Worker:
    """The thread that owns the connection, and no reference to the `RunWriter`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.queue: SimpleQueue[Batch | threading.Event | None] = SimpleQueue()  # None: the end
        self._hurry = threading.Event()  # somebody waits
        self._connection = connection
        self._path = path
        self._process = os.getpid()
        self._ended = False
        self._problem: str | None = None  # from when on it is set, nothing is written
        self._reported = False
        self._uncommitted: Batch | None = None  # the first of the open transaction
        columns = "quantity, key, parameter, kind, detail, source"
        rows = connection.execute(f"SELECT {columns}, id FROM series").fetchall()
        self._series = {tuple(row[:-1]): row[-1] for row in rows}
        self._scalars = ScalarWriter(connection)
        self._arrays = ArrayWriter(connection)
        self._thread = threading.Thread(target=self._serve, name="cockpit-log", daemon=True)
        self._thread.start()

    def accepts(self, batch: Batch) -> bool:
        """Return whether a batch put on the queue will be written; if not, keep the reason."""
        if self._problem is None and self._process != os.getpid():
            self._problem = (
                f"{self._path} is written by process {self._process}; what process {os.getpid()}, "
                "which was forked from it, records is lost. Record in one process only."
            )
        elif self._problem is None and self._ended:
            self._problem = (
                f"{self._path} was closed; what is recorded after that{_since(batch.step)} is "
                "lost. Call close() after the last step, or continue the file with resume=True."
            )
        return self._problem is None

    def take_report(self) -> str | None:
        """Return what went wrong, the first time it is asked."""
        report = None if self._reported else self._problem
        self._reported = self._reported or report is not None
        return report

    def flush(self) -> None:
        if self._ended or self._problem is not None or self._process != os.getpid():
            return
        done = threading.Event()
        self.queue.put(done)
        self._hurry.set()
        while not done.wait(1.0) and self._thread.is_alive():
            pass

    def end(self) -> None:
        if self._ended or self._process != os.getpid():
            return
        self._ended = True
        self.queue.put(None)
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
            _logger.error(report)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _serve(self) -> None:
        begun: float | None = None  # when the open transaction was begun
        while True:
            item: Batch | threading.Event | None
            # Whoever puts something where a thread waits for it hands over the interpreter as well, and
            # gets it back late. So while data come, this looks for them now and then.
            if begun is not None and self.queue.empty() and self._hurry.wait(IDLE_SECONDS):
                self._hurry.clear()
            try:
                item = self.queue.get(block=begun is None)
            except Empty:
                item = threading.Event()  # as if somebody had called flush()
            if isinstance(item, Batch):
                begun = begun or time.monotonic()
                self._attempt(self._write, item)
                if time.monotonic() - begun < COMMIT_SECONDS:
                    continue
            self._attempt(self._commit)
            begun = None
            if isinstance(item, threading.Event):
                item.set()
            elif item is None:
                break
        self._attempt(self._pack)
        self._attempt(self._finish)
        with suppress(sqlite3.Error):
            if self._problem is not None:  # what was committed before is worth the same end
                self._finish()
        with suppress(sqlite3.Error):
            self._connection.close()

    def _attempt(self, action: Callable[..., None], *arguments: Any) -> None:
        if self._problem is not None:
            return
        try:
            action(*arguments)
        except Exception as error:
            first = self._uncommitted
            since = f"What is recorded{_since(first.step)}" if first else "Nothing"
            self._problem = (
                f"writing {self._path} failed ({type(error).__name__}: {error}). {since} is "
                "lost, and nothing more will be written; the training goes on. Mend the "
                "cause and continue the file with resume=True, or write to another path."
            )
            with suppress(sqlite3.Error):
                self._connection.rollback()

    def _write(self, batch: Batch) -> None:
        execute, many, step = self._connection.execute, self._connection.executemany, batch.step
        if not self._connection.in_transaction:
            self._uncommitted = batch
            execute("BEGIN IMMEDIATE")
        if batch.rewind is not None:
            rewind(self._connection, batch.rewind)
            self._scalars.rewind(batch.rewind.step)
            self._arrays.rewind(batch.rewind.step)
        if batch.times is not None:
            execute("INSERT OR REPLACE INTO steps VALUES(?, ?, ?)", (step, *batch.times))
        if step is not None:  # events may be of none
            self._insert(batch, step)
        many("INSERT INTO events VALUES(NULL, ?, ?, ?, ?, ?)", batch.events)
        many("INSERT INTO findings VALUES(NULL, ?, ?)", batch.findings)

    def _insert(self, batch: Batch, step: int) -> None:
        self._scalars.insert([(self._id(one), step, value) for one, value in batch.scalars])
        self._scalars.pack_some()
        for series, array in batch.arrays:
            self._arrays.insert(self._id(series), step, array)
        self._arrays.pack_some()

    def _id(self, series: tuple[Any, ...]) -> int:
        if series not in self._series:
            query = "INSERT INTO series VALUES(NULL, ?, ?, ?, ?, ?, ?)"
            self._series[series] = self._connection.execute(query, series).lastrowid
        return self._series[series]

    def _commit(self) -> None:
        if self._connection.in_transaction:
            if not self._path.exists():  # SQLite would go on writing to what nobody can open
                raise FileNotFoundError("the file was deleted or moved away")
            self._connection.execute("COMMIT")
            self._uncommitted = None

    def _pack(self) -> None:
        """Make blocks of the last rows, and give back the room that the single ones took."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._scalars.finish()
        self._arrays.finish()
        self._commit()
        self._connection.executescript("PRAGMA incremental_vacuum")  # `execute` does a single page

    def _finish(self) -> None:
        self._connection.execute(SET_META, ("status", json.dumps("closed")))
        self._connection.execute("PRAGMA busy_timeout = 1000")
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        with suppress(sqlite3.OperationalError):  # somebody reads: then the helper files stay
            self._connection.execute("PRAGMA journal_mode = DELETE").fetchall()


def _open(
    path: Path, settings: Mapping[str, Any] | None, parameters: Sequence[ParameterInfo]
) -> sqlite3.Connection:
    """Make the run file, or make the one that is there ready to be continued."""
    connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # heeded by new files only
        connection.execute("BEGIN IMMEDIATE")
        create_tables(connection)
        describe_run(connection, settings, parameters)
        connection.execute("COMMIT")
        # Only now, so that no reader ever finds a file without tables.
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("PRAGMA synchronous = NORMAL")
    except InvalidArgument as error:
        connection.close()
        raise InvalidArgument(f"{path} cannot be continued: {error}") from None
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_if_in_use(path: Path) -> None:
    with RunFile(path) as old:
        if old.is_live:
            pid = old.process["pid"]
            who = "this very process" if pid == os.getpid() else f"process {pid}"
            raise RunFileInUse(
                f"{path} is being written by {who}. Call close() on that run first, or "
                "give another path; of several processes that train together, let only one write."
            )


def _move_away(path: Path) -> Path:
    """Rename a run file that nobody writes to the first free name, and return that."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(path, timeout=1)) as old:
        old.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        old.execute("PRAGMA journal_mode = DELETE").fetchall()
    names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in itertools.count(1))
    free = next(name for name in names if not name.exists())
    for ending in ("-wal", "-shm", ""):  # the first two only while somebody reads the file
        with suppress(FileNotFoundError):
            os.replace(f"{path}{ending}", f"{free}{ending}")
    return free


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other writers from opening files in `folder` meanwhile, where the system can do that."""
    handle = None
    if fcntl is not None:
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _step_number(step: Any) -> int:
    try:
        return operator.index(step)
    except TypeError:
        raise InvalidType(f"step is of type {type(step).__name__}. Give an integer.") from None


def _since(step: int | None) -> str:
    return "" if step is None else f" from step {step} on"
