"""Apache Parquet of one table; needs the extra ``torch-cockpit[parquet]``."""

from __future__ import annotations

import json
from typing import BinaryIO

import pandas as pd

from cockpit.errors import Unsupported
from cockpit.export.format import Format, Told, frame_of, with_lists
from cockpit.run import Run

__all__ = ["FORMAT"]


def _write(run: Run, stream: BinaryIO, table: str, told: Told) -> None:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise Unsupported(
            "Parquet needs pyarrow. Install it with: pip install 'torch-cockpit[parquet]'"
        ) from error
    told(0, 1)
    frame = _flat(frame_of(run, table), table)
    lists = {"shape": pa.list_(pa.int64()), "value": pa.list_(pa.float64())}
    columns = {
        name: pa.array(frame[name], lists[name] if table == "arrays" and name in lists else None)
        for name in frame
    }
    parquet.write_table(pa.table(columns), stream, compression="zstd")
    told(1, 1)


def _flat(frame: pd.DataFrame, table: str) -> pd.DataFrame:
    """Return a frame of what Parquet has types for."""
    if table == "arrays":
        return with_lists(frame)
    if table == "findings":  # evidence has other names in each, which no type of a column has
        return frame.assign(
            subjects=[json.dumps(list(one)) for one in frame["subjects"]],
            evidence=[json.dumps(dict(one)) for one in frame["evidence"]],
        )
    return frame


FORMAT = Format("parquet", "one table in columns, compressed", ".parquet", "table", _write)
