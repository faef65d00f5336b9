"""The arrays of a run file: single rows at first, blocks of many steps as soon as there are enough.

An array is first a row of its own in ``arrays``: readable at once, and safe whatever happens to the
process. When a series has enough of them they become one row of ``blocks``, which takes a fraction. The
blocks of a series do not overlap, and no single row lies within one: sorted by their first steps, blocks
and single rows are in the order of the steps.

Where the run has a retention, the older arrays of a series are thinned whenever it is packed (see
`cockpit.log.retention`).
"""

from __future__ import annotations

import json
import math
import sqlite3
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from cockpit.log.blocks import (
    BLOCK_BYTES,
    BLOCK_STEPS,
    pack_block,
    pack_steps,
    unpack_block,
    unpack_steps,
)
from cockpit.log.retention import superfluous
from cockpit.log.schema import DTYPES, PackedArray, compress, pack, sizes_of, unpack

LARGEST = BLOCK_BYTES // 4
"""Bytes before compression; a larger array stays single, since blocks of so few save nothing."""

SINGLE = "SELECT series, step, step, dtype, shape, NULL, NULL, blob FROM arrays"
BLOCKS = "SELECT series, first, last, dtype, shape, count, steps, blob FROM blocks"

ROUND = 16
"""Arrays of a series that come between two looks at which are to go, at least."""

BEFORE_ALL, AFTER_ALL = -(2**63), 2**63 - 1
"""The smallest and the largest number that SQLite holds."""


def select(
    series: int | None, start: int | None, stop: int | None, *, blocks: bool
) -> tuple[str, dict[str, int | None]]:
    """Return the query for the rows, with its values, in the order of series and steps.

    Args:
        series: Only those of the series with this id.
        start: Only those with steps from this one on; a block has earlier ones, too.
        stop: Only those with steps before this one; a block has later ones, too.
        blocks: Whether there is a table of blocks.
    """
    values = {"series": series, "start": start, "stop": stop}
    of_series = "series = :series" if series is not None else "true"
    single, block = (
        f"{query} WHERE {of_series}"
        + (f" AND {last} >= :start" if start is not None else "")
        + (f" AND {first} < :stop" if stop is not None else "")
        for query, first, last in ((SINGLE, "step", "step"), (BLOCKS, "first", "last"))
    )
    query = f"{single} UNION ALL {block}" if blocks else single
    return f"{query} ORDER BY 1, 2", values


