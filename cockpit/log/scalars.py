"""The numbers of a run file: single rows at first, blocks of many steps as soon as there are enough.

A number is first a row of its own in ``scalars``: readable at once, and safe whatever happens to the
process. When a series has enough of them they become one row of ``scalar_blocks``, which takes a third
of the bytes and a twentieth of the time to read.

The blocks of a series do not overlap. A number that is recorded late or once more is a single row until
the next time that its series is packed, and may so lie within a block. Where a block has a number for
the same step, the single row counts.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from cockpit.log.blocks import (
    MAX_BLOCK_BYTES,
    pack_elements,
    pack_steps,
    unpack_block,
    unpack_steps,
)
from cockpit.log.untrusted import Connection

SCALARS_IN_BLOCK = 2048
"""Numbers in a block, at most, and single rows of a series before they become one."""

FEWEST = 64
"""Rows that are left as they are at the end: fewer take no less room or time in a block."""

WORTH = 0.75
"""Blocks are compressed to less than this share or not at all: noise hardly shrinks and reads slowly."""

MAX_NUMBERS = 2**27
"""Numbers that are read at once, of 24 bytes each; blocks of equal ones are a thousandth of that."""

Numbers = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Ids of series (int64), steps (int64) and values (float64)."""

ROW = np.dtype([("series", np.int64), ("step", np.int64), ("value", np.float64)])

SINGLE = "SELECT series, step, value FROM scalars"
BLOCKS = "SELECT series, first, last, dtype, count, steps, blob FROM scalar_blocks"


# -- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScalarReader:
    """Reads numbers, always ordered by series and step.

    All methods raise a ValueError where a block is not one that this module could have written.

    Attributes:
        connection: To the run file, within a transaction.
        blocks: Whether there is a table of blocks.
    """

    connection: Connection
    blocks: bool

    def all(self) -> Numbers:
        """Return the numbers of all series."""
        return self._read("true", "true", {})

    def of_series(self, series: int, start: int | None = None) -> Numbers:
        """Return the numbers of a series, all or only those of the steps from `start` on."""
        if start is None:
            return self._read("series = :series", "series = :series", {"series": series})
        found = self._read(
            "series = :series AND first >= :first",
            "series = :series AND step >= :start",
            {
                "series": series,
                "start": start,
                "first": min([start, *self._beginnings(series, [start])]),
            },
        )
        return _only(found, found[1] >= start)

    def at_steps(self, series: int, steps: Iterable[int]) -> Numbers:
        """Return the numbers of a series at some steps."""
        wanted = sorted(set(map(int, steps)))
        found = self._read(
            "series = :series AND first IN (SELECT value FROM json_each(:beginnings))",
            "series = :series AND step IN (SELECT value FROM json_each(:wanted))",
            {
                "series": series,
                "wanted": json.dumps(wanted),
                "beginnings": json.dumps(self._beginnings(series, wanted)),
            },
        )
        _, found_steps, _ = found
        if not len(found_steps):
            return found
        places = np.minimum(np.searchsorted(found_steps, wanted), len(found_steps) - 1)
        return _only(found, places[found_steps[places] == wanted])

    def _beginnings(self, series: int, steps: Sequence[int]) -> list[int]:
        """Return the first steps of the blocks that can have some of these steps."""
        firsts = _firsts(self.connection, series) if self.blocks else []
        places = np.unique(np.searchsorted(firsts, steps, side="right")).tolist()
        return [firsts[place - 1] for place in places if place]

    def _read(self, which_blocks: str, which_single: str, values: dict[str, Any]) -> Numbers:
        execute, found, read = self.connection.execute, [], 0
        if self.blocks:
            query = f"{BLOCKS} WHERE {which_blocks} ORDER BY series, first"
            for block in self.connection.rows(query, values, longest=MAX_BLOCK_BYTES):
                found.append(_unpacked(block))
                read += len(found[-1][0])
                if read > MAX_NUMBERS:
                    raise ValueError(f"it claims more than {MAX_NUMBERS} numbers for one reading")
        query = f"{SINGLE} WHERE {which_single} ORDER BY series, step"
        rows = np.fromiter(execute(query, values), ROW)  # None, SQLite's NaN, becomes NaN
        return _merged([*found, (rows["series"], rows["step"], rows["value"])])


def _firsts(connection: sqlite3.Connection, series: int) -> list[int]:
    """Return the first steps of the blocks of a series, in order."""
    query = "SELECT first FROM scalar_blocks WHERE series = ? ORDER BY first"
    return [first for (first,) in connection.execute(query, (series,))]


def _unpacked(block: Sequence[Any]) -> Numbers:
    """Return what a row of `BLOCKS` holds."""
    series, first, last, dtype, count, steps, blob = block
    if dtype not in ("float32", "float64") or type(series) is not int:
        raise ValueError(f"a block of numbers has dtype {dtype!r} and series {series!r}")
    values = unpack_block(dtype, "[]", count, blob).astype(np.float64)
    return np.full(count, series, np.int64), unpack_steps(first, last, count, steps), values


def _packed(values: np.ndarray) -> tuple[str, bytes]:
    """Return dtype and bytes: 32 bits each where no more are needed, as for most of what torch computes."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    exact = np.array_equal(single.astype(np.float64).view(np.int64), values.view(np.int64))
    narrow = single if exact else values
    return narrow.dtype.name, pack_elements(narrow[np.newaxis], worth=WORTH)


def _merged(parts: Sequence[Numbers]) -> Numbers:
    """Return all parts, each in order, as one in order; of two numbers for a step, the later part's."""
    ids, steps, values = map(np.concatenate, zip(*parts, strict=True))
    if _follow(parts):
        return ids, steps, values
    order = np.lexsort((steps, ids))  # which keeps the order of equal ones
    ids, steps, values = ids[order], steps[order], values[order]
    latest = np.append((ids[1:] != ids[:-1]) | (steps[1:] != steps[:-1]), True)
    return _only((ids, steps, values), latest)


