"""Reading a run file with nothing but SQLite and numpy."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from cockpit.errors import NotARunFile
from cockpit.findings import Finding
from cockpit.log.arrays import arrays_of, select
from cockpit.log.scalars import ScalarReader
from cockpit.log.schema import (
    APPLICATION_ID,
    MAX_STORED_BYTES,
    SCHEMA_VERSION,
    Event,
    ParameterInfo,
    Series,
    is_alive,
)
from cockpit.log.untrusted import check_schema, connect

DAMAGE = (sqlite3.Error, ValueError, TypeError, KeyError, OverflowError, RecursionError)
"""What reading raises where the data are not what this package writes."""

MAX_DEPTH = 64
"""Levels of what a run file says as JSON: whoever shows it goes down step by step."""

MAX_QUOTED = 300
"""Characters of the reason for which a file is refused; it may quote what stands there."""

TIMES = np.dtype([("step", np.int64), ("wall", np.float64), ("monotonic", np.float64)])
"""What a row of the table ``steps`` becomes."""


class RunFile:
    """Read-only view of a run file, also while another process writes it.

    Every call reads what is committed at that moment. Use it from one thread, and close it (or use
    it as a context manager): as long as a reader is open, the writer's ``close()`` leaves its two
    helper files beside the run file.

    Args:
        path: The run file.

    Raises:
        NotARunFile: There is no such file, or it is not one that this version reads. Every other
            method raises it too when it comes upon damaged data.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser().absolute()
        _check_file(self.path)
        with self._translated():
            self._connection = connect(self.path)
        try:
            self._check_database()
        except NotARunFile:
            self.close()
            raise

    def _check_database(self) -> None:
        ((application,),) = self._all("PRAGMA application_id")
        if application != APPLICATION_ID:
            raise NotARunFile(
                f"{self.path} is an SQLite database of another program, not a run file. "
                "Give the path that was passed to Cockpit(..., log=path)."
            )
        version = self._version()
        if version > SCHEMA_VERSION:
            raise NotARunFile(
                f"{self.path} was written by a newer version of torch-cockpit "
                f"(format {version}; this one reads up to {SCHEMA_VERSION}). "
                "Upgrade with: pip install --upgrade torch-cockpit"
            )
        with self._translated():
            check_schema(self._connection)

    @property
    def settings(self) -> dict[str, Any]:
        """What the writer was told about the run."""
        settings = self._meta("settings", {})
        return settings if isinstance(settings, dict) else {}

    @property
    def status(self) -> str:
        """Either "running" (or killed without warning: see `is_live`) or "closed"."""
        return str(self._meta("status", "closed"))

    @property
    def created(self) -> float:
        """When the file was made, in seconds since 1970."""
        created = self._meta("created", 0.0)
        with self._translated():
            return float(created)

    @property
    def process(self) -> dict[str, Any]:
        """The process that writes or wrote: ``pid``, ``host``, ``started``."""
        return {key: self._meta(key, "") for key in ("pid", "host", "started")}

    @property
    def is_live(self) -> bool:
        """Whether the writing process is known to be alive, which only its host can tell."""
        return self.status == "running" and is_alive(self.process)

    @property
    def parameters(self) -> list[ParameterInfo]:
        """The parameters of the model, in its order."""
        rows = self._all("SELECT name, shape, dtype FROM parameters ORDER BY id", kinds=(str,) * 3)
        with self._translated():
            return [ParameterInfo(name, _shape(shape), kind) for name, shape, kind in rows]

    def series(self) -> list[Series]:
        """Return what there are values of, in the order of first appearance."""
        columns = "id, quantity, key, parameter, kind, detail, source"
        return [
            Series(number, quantity, key, parameter, kind, bool(detail), source)
            for number, quantity, key, parameter, kind, detail, source in self._all(
                f"SELECT {columns} FROM series ORDER BY id", kinds=(int, *(str,) * 4, int, str)
            )
        ]

    def steps(self, *, start: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the tracked steps (int64), and in seconds (float64) wall and monotonic time.

        Args:
            start: Only those from this one on.
        """
        where, values = ("WHERE step >= ?", (start,)) if start is not None else ("", ())
        query = f"SELECT step, wall, monotonic FROM steps {where} ORDER BY step"
        with self._translated():
            rows = np.fromiter(self._connection.execute(query, values), TIMES)
        return rows["step"].copy(), rows["wall"].copy(), rows["monotonic"].copy()

    def extent(self) -> tuple[int, int | None, int | None]:
        """Return how many steps were tracked, the first and the last; without reading them all."""
        ((count, first, last),) = self._all("SELECT count(*), min(step), max(step) FROM steps")
        return count, first, last

    def scalars(
        self, series: int | None = None, *, start: int | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return series ids, steps (int64) and values (float64), ordered by series and step.

        Args:
            series: Only those of the series with this id, which are all that is then read.
            start: Of this series, only those of the steps from this one on.
        """
        with self._snapshot(), self._translated():
            numbers = ScalarReader(self._connection, blocks=self._version() > 2)
            return numbers.all() if series is None else numbers.of_series(series, start)

    def scalars_at(self, series: int, steps: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return steps (int64) and values (float64) of one series at some steps, reading few others."""
        with self._snapshot(), self._translated():
            numbers = ScalarReader(self._connection, blocks=self._version() > 2)
            return numbers.at_steps(series, steps)[1:]

    def arrays(
        self, series: int | None = None, *, start: int | None = None, stop: int | None = None
    ) -> Iterator[tuple[Series, int, np.ndarray]]:
        """Yield series, step and array, one after the other, ordered by series and step.

        Args:
            series: Only those of the series with this id, which are all that is then read.
            start: Only those of the steps from this one on.
            stop: Only those of the steps before this one.
        """
        with self._snapshot():
            known = {one.id: one for one in self.series()}
            query, values = select(series, start, stop, blocks=self._version() > 1)
            with self._translated():
                found = self._connection.rows(query, values, longest=MAX_STORED_BYTES)
            with closing(found):
                while True:
                    with self._translated():
                        row = next(found, None)
                        if row is None:
                            return
                        _check_kinds(row[1:3], (int, int))
                        items = [(known[row[0]], *item) for item in arrays_of(row)]
                    for item in items:
                        if (start is None or start <= item[1]) and (stop is None or item[1] < stop):
                            yield item

    def events(self) -> list[Event]:
        """Return the events in the order in which they happened."""
        rows = self._all(
            "SELECT step, wall, kind, subject, message FROM events ORDER BY id",
            kinds=(int | None, float, str, str, str),
        )
        return [Event(*row) for row in rows]

    def findings(self) -> list[Finding]:
        """Return the findings in the order in which they were made; older files have none."""
        if self._version() < 2:
            return []
        rows = self._all("SELECT record FROM findings ORDER BY id")
        with self._translated():
            return [Finding.from_record(_content(record)) for (record,) in rows]

    def mark(self) -> dict[str, Any]:
        """Return which run this is and how far it has come, for `RunWriter.rewind`."""
        last = "SELECT coalesce(max(id), 0) FROM"
        findings = f"({last} findings)" if self._version() > 1 else "0"  # older files have none
        ((event, finding),) = self._all(f"SELECT ({last} events), {findings}")
        return {"created": self.created, "events": event, "findings": finding}

    def output(self, *, metrics: bool = False) -> dict[int, dict[str, Any]]:
        """Return the quantities' values in the shape of Cockpit 1.0, ``{step: {quantity: value}}``.

        A value is a float or an array; a list of them, in the order of `parameters`, where it was
        recorded per parameter; or a dictionary of those where the quantity has several keys. Where
        one key has both a total and values per parameter, it is the total. Details are left out.

        Args:
            metrics: Whether to put the metrics of the user among them. Of a quantity and a metric
                with one name, it is the quantity.
        """
        with self._snapshot():
            series = {one.id: one for one in self.series()}
            order = {parameter.name: place for place, parameter in enumerate(self.parameters)}
            scalars = zip(*(column.tolist() for column in self.scalars()), strict=True)
            with self._translated():
                numbers = [(series[i], step, value) for i, step, value in scalars]
            found = numbers + list(self.arrays())
        output: dict[int, dict[str, Any]] = {}
        for source in ("quantity", "log") if metrics else ("quantity",):
            nested: dict[int, dict[str, dict[str, dict[str, Any]]]] = {}
            for one, step, value in found:
                if one.source == source and not one.detail:
                    keys = nested.setdefault(step, {}).setdefault(one.quantity, {})
                    keys.setdefault(one.key, {})[one.parameter] = value
            for step, names in nested.items():
                of_step = output.setdefault(step, {})
                for name, keys in names.items():
                    of_step.setdefault(name, _value(keys, order))
        return {step: output[step] for step in sorted(output)}

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def __enter__(self) -> RunFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RunFile({str(self.path)!r})"

    def _all(
        self, query: str, values: tuple[Any, ...] = (), *, kinds: Sequence[Any] = ()
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a query, whose values are of these kinds: SQLite does not see to it."""
        with self._translated():
            rows = list(self._connection.rows(query, values))
            for row in rows if kinds else ():
                _check_kinds(row, kinds)
        return rows

    def _meta(self, key: str, default: Any) -> Any:
        rows = self._all("SELECT value FROM meta WHERE key = ?", (key,))
        with self._translated():
            return _content(rows[0][0]) if rows else default

    def _version(self) -> int:
        """Return the format of the file, which changes when a run of an older one is continued."""
        ((version,),) = self._all("PRAGMA user_version")
        return version

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Let all reads in the block see the same moment."""
        outermost = not self._connection.in_transaction
        if outermost:
            with self._translated():
                self._connection.execute("BEGIN")
        try:
            yield
        finally:
            if outermost:
                with suppress(sqlite3.ProgrammingError):  # closed before the end of an iteration
                    self._connection.execute("ROLLBACK")  # unlike COMMIT, a damaged file lets it

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Name the file and the way out in whatever goes wrong while reading."""
        try:
            yield
        except sqlite3.ProgrammingError:
            raise  # the caller's mistake, such as reading after close()
        except sqlite3.OperationalError as error:
            text = str(error)
            if "locked" in text:
                raise NotARunFile(
                    f"{self.path} is locked by another program ({text}). "
                    "Try again once that is done."
                ) from error
            if "unable to open" in text:
                raise NotARunFile(
                    f"{self.path} cannot be opened ({text}). Check that it may "
                    "be read; a run that was killed also "
                    "needs its -wal file, and a folder that may be written to."
                ) from error
            if "readonly" in text:
                raise NotARunFile(
                    f"{self.path} has beside it the -journal of a change that was interrupted, which "
                    "whoever may write to it undoes: sqlite3 FILE .tables"
                ) from error
            if text == "interrupted":
                text = "reading it takes more work than a file of its size gives rise to"
            raise self._damaged(text) from error
        except DAMAGE as error:
            raise self._damaged(error) from error
        except MemoryError as error:
            raise NotARunFile(
                f"{self.path} has more in it than fits into memory. Read a part of it."
            ) from error

    def _damaged(self, error: Exception | str) -> NotARunFile:
        what = str(error)
        what = what if len(what) <= MAX_QUOTED else f"{what[:MAX_QUOTED]} ..."
        return NotARunFile(
            f"{self.path} is damaged: {what}. "
            "Take an older copy, or save what is left with: sqlite3 FILE .recover"
        )


def start_of(path: Path) -> bytes:
    """Return the first bytes of a file.

    Raises:
        NotARunFile: There is no such file, it cannot be read, or it is empty.
    """
    try:
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            raise NotARunFile(f"{path} is a folder, not a run file. Give the path of a file in it.")
        if not stat.S_ISREG(kind):  # opening a pipe waits for ever, and a device may have no end
            raise NotARunFile(
                f"{path} is a pipe, a device or a socket, not a run file. Give the path of a file."
            )
        with path.open("rb") as file:
            start = file.read(16)
    except NotARunFile:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise NotARunFile(
            f"There is no file {path}. Give the path that was passed to Cockpit(..., log=path)."
        ) from None
    except OSError as error:
        raise NotARunFile(f"{path} cannot be read: {error}. Check its permissions.") from error
    except ValueError as error:  # a NUL within
        raise NotARunFile(f"{path} is no path of a file: {error}.") from error
    if not start:
        raise NotARunFile(f"{path} is empty, not a run file. Remove it, or give another path.")
    return start


def is_database(start: bytes) -> bool:
    """Return whether a file that starts so is one of SQLite."""
    return start == b"SQLite format 3\0"


def _check_file(path: Path) -> None:
    if not is_database(start_of(path)):
        raise NotARunFile(
            f"{path} is not an SQLite database and so not a run file. "
            "Give the path that was passed to Cockpit(..., log=path)."
        )


def _check_kinds(row: Sequence[Any], kinds: Sequence[Any]) -> None:
    if not all(map(isinstance, row, kinds)):
        found = ", ".join(type(one).__name__ for one in row)
        raise ValueError(f"a row holds other kinds of values than it should ({found})")


def _shape(text: str) -> tuple[int, ...]:
    sizes = _content(text)
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError(f"a parameter has shape {text[:80]!r}")
    return tuple(sizes)


def _content(text: str) -> Any:
    """Return what JSON says, if it is nested no deeper than what this package writes."""
    content = json.loads(text)
    level = [content]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return content
    raise ValueError(f"something in it is nested deeper than {MAX_DEPTH} levels")


def _value(keys: dict[str, dict[str, Any]], order: dict[str, int]) -> Any:
    """Turn {key: {parameter: value}} into the shape that `RunFile.output` describes."""
    values = {
        key: parts[""]
        if "" in parts
        else [parts[name] for name in sorted(parts, key=lambda name: order.get(name, len(order)))]
        for key, parts in keys.items()
    }
    if list(values) == [""]:
        return values[""]
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = (
            [key] if any(key.startswith(f"{other}/") for other in values) else key.split("/")
        )
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return _lists(nested)


def _lists(nested: Any) -> Any:
    """Turn dictionaries with the keys 0, 1, ... back into the lists that they were."""
    if not isinstance(nested, dict):
        return nested
    values = {key: _lists(value) for key, value in nested.items()}
    numbered = [str(position) for position in range(len(values))]
    return list(values.values()) if sorted(values, key=len) == numbered else values
