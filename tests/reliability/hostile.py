"""Run files that somebody made on purpose: good ones, changed so that a reader would run, loop, or swell."""

import sqlite3
import struct
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np

from cockpit.findings import Finding
from cockpit.log import ParameterInfo, Row, RunWriter

FINDING = Finding(
    code="CP101",
    name="learning-rate-too-high",
    severity="error",
    step=2,
    title="The learning rate is too high",
    why="Steps overshoot.",
    action="Divide it by three.",
    source="",
    subjects=("fc.weight",),
    evidence={"median alpha": 0.7},
)

ENDLESS = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t)"


def write_run(path: Path, steps: int = 6) -> Path:
    """Write a run with something in every table."""
    parameters = [
        ParameterInfo("fc.weight", (3, 2), "float32"),
        ParameterInfo("fc.bias", (3,), "f"),
    ]
    with closing(RunWriter(path, settings={"model": "Net", "lr": 0.1}, parameters=parameters)) as w:
        for step in range(steps):
            w.record(
                step,
                [
                    Row("Loss", 1 / (step + 1)),
                    Row("Alpha", 0.1 * step),
                    Row("GradNorm", 1.0 + step, parameter="fc.weight"),
                    Row("GradHist1d", np.arange(5) + step, key="hist"),
                    Row("GradHist1d", np.linspace(0, 1, 6), key="edges"),
                    Row("train_loss", 0.5, source="log"),
                ],
            )
        w.note(1, "not-checked", "Alpha", "no second step")
        w.finding(FINDING)
    return path


def write_long_run(path: Path) -> Path:
    """Write a run that has blocks of numbers and of arrays."""
    return write_run(path, steps=600)