def _follow(parts: Sequence[Numbers]) -> bool:
    """Return whether each part begins after the end of the one before."""
    ends = [((ids[0], steps[0]), (ids[-1], steps[-1])) for ids, steps, _ in parts if len(ids)]
    return all(end < begin for (_, end), (begin, _) in pairwise(ends))


def _only(numbers: Numbers, wanted: np.ndarray) -> Numbers:
    ids, steps, values = numbers
    return ids[wanted], steps[wanted], values[wanted]


# -- writing --------------------------------------------------------------------------------------


class ScalarWriter:
    """Writes numbers, and makes blocks of them, in the transaction that is open.

    Args:
        connection: To the run file.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._single: dict[int, int] = {}  # rows of a series that are not in blocks, at most
        self._full: list[int] = []  # series that have enough of them
        self._spoilt: set[int] = set()  # series with damaged blocks, which stay as they are
        self._look()

    def insert(self, rows: Sequence[tuple[int, int, float]]) -> None:
        """Enter rows of series, step and value, in the place of those that are there."""
        self._connection.executemany("INSERT OR REPLACE INTO scalars VALUES(?, ?, ?)", rows)
        for series, _, _ in rows:
            self._single[series] = count = self._single.get(series, 0) + 1
            if count == SCALARS_IN_BLOCK:
                self._full.append(series)

    def pack_some(self) -> None:
        """Make blocks for a few of the series that have enough rows.

        All series of a model fill at the same step, and hundreds of blocks at once would keep what is
        recorded meanwhile from being committed.
        """
        some = 1 + len(self._full) // 64
        now, self._full = self._full[:some], self._full[some:]
        for series in now:
            self._try_to_pack(series)

    def rewind(self, step: int) -> None:
        """Drop the numbers of later steps."""
        execute = self._connection.execute
        cut = execute(f"{BLOCKS} WHERE first <= ? AND last > ?", (step, step)).fetchall()
        for block in cut:
            _, steps, values = _unpacked(block)
            self._write(block[0], steps[steps <= step], values[steps <= step])
        execute("DELETE FROM scalar_blocks WHERE first > ?", (step,))
        execute("DELETE FROM scalars WHERE step > ?", (step,))
        self._look()

    def finish(self) -> None:
        """Make blocks of all that is still single, where that is worth it."""
        for series in self._single:
            while self._single[series] >= FEWEST and series not in self._spoilt:
                self._try_to_pack(series)

    def _look(self) -> None:
        """See what is there already."""
        query = "SELECT series, count(*) FROM scalars GROUP BY series"
        self._single = dict(self._connection.execute(query))
        self._full = [one for one, count in self._single.items() if count >= SCALARS_IN_BLOCK]

    def _try_to_pack(self, series: int) -> None:
        if series in self._spoilt:
            return
        try:
            self._pack(series)
        except ValueError:  # damage to what is there must not keep new rows from being written
            self._spoilt.add(series)

    def _pack(self, series: int) -> None:
        """Put the first single rows of a series into blocks, as many as fill one."""
        execute, most = self._connection.execute, SCALARS_IN_BLOCK
        query = f"{SINGLE} WHERE series = ? ORDER BY step LIMIT ?"
        rows = np.fromiter(execute(query, (series, most)), ROW)
        if len(rows):
            self._put(series, rows["step"], rows["value"])
            last = int(rows["step"][-1])
            execute("DELETE FROM scalars WHERE series = ? AND step <= ?", (series, last))
        self._single[series] = self._single[series] - most if len(rows) == most else 0
        if self._single[series] >= most:
            self._full.append(series)

    def _put(self, series: int, steps: np.ndarray, values: np.ndarray) -> None:
        """Put numbers into the blocks between whose beginnings they lie, or into new ones."""
        firsts = _firsts(self._connection, series)
        places = np.searchsorted(firsts, steps, side="right")
        for place in np.unique(places):
            own = places == place
            part = np.full(own.sum(), series), steps[own], values[own]
            if place:
                part = self._with_block(part, firsts[place - 1])
            _, all_steps, all_values = part
            for begin in range(0, len(all_steps), SCALARS_IN_BLOCK):
                piece = slice(begin, begin + SCALARS_IN_BLOCK)
                self._write(series, all_steps[piece], all_values[piece])

    def _with_block(self, numbers: Numbers, first: int) -> Numbers:
        """Return numbers and those of a block; alone if they come after it and it is full."""
        where = (int(numbers[0][0]), first)
        query = f"{BLOCKS} WHERE series = ? AND first = ?"
        block = self._connection.execute(query, where).fetchone()
        _, _, last, _, count, *_ = block
        if count >= SCALARS_IN_BLOCK and numbers[1][0] > last:
            return numbers
        return _merged([_unpacked(block), numbers])

    def _write(self, series: int, steps: np.ndarray, values: np.ndarray) -> None:
        """Write a block, in the place of one that begins at the same step."""
        dtype, blob = _packed(values)
        self._connection.execute(
            "INSERT OR REPLACE INTO scalar_blocks VALUES(?, ?, ?, ?, ?, ?, ?)",
            (series, int(steps[0]), int(steps[-1]), dtype, len(steps), pack_steps(steps), blob),
        )
