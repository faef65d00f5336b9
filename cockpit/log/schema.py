"""What a run file holds: its tables, what goes in and comes out, how arrays become bytes.

A run file is an SQLite database with its own application id. Version 3 has these tables:

- ``meta``: settings, status, and the process that writes, one JSON text per key;
- ``parameters``: name, shape and dtype of the model's parameters, in the order of the model;
- ``series``: what a number or an array belongs to (quantity, key, parameter, ...);
- ``scalars`` and ``arrays``: one row per series and step;
- ``scalar_blocks``: numbers of many steps of a series (see `cockpit.log.scalars`);
- ``blocks``: arrays of many steps of a series (see `cockpit.log.arrays`);
- ``steps``: the tracked steps with their times;
- ``events``: what happened, such as a quantity that could not be checked;
- ``findings``: what is wrong with the training, one JSON text each.

Version 2 had no blocks of numbers, version 1 neither blocks nor findings.

Nothing in it is executed or unpickled: an array is a dtype from a short list, a shape, and plain
bytes.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sqlite3
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from cockpit.errors import InvalidArgument, InvalidType

APPLICATION_ID = 0x434F434B  # "COCK" in ASCII, at byte 68 of the file
SCHEMA_VERSION = 3
MAX_ARRAY_BYTES = 2**30  # what is accepted when reading
MAX_STORED_BYTES = 900_000_000  # SQLite takes at most 10**9 bytes a row

SCALAR_BYTES = 250
"""Bytes of memory that a number takes which waits to be written, about."""

SET_META = "INSERT OR REPLACE INTO meta VALUES(?, ?)"

TABLES = (
    "meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """parameters(
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
        shape TEXT NOT NULL, dtype TEXT NOT NULL)""",
    """series(
        id INTEGER PRIMARY KEY, quantity TEXT NOT NULL, key TEXT NOT NULL, parameter TEXT NOT NULL,
        kind TEXT NOT NULL, detail INTEGER NOT NULL, source TEXT NOT NULL,
        UNIQUE(quantity, key, parameter, kind, detail, source))""",
    """scalars(
        series INTEGER NOT NULL, step INTEGER NOT NULL, value REAL,
        PRIMARY KEY(series, step)) WITHOUT ROWID""",
    """scalar_blocks(
        series INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
        dtype TEXT NOT NULL, count INTEGER NOT NULL, steps BLOB NOT NULL, blob BLOB NOT NULL,
        PRIMARY KEY(series, first))""",
    """arrays(
        series INTEGER NOT NULL, step INTEGER NOT NULL, dtype TEXT NOT NULL, shape TEXT NOT NULL,
        blob BLOB NOT NULL, PRIMARY KEY(series, step))""",
    """blocks(
        series INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
        dtype TEXT NOT NULL, shape TEXT NOT NULL, count INTEGER NOT NULL,
        steps BLOB NOT NULL, blob BLOB NOT NULL, PRIMARY KEY(series, first))""",
    "steps(step INTEGER PRIMARY KEY, wall REAL NOT NULL, monotonic REAL NOT NULL)",
    """events(
        id INTEGER PRIMARY KEY, step INTEGER, wall REAL NOT NULL, kind TEXT NOT NULL,
        subject TEXT NOT NULL, message TEXT NOT NULL)""",
    """findings(
        id INTEGER PRIMARY KEY, step INTEGER NOT NULL, record TEXT NOT NULL)""",
)

DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}


@dataclass(frozen=True)
class Row:
    """One value of one step, as it is handed to the writer.

    Attributes:
        quantity: Name of the quantity (``"NormTest"``) or of a metric of the user
            (``"train_loss"``).
        value: A number is stored as float64 (integers beyond ±2**53 are rounded to the nearest one,
            and those too large for float64 become infinite); an array keeps its dtype and shape.
        key: ``""`` for the value itself, otherwise which of several values it is, such as
            ``"hist"``.
        parameter: Name of the parameter that the value belongs to, ``""`` for none.
        detail: Whether this is richer data, which `RunFile.output` leaves out.
        source: ``"quantity"``, or ``"log"`` for metrics of the user.
    """

    quantity: str
    value: float | int | np.ndarray
    key: str = ""
    parameter: str = ""
    detail: bool = False
    source: str = "quantity"


@dataclass(frozen=True)
class ParameterInfo:
    """Name, shape and dtype of a parameter of the model."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Series:
    """What values over steps have in common; `kind` is "scalar" or "array"."""

    id: int
    quantity: str
    key: str
    parameter: str
    kind: str
    detail: bool
    source: str