def alter(path: Path, *statements: str, values: tuple[object, ...] = ()) -> None:
    """Execute statements on a database, as whoever made it could."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA trusted_schema = ON")
        for statement in statements:
            connection.execute(statement, values)


def replaced(table: str, by: str) -> Callable[[Path], None]:
    """Return what puts something else in the place of a table."""
    return lambda path: alter(path, f"DROP TABLE {table}", by)


SCHEMAS: dict[str, Callable[[Path], None]] = {
    "an endless view": replaced("steps", f"CREATE VIEW steps AS {ENDLESS} SELECT x step, x wall, x monotonic FROM t"),
    "a view of settings": replaced("meta", f"CREATE VIEW meta AS {ENDLESS} SELECT 'status' key, x value FROM t"),
    "a view in capitals": replaced("events", f"CREATE VIEW Events AS {ENDLESS} SELECT x id FROM t"),
    "a view that loads code": replaced(
        "scalars", "CREATE VIEW scalars AS SELECT 1 series, 1 step, load_extension('/tmp/x.so') value"
    ),
    "a view beside the tables": lambda path: alter(path, f"CREATE VIEW v AS {ENDLESS} SELECT x FROM t"),
    "a view that shadows a function": lambda path: alter(
        path, f"CREATE VIEW json_each AS {ENDLESS} SELECT x value FROM t"
    ),
    "a trigger": lambda path: alter(
        path, "CREATE TRIGGER t AFTER INSERT ON steps BEGIN DELETE FROM scalars; END"
    ),
    "a generated column": replaced(
        "steps",
        "CREATE TABLE steps(step INTEGER PRIMARY KEY, wall REAL AS (length(zeroblob(900000000))), monotonic REAL)",
    ),
    "a default": replaced(
        "events",
        "CREATE TABLE events(id INTEGER PRIMARY KEY, step INTEGER, wall REAL DEFAULT (random()), "
        "kind TEXT, subject TEXT, message TEXT)",
    ),
    "a virtual table": replaced("events", "CREATE VIRTUAL TABLE events USING fts5(step, wall, kind, subject, message)"),
    "a virtual table beside": lambda path: alter(path, "CREATE VIRTUAL TABLE x USING fts5(a)"),
    "an index on an expression": lambda path: alter(path, "CREATE INDEX i ON scalars(abs(step))"),
    "an index of a table": lambda path: alter(path, "CREATE INDEX i ON arrays(series, step)"),
    "a table without its key": replaced(
        "arrays", "CREATE TABLE arrays(series, step, dtype, shape, blob)"
    ),
}  # fmt: skip
"""What no run file has: each is refused before any of it is looked at."""


# -- pages ----------------------------------------------------------------------------------------


def endless_table(path: Path, table: str, levels: int = 8) -> None:
    """Make the pages of a table refer to the same few again and again: 2**60 rows and more.

    Each of the new inner pages has a hundred entries or more, and all of them lead to the next page,
    the last ones to what was the root.
    """
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        ((size,),) = connection.execute("PRAGMA page_size")
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        ((root,),) = connection.execute(query, (table,))
    data = bytearray(path.read_bytes())
    count = len(data) // size
    leaf = bytes(data[(root - 1) * size : root * size])
    assert leaf[0] in (5, 13), "a table with a number for each row"
    pages = [_inner(count + number + 2, size) for number in range(levels)] + [leaf]
    data[(root - 1) * size : root * size] = _inner(count + 1, size)
    for page in pages:
        data += page
    data[28:32] = struct.pack(">I", len(data) // size)
    path.write_bytes(data)


def _inner(child: int, size: int) -> bytes:
    """Return an inner page of a table whose entries all lead to one page."""
    cells = min(120, (size - 12) // 7)
    page = bytearray(size)
    start = size - 5 * cells
    page[0:12] = struct.pack(">BHHHBI", 5, 0, cells, start, 0, child)
    for number in range(cells):
        place = start + 5 * number
        page[place : place + 5] = struct.pack(">IB", child, number + 1)
        page[12 + 2 * number : 14 + 2 * number] = struct.pack(">H", place)
    return bytes(page)


# -- contents -------------------------------------------------------------------------------------


def number_bomb(path: Path, blocks: int) -> None:
    """Add blocks of numbers that are a few hundred bytes each and 65,536 equal numbers."""
    count = 2**16
    blob = zlib.compress(bytes(4 * count), 9)
    firsts = range(2**40, 2**40 + blocks * count, count)
    rows = [(1, first, first + count - 1, "float32", count, b"", blob) for first in firsts]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany("INSERT INTO scalar_blocks VALUES(?, ?, ?, ?, ?, ?, ?)", rows)


def array_bomb(path: Path, arrays: int, size: int) -> None:
    """Add arrays of zeros, of `size` bytes each."""
    blob = zlib.compress(bytes(size), 9)
    rows = [(10**6 + k, "uint8", f"[{size}]", blob) for k in range(arrays)]
    series = "(SELECT id FROM series WHERE quantity = 'GradHist1d' AND key = 'hist')"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(f"INSERT INTO arrays VALUES({series}, ?, ?, ?, ?)", rows)


VALUES: tuple[object, ...] = (
    "text",
    "<script>alert(1)</script>\x1b[2J\r\n\x00\u202e/../../etc/passwd",
    "[" * 500 + "]" * 500,
    "[" + "9" * 4000 + "]",
    '{"a": NaN, "b": 1e999}',
    "null",
    b"\xff\xfe\x00",
    b"",
    -(2**63),
    2**63 - 1,
    1e308,
    float("inf"),
    "x" * 200_000,
)
"""What any column may be made to hold: SQLite does not keep to the types of columns."""

COLUMNS = {
    "meta": ("key", "value"),
    "parameters": ("name", "shape", "dtype"),
    "series": ("quantity", "key", "parameter", "kind", "detail", "source"),
    "scalars": ("series", "step", "value"),
    "scalar_blocks": ("series", "first", "last", "dtype", "count", "steps", "blob"),
    "arrays": ("series", "step", "dtype", "shape", "blob"),
    "blocks": ("series", "first", "last", "dtype", "shape", "count", "steps", "blob"),
    "steps": ("wall", "monotonic"),
    "events": ("step", "wall", "kind", "subject", "message"),
    "findings": ("step", "record"),
}
