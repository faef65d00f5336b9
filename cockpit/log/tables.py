"""The tables of a run file that is open for writing, filled batch by batch in transactions."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

from cockpit.log.arrays import ArrayWriter
from cockpit.log.scalars import ScalarWriter
from cockpit.log.schema import SET_META, Batch, rewind

LONGEST_WAL = 64 * 2**20
"""Bytes of the write-ahead log at which it is emptied, even if that means to wait for readers a little."""

READERS_MS = 200
"""For how long, in milliseconds."""


class Tables:
    """Writes batches into one run file; all methods are called from one thread.

    Args:
        connection: To the run file, outside a transaction.
        path: The run file.
        retention: How many of the last arrays of a series all stay; None for all.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, retention: int | None) -> None:
        self.connection = connection
        self._path = path
        self._identity = identity(path)
        self._bytes = 0
        self._retention = retention
        self._look()

    @property
    def in_place(self) -> bool:
        """Whether the file is still where it was opened: SQLite goes on writing to one that was deleted."""
        return identity(self._path) == self._identity

    @property
    def in_transaction(self) -> bool:
        """Whether something is written that is not committed."""
        return self.connection.in_transaction

    def write(self, batch: Batch) -> None:
        """Enter a batch, in the transaction that is open or in a new one."""
        execute, many, step = self.connection.execute, self.connection.executemany, batch.step
        if not self.in_transaction:
            execute("BEGIN IMMEDIATE")
        if batch.rewind is not None:
            rewind(self.connection, batch.rewind)
            self._scalars.rewind(batch.rewind.step)
            self._arrays.rewind(batch.rewind.step)
        if batch.times is not None:
            execute("INSERT OR REPLACE INTO steps VALUES(?, ?, ?)", (step, *batch.times))
        if step is not None:  # events may be of none
            self._insert(batch, step)
        many("INSERT INTO events VALUES(NULL, ?, ?, ?, ?, ?)", batch.events)
        many("INSERT INTO findings VALUES(NULL, ?, ?)", batch.findings)

    def commit(self) -> None:
        """Make what was written visible to others and safe from the end of the process.

        Raises:
            FileNotFoundError: The file is no longer where it was; then nothing is committed.
            sqlite3.DatabaseError: Somebody has taken something off its end; then neither.
        """
        if not self.in_transaction:
            return
        if not self.in_place:
            raise FileNotFoundError("the file was deleted or moved away")
        before, self._bytes = self._bytes, os.stat(self._path).st_size
        if self._bytes < before:
            raise sqlite3.DatabaseError("the file was cut short by another program")
        self.connection.execute("COMMIT")
        self._shorten_wal()

    def roll_back(self) -> None:
        """Forget what is not committed."""
        if self.in_transaction:
            self.connection.execute("ROLLBACK")
        self._look()

    def mark(self) -> dict[str, Any]:
        """Return how far the run has come, as `RunFile.mark`."""
        last = "(SELECT coalesce(max(id), 0) FROM"
        query = f"SELECT value, {last} events), {last} findings) FROM meta WHERE key = 'created'"
        created, events, findings = self.connection.execute(query).fetchone()
        return {"created": json.loads(created), "events": events, "findings": findings}

    def tidy(self) -> None:
        """Make blocks of the last rows, and give back the room that is not used any more."""
        self.connection.execute("BEGIN IMMEDIATE")
        self._scalars.finish()
        self._arrays.finish()
        self.commit()
        self.connection.executescript("PRAGMA incremental_vacuum")  # `execute` does a single page

    def finish(self) -> None:
        """Mark the run as closed, and leave one file."""
        self.connection.execute(SET_META, ("status", json.dumps("closed")))
        self.connection.execute("PRAGMA busy_timeout = 1000")
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        with suppress(sqlite3.OperationalError):  # somebody reads: then the helper files stay
            self.connection.execute("PRAGMA journal_mode = DELETE").fetchall()

    def close(self) -> None:
        """Let go of the file; what is not committed is forgotten."""
        with suppress(sqlite3.Error):
            self.connection.close()

    def _look(self) -> None:
        """See what is there already."""
        columns = "quantity, key, parameter, kind, detail, source"
        rows = self.connection.execute(f"SELECT {columns}, id FROM series").fetchall()
        self._series = {tuple(row[:-1]): row[-1] for row in rows}
        self._scalars = ScalarWriter(self.connection)
        self._arrays = ArrayWriter(self.connection, self._retention)

    def _insert(self, batch: Batch, step: int) -> None:
        self._scalars.insert([(self._id(one), step, value) for one, value in batch.scalars])
        self._scalars.pack_some()
        for series, array in batch.arrays:
            self._arrays.insert(self._id(series), step, array)
        self._arrays.pack_some()

    def _id(self, series: tuple[Any, ...]) -> int:
        if series not in self._series:
            query = "INSERT INTO series VALUES(NULL, ?, ?, ?, ?, ?, ?)"
            self._series[series] = self.connection.execute(query, series).lastrowid
        return self._series[series]

    def _shorten_wal(self) -> None:
        """Empty a write-ahead log that readers, one after the other, have kept from being emptied."""
        try:
            if os.stat(f"{self._path}-wal").st_size <= LONGEST_WAL:
                return
        except OSError:
            return
        ((usual,),) = self.connection.execute("PRAGMA busy_timeout").fetchall()
        self.connection.execute(f"PRAGMA busy_timeout = {READERS_MS}")
        with suppress(sqlite3.Error):  # what was committed is, and is not to be written once more
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self.connection.execute(f"PRAGMA busy_timeout = {usual}")


def identity(path: Path) -> tuple[int, int] | None:
    """Return which file it is, whatever its name; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
