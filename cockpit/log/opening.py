"""Where a run file is, and how it is opened for writing: at first, and again after a failure."""

from __future__ import annotations

import errno
import itertools
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cockpit.errors import InvalidArgument, NotARunFile, RunFileInUse
from cockpit.log.reader import RunFile
from cockpit.log.schema import ParameterInfo, create_tables, describe_run
from cockpit.log.tables import Tables, identity
from cockpit.log.untrusted import HELPERS

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be renamed anyway
    fcntl = None  # type: ignore[assignment]

BUSY_SECONDS, BUSY_AGAIN_SECONDS = 5.0, 0.5
"""How long to wait for another program that has locked the file or its folder; where it has before."""

NEVER = (errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP)
"""Errors that no waiting mends, beside those of paths on which a file or a folder is in the way."""


@dataclass
class Opening:
    """Opens one run file.

    Attributes:
        path: The run file, absolute. It is another one in the folder from when on its place is taken.
        settings: What to store about the run; None for what is stored already.
        parameters: The model's parameters, in its order.
        resume: Whether to continue a run file that is there.
        retention: How many of the last arrays of a series all stay; None for all.
        created: When the file was made, from when on it has been opened.
    """

    path: Path
    settings: Mapping[str, Any] | None = None
    parameters: Sequence[ParameterInfo] = ()
    resume: bool = False
    retention: int | None = None
    created: float | None = None
    _identity: tuple[int, int] | None = None

    def first(self) -> tuple[Tables, Path | None]:
        """Open the file for the first time; return it, and where an older run was moved.

        Raises:
            InvalidArgument: The run to resume has parameters of other shapes.
            NotARunFile: The file that is there is no run file; it is left alone.
            RunFileInUse: A process of this machine that is still alive writes to the file.
            OSError, sqlite3.Error: It cannot be written, see `is_hopeless`.
        """
        kept = None
        with self._alone():
            if _holds_something(self.path):
                _refuse_if_in_use(self.path)
                kept = None if self.resume else _move_away(self.path)
            if not _holds_something(self.path):
                self._make(None)
            return self._connect(BUSY_SECONDS), kept

    def again(self, old: Tables | None, *, damaged: bool = False) -> tuple[Tables, bool]:
        """Open the file once more; return it, and whether it has all that was committed to it.

        A file that was deleted or moved away is written anew, from what the old connection still holds.
        Where another run has taken its place, that is left alone, and the file gets a free name beside it.

        Args:
            old: What was open when the file disappeared.
            damaged: Whether SQLite has called the file damaged: it is then kept under another name.

        Raises:
            OSError, sqlite3.Error, CockpitError: It still cannot be written.
        """
        with self._alone():
            whole = True
            here = identity(self.path)
            if here is not None and here == self._identity:
                old = None  # whatever was done to the file was done to what that would read
                if damaged:
                    _move_away(self.path)
            elif _holds_something(self.path) and not self._is_ours():
                self.path = _free(self.path)
            if not _holds_something(self.path):
                whole = self._make(old)
            return self._connect(BUSY_AGAIN_SECONDS), whole

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other writers from opening files in the folder, which is made if it is not there."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.is_dir():
            raise IsADirectoryError("it is a folder")
        with _alone_in(self.path.parent):
            yield

    def _is_ours(self) -> bool:
        with suppress(NotARunFile), RunFile(self.path) as file:
            return file.created == self.created
        return False

    def _make(self, old: Tables | None) -> bool:
        """Put a new run file at the path, whole from the first moment on: a copy of an old one if that can be read.

        Returns:
            Whether it is such a copy.
        """
        new = self.path.with_name(f"{self.path.name}.new")
        _remove(new)
        try:
            with closing(sqlite3.connect(new, isolation_level=None)) as connection:
                copied = old is not None and _is_readable(old.connection)
                if copied:
                    assert old is not None
                    old.connection.backup(connection)
                else:
                    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                    connection.execute("BEGIN IMMEDIATE")
                    create_tables(connection)
                    # From the first moment on it says who writes, so that nobody takes it for an older run.
                    describe_run(connection, self.settings, self.parameters)
                    connection.execute("COMMIT")
                    # Now, since it takes a moment at which nobody reads.
                    connection.execute("PRAGMA journal_mode = WAL").fetchall()
            _remove(self.path)  # helper files that an earlier run has left are none of this one
            os.replace(new, self.path)
        except BaseException:
            with suppress(OSError):
                _remove(new)
            raise
        return copied

    def _connect(self, patience: float) -> Tables:
        connection = sqlite3.connect(
            self.path, timeout=patience, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("BEGIN IMMEDIATE")
            create_tables(connection)
            describe_run(connection, self.settings, self.parameters)
            connection.execute("COMMIT")
            _write_ahead(connection, patience)
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA busy_timeout = {1000 * BUSY_SECONDS:.0f}")
            tables = Tables(connection, self.path, self.retention)
            self.created, self._identity = tables.mark()["created"], identity(self.path)
        except InvalidArgument as error:
            connection.close()
            raise InvalidArgument(f"{self.path} cannot be continued: {error}") from None
        except BaseException:
            connection.close()
            raise
        return tables


def is_hopeless(error: Exception) -> bool:
    """Return whether a path can never be that of a run file; a full disk may have room again."""
    kinds = (IsADirectoryError, NotADirectoryError, FileExistsError, ValueError)
    return isinstance(error, kinds) or getattr(error, "errno", None) in NEVER


def _holds_something(path: Path) -> bool:
    """Return whether there is a file that is not empty, as one is that was about to be made."""
    return path.exists() and (not path.is_file() or path.stat().st_size > 0)


def _refuse_if_in_use(path: Path) -> None:
    try:
        with RunFile(path) as old:
            live, pid = old.is_live, old.process["pid"]
    except NotARunFile as error:
        cause = error.__cause__
        if isinstance(cause, sqlite3.OperationalError) and "locked" in str(cause):
            raise cause from None
        if isinstance(cause, PermissionError):
            raise cause from None
        raise
    if live:
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
    free = _free(path)
    for ending in (*HELPERS, ""):  # the first ones only while somebody reads the file
        with suppress(FileNotFoundError):
            os.replace(f"{path}{ending}", f"{free}{ending}")
    return free


def _free(path: Path) -> Path:
    names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


def _remove(path: Path) -> None:
    """Remove a file and the helper files beside it, as far as they are there."""
    for ending in ("", *HELPERS):
        Path(f"{path}{ending}").unlink(missing_ok=True)


def _is_readable(connection: sqlite3.Connection) -> bool:
    with suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        return connection.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]
    return False


def _write_ahead(connection: sqlite3.Connection, patience: float) -> None:
    """Let others read while this one writes; needs a moment at which nobody does, and does not wait by itself."""
    until = time.monotonic() + patience
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other writers from opening files in `folder` meanwhile, where the system can do that.

    Raises:
        TimeoutError: Another process keeps us from it.
    """
    handle = None
    if fcntl is not None:
        with suppress(OSError):  # a folder may be written to and yet not be read
            handle = os.open(folder, os.O_RDONLY)
    try:
        if handle is not None:
            _lock(handle)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _lock(handle: int) -> None:
    """Lock a file if it can be locked, and wait for that, but not for ever."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise TimeoutError("another process holds the folder") from None
            time.sleep(0.01)
        except OSError:  # not on this file system
            return