@dataclass(frozen=True)
class Event:
    """Something that happened, at `wall` seconds since 1970; `step` is None if in no step."""

    step: int | None
    wall: float
    kind: str
    subject: str
    message: str


@dataclass(frozen=True)
class PackedArray:
    """An array as bytes: little-endian, rows first, not yet compressed."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def pack(array: np.ndarray) -> PackedArray:
    """Copy `array` into bytes, so that what happens to it afterwards does not matter.

    Raises:
        InvalidType: The dtype is none of `DTYPES`.
    """
    name = array.dtype.name
    if name not in DTYPES:
        raise InvalidType(
            f"arrays of dtype {name} cannot be stored. "
            f"Convert to one of {', '.join(DTYPES)} before."
        )
    return PackedArray(name, array.shape, array.astype(DTYPES[name], copy=False).tobytes())


def compress(data: bytes) -> bytes:
    """Return `data` in zlib's format if that is clearly shorter, else unchanged.

    The length tells the two apart: compressed data are always shorter than what they stand for. The
    start of long data is tried first, since the values of a trained layer hardly shrink and are not
    worth the time.
    """
    start = data[:16384]
    packed = zlib.compress(start, 1)
    if len(packed) > 0.9 * len(start):
        return data
    if len(data) > len(start):
        packed = zlib.compress(data, 1)
    return packed if len(packed) < len(data) else data


def unpack(dtype: str, shape: str, blob: bytes) -> np.ndarray:
    """Return the array that was stored; it is writable and owns its memory.

    Raises:
        ValueError: The three do not describe an array that this module could have written.
    """
    sizes = sizes_of(dtype, shape)
    expected = math.prod(sizes) * DTYPES[dtype].itemsize
    if expected > MAX_ARRAY_BYTES:
        raise ValueError(f"an array claims {expected} bytes, more than {MAX_ARRAY_BYTES}")
    native = np.dtype(dtype)
    return np.frombuffer(inflate(blob, expected), DTYPES[dtype]).reshape(sizes).astype(native)


def sizes_of(dtype: str, shape: str) -> list[int]:
    """Return the shape that was stored.

    Raises:
        ValueError: It is none, or the dtype is none of `DTYPES`.
    """
    if dtype not in DTYPES:
        raise ValueError(f"an array has dtype {dtype!r}")
    sizes = json.loads(shape)
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError(f"an array has shape {shape!r}")
    return sizes


def inflate(blob: bytes, expected: int) -> bytes:
    """Return what `blob` stands for, which is compressed if it is shorter than that.

    Raises:
        ValueError: It has another length than expected; no more than that is ever unpacked.
    """
    if len(blob) < expected:
        stream = zlib.decompressobj()
        try:
            blob = stream.decompress(blob, expected + 1)
        except zlib.error as error:
            raise ValueError(f"an array cannot be decompressed ({error})") from error
    if len(blob) != expected:
        raise ValueError(f"an array of {expected} bytes has other than these")
    return blob


@dataclass(frozen=True)
class Point:
    """How far a run had come: its last step, and the numbers of its last event and last finding."""

    step: int
    event: int
    finding: int


@dataclass
class Batch:
    """What one call of the writer hands over, and what becomes visible to readers as a whole.

    Attributes:
        step: The step of all that is in it, None for an event of no step.
        times: Wall time and monotonic time if the step is tracked.
        scalars: Pairs of the columns of ``series`` (all but the id) and the value.
        arrays: The same with arrays.
        events: Rows of ``events`` without the id.
        findings: Rows of ``findings`` without the id.
        rewind: Before all else, drop what comes after this point.
    """

    step: int | None
    times: tuple[float, float] | None = None
    scalars: list[tuple[tuple[Any, ...], float]] = field(default_factory=list)
    arrays: list[tuple[tuple[Any, ...], PackedArray]] = field(default_factory=list)
    events: list[tuple[Any, ...]] = field(default_factory=list)
    findings: list[tuple[int, str]] = field(default_factory=list)
    rewind: Point | None = None

    @property
    def size(self) -> int:
        """Bytes of memory that it takes, about."""
        numbers = SCALAR_BYTES * (1 + len(self.scalars) + len(self.arrays))
        arrays = sum(len(array.data) for _, array in self.arrays)
        texts = sum(SCALAR_BYTES + len(event[-1]) for event in (*self.events, *self.findings))
        return numbers + arrays + texts

    @property
    def values(self) -> int:
        """How many numbers and arrays there are in it."""
        return len(self.scalars) + len(self.arrays)

    @property
    def has_step(self) -> bool:
        """Whether there is something of a step in it, beside what happened then."""
        return self.times is not None or self.values > 0

    def add(self, row: Row) -> None:
        """Add a value; an array is copied.

        Raises:
            InvalidType: It is no number and no array of numbers.
        """
        value, kind = row.value, "array" if isinstance(row.value, np.ndarray) else "scalar"
        series = (row.quantity, row.key, row.parameter, kind, int(row.detail), row.source)
        if isinstance(value, np.ndarray):
            if value.nbytes > MAX_STORED_BYTES:
                text = f"an array of {value.nbytes} bytes; at most {MAX_STORED_BYTES} can be stored"
                self.note("too-large", row.quantity, text)
                return
            self.arrays.append((series, pack(value)))
        elif isinstance(value, (Real, np.bool_)):
            self.scalars.append((series, _as_float(value)))
        else:
            raise InvalidType(
                f"the value of {row.quantity} is of type {type(value).__name__}. "
                "Give a number or a numpy array of numbers."
            )

    def note(self, kind: str, subject: str, message: str) -> None:
        """Add an event that happens now."""
        self.events.append((self.step, time.time(), kind, subject, message))


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def create_tables(connection: sqlite3.Connection) -> None:
    """Make a run file out of an empty database, or one of this version out of an older one."""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    for table in TABLES:
        connection.execute(f"CREATE TABLE IF NOT EXISTS {table}")
    meta = [("created", json.dumps(time.time())), ("settings", "{}")]
    connection.executemany("INSERT OR IGNORE INTO meta VALUES(?, ?)", meta)


def rewind(connection: sqlite3.Connection, point: Point) -> None:
    """Drop the later steps, and the events and findings with later numbers."""
    connection.execute("DELETE FROM steps WHERE step > ?", (point.step,))
    connection.execute("DELETE FROM events WHERE id > ?", (point.event,))
    connection.execute("DELETE FROM findings WHERE id > ?", (point.finding,))


def describe_run(
    connection: sqlite3.Connection,
    settings: Mapping[str, Any] | None,
    parameters: Sequence[ParameterInfo],
) -> None:
    """Enter who writes, the settings unless they are None, and those parameters that are new.

    Raises:
        InvalidArgument: A parameter is there already, with another shape.
    """
    meta = {"status": "running", **this_process()}
    if settings is not None:
        meta["settings"] = plain(settings)
    connection.executemany(SET_META, [(key, json.dumps(meta[key])) for key in meta])
    known = dict(connection.execute("SELECT name, shape FROM parameters").fetchall())
    for one in parameters:
        shape = json.dumps(list(one.shape))
        if known.setdefault(one.name, shape) != shape:
            raise InvalidArgument(
                f"its parameter {one.name} has shape {known[one.name]}, "
                f"that of this model has {shape}. "
                "Give another path, or resume=False."
            )
        row = (one.name, shape, one.dtype)
        connection.execute("INSERT OR IGNORE INTO parameters VALUES(NULL, ?, ?, ?)", row)


def plain(value: Any) -> Any:
    """Return `value` as JSON can hold it; what JSON does not know becomes its `repr`."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return str(value)
    return repr(value)


def this_process() -> dict[str, Any]:
    """Return what tells this process from all others: pid, host, and (if known) its start."""
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": _started(os.getpid())}


def is_alive(process: Mapping[str, Any]) -> bool:
    """Return whether `process`, as of `this_process`, still runs; no for other hosts."""
    pid = process.get("pid")
    if os.name != "posix" or type(pid) is not int or process.get("host") != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return process.get("started") == _started(pid)


def _started(pid: int) -> str:
    """Return when a process began, in ticks since boot, or ``""`` where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "ended" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return ""
