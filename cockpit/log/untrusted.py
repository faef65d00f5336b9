"""Opening databases that somebody else may have made: nothing in one is run, whatever it claims.

SQLite executes parts of a database: views, triggers, generated columns, virtual tables. And pages that
refer to each other in circles make a small file look endless. So a run file is read through a
`Connection` that

- reads the tables of `cockpit.log.schema` and nothing else (an authorizer refuses the rest);
- does no more work for a statement than a file of this size can give rise to, and takes no more text
  or bytes out of it than it has;
- trusts nothing that the schema says, writes nothing, and maps no file into memory, where one that
  shrinks would end the process.

`check_schema` refuses what no run file has.
"""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import sys
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

from cockpit.log.schema import TABLES

__all__ = ["MAX_ROW_BYTES", "Connection", "check_schema", "connect"]

KNOWN = {table.partition("(")[0]: f"CREATE TABLE {' '.join(table.split())}" for table in TABLES}
"""The tables of a run file and the statements that make them."""

HELPERS = ("-journal", "-wal", "-shm")
"""Endings of the files that SQLite keeps, and reads, beside a database."""

MAX_ROW_BYTES = 2**24
"""Bytes of a text, or of bytes, that is read; arrays and blocks of them may be larger."""

INTERVAL = 100_000
"""Instructions of SQLite's machine between two looks at how many there were."""

LEAST_WORK = 5_000_000
"""Instructions that every statement may take: a quarter of a second."""

WORK_PER_BYTE = 4
"""Instructions for each byte of the file; the smallest row has 10 bytes and takes 10 to be read."""

ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_TRANSACTION})
"""What needs no further look."""

FUNCTIONS = frozenset({"coalesce", "count", "max", "min"})
READABLE = frozenset({*KNOWN, "sqlite_master", "json_each"})
PRAGMAS = frozenset({"application_id", "trusted_schema", "user_version"})


class Connection(sqlite3.Connection):
    """A connection of `connect`."""

    def __init__(self, database: str, **options: Any) -> None:
        super().__init__(database, **options)
        self._path = ""
        self._work = 0

    def guard(self, path: Path) -> None:
        """Refuse from now on what reading the run file at `path` does not need."""
        self._path = str(path)
        for pragma in (
            "busy_timeout = 10000",
            "cell_size_check = ON",
            "mmap_size = 0",
            "query_only = ON",
            "temp_store = MEMORY",
            "trusted_schema = OFF",
        ):
            super().execute(f"PRAGMA {pragma}")
        if sys.version_info >= (3, 11):
            self.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            self.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 100_000)
            self.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, 100)
            self.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1)
        if sys.version_info >= (3, 12):
            self.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        self.set_authorizer(_allows)
        self.set_progress_handler(self._exceeds, INTERVAL)

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        """Execute a statement, within the work that the file's size allows."""
        self._work = LEAST_WORK + WORK_PER_BYTE * self.size()
        return super().execute(*arguments)

    def rows(
        self, query: str, values: Any = (), *, longest: int = MAX_ROW_BYTES
    ) -> Generator[tuple[Any, ...], None, None]:
        """Yield the rows of a query.

        Args:
            query: The query.
            values: Its values.
            longest: Bytes of the longest text or bytes in it.

        Raises:
            ValueError: They have more text and bytes than the file, which so has some of them twice.
        """
        left = self.size()
        self._limit_length(longest)
        cursor = self.execute(query, values)
        try:
            while (row := cursor.fetchone()) is not None:
                left -= sum(len(one) for one in row if isinstance(one, str | bytes))
                if left < 0:
                    raise ValueError("more can be read from it than it has")
                yield row
                self._limit_length(longest)  # other rows may have been read in between
        finally:
            with suppress(sqlite3.ProgrammingError):  # closed in the meantime
                cursor.close()

    def _limit_length(self, longest: int) -> None:
        if sys.version_info >= (3, 11):
            self.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)

    def size(self) -> int:
        """Return the bytes of the file and of what is written beside it."""
        total = 0
        for path in (self._path, f"{self._path}-wal"):
            with suppress(OSError):
                total += os.stat(path).st_size
        return total

    def _exceeds(self) -> bool:
        self._work -= INTERVAL
        return self._work < 0


def connect(path: Path) -> Connection:
    """Open a database for reading, also while another process writes it.

    Where it lies on something that cannot be written to and has no log beside it, it is read as one
    that nobody changes: SQLite wants to make its helper files otherwise.

    Raises:
        sqlite3.Error: It cannot be opened.
        ValueError: What is beside it under the name of a helper file is no file.
    """
    _check_helpers(path)
    try:
        return _connected(path, "mode=ro")
    except sqlite3.OperationalError:
        wal = Path(f"{path}-wal")
        if os.access(path.parent, os.W_OK) or (wal.exists() and wal.stat().st_size):
            raise
        return _connected(path, "mode=ro&immutable=1")


def _connected(path: Path, options: str) -> Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?{options}", uri=True, isolation_level=None, factory=Connection
    )
    try:
        connection.guard(path)
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _check_helpers(path: Path) -> None:
    """Look at the helper files that SQLite would open beside a database.

    Raises:
        ValueError: One of them is a link, a pipe, or anything else but a file.
    """
    for ending in HELPERS:
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(f"{path}{ending}").st_mode):
                raise ValueError(f"{path.name}{ending} beside it is not a regular file")


def check_schema(connection: Connection) -> None:
    """Look at what a database is made of; further plain tables and indexes of these do no harm.

    Raises:
        ValueError: It has views, triggers or virtual tables, or tables of a run file that are not as
            this package makes them.
    """
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master"
    for kind, name, table, statement in connection.rows(query):
        text = " ".join(str(statement or "").split())
        if kind not in ("table", "index") or re.match("CREATE VIRTUAL ", text, re.IGNORECASE):
            what = "virtual table" if kind == "table" else kind
            raise ValueError(f"it has a {what} {name!r}, which no run file has")
        own = str(table).lower()
        expected = KNOWN.get(own) if kind == "table" else ""  # SQLite's own indexes have none
        if own in KNOWN and text != expected:
            raise ValueError(f"its {kind} {name!r} is not that of a run file")


def _allows(action: int, first: str | None, second: str | None, *where: str | None) -> int:
    """Say whether SQLite may do something; where a view or a trigger wants it, it may not.

    Args:
        action: What, one of the constants of `sqlite3`.
        first: Of what: a table or a pragma.
        second: A column, a function, or the value of a pragma.
        where: The database, and the trigger or view from within which.
    """
    fine = where[-1:] in ((), (None,)) and (
        action in ALLOWED
        or (action == sqlite3.SQLITE_READ and first in READABLE)
        or (action == sqlite3.SQLITE_FUNCTION and second in FUNCTIONS)
        or (action == sqlite3.SQLITE_PRAGMA and first in PRAGMAS and second is None)
        # So json_each declares its columns; a statement cannot, on a connection that only reads.
        or (action, first) == (sqlite3.SQLITE_UPDATE, "sqlite_master")
    )
    return sqlite3.SQLITE_OK if fine else sqlite3.SQLITE_DENY