def arrays_of(row: Sequence[Any]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the steps and the arrays of a row of `SINGLE` or `BLOCKS`; they own their memory.

    Raises:
        ValueError: The row is not one that this module could have written.
    """
    _, first, last, dtype, shape, count, steps, blob = row
    if count is None:
        yield first, unpack(dtype, shape, blob)
        return
    stacked = unpack_block(dtype, shape, count, blob)
    for step, array in zip(unpack_steps(first, last, count, steps).tolist(), stacked, strict=True):
        yield step, array.copy()


@dataclass
class _Waiting:
    """What of a series is not in blocks.

    Attributes:
        rows: Number of rows since there were enough for a block.
        seen: The last step that was looked at.
        blocks_end: The last step in a block.
    """

    rows: int = 0
    seen: int = BEFORE_ALL
    blocks_end: int = BEFORE_ALL


class ArrayWriter:
    """Writes arrays, and makes blocks of them, in the transaction that is open.

    Args:
        connection: To the run file.
        retention: How many of the last arrays of a series all stay, see `superfluous`; None for all.
    """

    def __init__(self, connection: sqlite3.Connection, retention: int | None = None) -> None:
        self._connection = connection
        self._retention = retention
        self._spoilt: set[int] = set()  # series with damaged rows, which stay as they are
        self._waiting: dict[int, _Waiting] = {}
        self._full: dict[int, int] = {}  # series that have enough rows, and up to which step
        self._look()

    def insert(self, series: int, step: int, array: PackedArray) -> None:
        """Enter the array of a step, in the place of one that is there."""
        waiting = self._waiting.setdefault(series, _Waiting())
        if step <= waiting.blocks_end:
            self._dissolve("series = ? AND first <= ? AND last >= ?", (series, step, step))
        self._insert(series, step, array)
        size, enough = len(array.data), _most(len(array.data))
        if self._retention is not None:
            enough = max(enough, ROUND)
        elif size > LARGEST:
            return
        waiting.rows += 1
        if waiting.rows >= enough:
            waiting.rows = 0
            self._full[series] = max(step, self._full.get(series, step))

    def pack_some(self) -> None:
        """Make blocks for a few of the series that have enough rows.

        All series of a model fill at the same step, and hundreds of blocks at once would keep what is
        recorded meanwhile from being committed.
        """
        for series in list(self._full)[: 1 + len(self._full) // 64]:
            self._tidy(series, self._waiting[series].seen, self._full.pop(series))

    def rewind(self, step: int) -> None:
        """Drop the arrays of later steps."""
        self._dissolve("first <= ? AND last > ?", (step, step))
        self._connection.execute("DELETE FROM blocks WHERE first > ?", (step,))
        self._connection.execute("DELETE FROM arrays WHERE step > ?", (step,))
        self._look()

    def finish(self) -> None:
        """Make blocks of all that is still single."""
        for series in self._waiting:
            self._tidy(series, BEFORE_ALL, AFTER_ALL)

    def _look(self) -> None:
        """See what is there already."""
        execute = self._connection.execute
        self._full = {}
        self._waiting = {
            series: _Waiting(rows)
            for series, rows in execute("SELECT series, count(*) FROM arrays GROUP BY series")
        }
        for series, end in execute("SELECT series, max(last) FROM blocks GROUP BY series"):
            self._waiting.setdefault(series, _Waiting()).blocks_end = end

    def _insert(self, series: int, step: int, array: PackedArray) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO arrays VALUES(?, ?, ?, ?, ?)",
            (series, step, array.dtype, json.dumps(array.shape), compress(array.data)),
        )

    def _tidy(self, series: int, after: int, until: int) -> None:
        """Make blocks of rows with `after` < step <= `until`, and let go of what is not to be kept."""
        if series in self._spoilt:
            return
        try:
            self._pack(series, after, until)
            if self._retention is not None:
                self._thin(series, until, self._retention)
        except ValueError:  # damage to what is there must not keep new rows from being written
            self._spoilt.add(series)

    def _thin(self, series: int, until: int, keep: int) -> None:
        """Drop older arrays of a series, and join the blocks that have become small.

        A block is written anew when half of it goes, so that an array is moved a few times in its life.
        """
        execute, waiting = self._connection.execute, self._waiting[series]
        rows = waiting.rows
        single = execute("SELECT step FROM arrays WHERE series = ?", (series,)).fetchall()
        query = (
            "SELECT first, last, count, steps, dtype, shape FROM blocks WHERE series = ? ORDER BY 1"
        )
        blocks = [
            (unpack_steps(*block[:4]).tolist(), _most(_size(*block[4:])))
            for block in execute(query, (series,)).fetchall()
        ]
        packed = [step for steps, _ in blocks for step in steps]
        gone = set(superfluous(sorted([step for (step,) in single] + packed), keep))
        if not gone:
            return
        for steps, most in blocks:
            going = len(gone.intersection(steps))
            if 2 * going >= len(steps) or 4 * len(steps) <= most:
                self._dissolve("series = ? AND first = ?", (series, steps[0]))
            else:
                gone.difference_update(steps)
        delete = "DELETE FROM arrays WHERE series = ? AND step = ?"
        self._connection.executemany(delete, [(series, step) for step in gone])
        self._pack(series, BEFORE_ALL, until)
        waiting.rows = rows

    def _dissolve(self, which: str, values: tuple[int, ...]) -> None:
        """Make single rows of blocks again, whose place others are to take."""
        for row in self._connection.execute(f"{BLOCKS} WHERE {which}", values).fetchall():
            series, first = row[:2]
            of_block = "DELETE FROM blocks WHERE series = ? AND first = ?"
            self._connection.execute(of_block, (series, first))
            waiting = self._waiting[series]
            waiting.seen = min(waiting.seen, first - 1)
            for step, array in arrays_of(row):
                self._insert(series, step, pack(array))
                waiting.rows += 1

    def _pack(self, series: int, after: int, until: int) -> None:
        """Make blocks of the rows with `after` < step <= `until`, as far as they are alike."""
        query = (
            "SELECT step, dtype, shape FROM arrays WHERE series = ? AND step > ? AND step <= ? "
            "ORDER BY step LIMIT ?"
        )
        execute, waiting = self._connection.execute, self._waiting[series]
        while rows := execute(query, (series, after, until, BLOCK_STEPS)).fetchall():
            for (dtype, shape), alike in groupby(rows, lambda row: row[1:]):
                self._pack_alike(series, dtype, shape, [step for step, *_ in alike])
            after = rows[-1][0]
        waiting.seen = max(waiting.seen, after)

    def _pack_alike(self, series: int, dtype: str, shape: str, steps: Sequence[int]) -> None:
        """Make blocks of rows that follow each other and have one dtype and shape."""
        size = _size(dtype, shape)
        if size > LARGEST:
            return
        between = "SELECT first FROM blocks WHERE series = ? AND first BETWEEN ? AND ?"
        values = (series, steps[0], steps[-1])
        later = sorted(first for (first,) in self._connection.execute(between, values))
        for _, between_blocks in groupby(steps, lambda step: bisect(later, step)):
            run, most = list(between_blocks), _most(size)
            for begin in range(0, len(run), most):
                if len(piece := run[begin : begin + most]) > 1:
                    self._write_block(series, dtype, shape, piece)

    def _write_block(self, series: int, dtype: str, shape: str, steps: Sequence[int]) -> None:
        execute, first, last = self._connection.execute, steps[0], steps[-1]
        of_series = "WHERE series = ? AND step BETWEEN ? AND ?"
        rows = execute(f"{SINGLE} {of_series} ORDER BY step", (series, first, last))
        blob = pack_block([array for row in rows for _, array in arrays_of(row)])
        execute(
            "INSERT INTO blocks VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
            (series, first, last, dtype, shape, len(steps), pack_steps(steps), blob),
        )
        execute(f"DELETE FROM arrays {of_series}", (series, first, last))
        self._waiting[series].blocks_end = max(self._waiting[series].blocks_end, last)


def _size(dtype: str, shape: str) -> int:
    """Return the bytes of an array before compression."""
    return math.prod(sizes_of(dtype, shape)) * DTYPES[dtype].itemsize


def _most(size: int) -> int:
    """Return how many arrays of so many bytes make a block."""
    return min(BLOCK_STEPS, BLOCK_BYTES // max(size, 1))
