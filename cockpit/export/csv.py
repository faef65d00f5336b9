"""Comma-separated values of one table."""

from __future__ import annotations

import json
from typing import Any, BinaryIO

import pandas as pd

from cockpit.export.format import Format, Told, frame_of, with_lists
from cockpit.run import Run

__all__ = ["FORMAT"]

ROWS = 50_000
"""How many rows are turned into text at a time."""


def _write(run: Run, stream: BinaryIO, table: str, told: Told) -> None:
    frame = _flat(frame_of(run, table), table)
    for start in range(0, max(1, len(frame)), ROWS):
        part = frame.iloc[start : start + ROWS]
        # The end of a line is set: on some systems pandas would write its own into ours.
        text = part.to_csv(index=False, header=not start, na_rep="nan", lineterminator="\n")
        stream.write(text.encode())
        told(min(start + ROWS, len(frame)), len(frame))


def _flat(frame: pd.DataFrame, table: str) -> pd.DataFrame:
    """Return a frame in which lists and dictionaries are JSON, since a cell is a text."""
    if table == "arrays":
        frame = with_lists(frame)
        return frame.assign(**{name: frame[name].map(json.dumps) for name in ("shape", "value")})
    if table == "events":  # an event of no step has none, rather than one that is not a number
        return frame.assign(step=[_text(step) for step in frame["step"]])
    if table == "findings":
        return frame.assign(
            subjects=[json.dumps(list(one)) for one in frame["subjects"]],
            evidence=[json.dumps(dict(one)) for one in frame["evidence"]],
        )
    return frame


def _text(value: Any) -> str:
    return "" if pd.isna(value) else str(value)


FORMAT = Format("csv", "one table as text", ".csv", "table", _write)
