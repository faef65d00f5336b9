"""The formats, and writing one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from cockpit.errors import InvalidArgument
from cockpit.export.csv import FORMAT as CSV
from cockpit.export.format import TABLES, Format, Told
from cockpit.export.json_v1 import FORMAT as JSON_V1
from cockpit.export.parquet import FORMAT as PARQUET
from cockpit.export.tensorboard import FORMAT as TENSORBOARD
from cockpit.replacing import replace_file
from cockpit.run import Run

__all__ = ["FORMATS", "export"]

FORMATS: dict[str, Format] = {one.name: one for one in (CSV, PARQUET, JSON_V1, TENSORBOARD)}
"""The formats by name."""


def export(
    run: Run,
    kind: str,
    target: str | os.PathLike[str] | BinaryIO,
    *,
    table: str = "scalars",
    on_progress: Told = lambda done, total: None,
) -> None:
    """Write a run in the format of another program.

    A file that is there is replaced in one go, once the new one is complete; a run file never is.

    Args:
        run: The run.
        kind: One of `FORMATS`.
        target: The path of the file or folder, which is made if need be; or a stream of bytes.
        table: Which of `TABLES`, for the formats that hold one.
        on_progress: Told how much is done, of how much, now and then.

    Raises:
        InvalidArgument: There is no such format or table, or nothing can be written at `target`.
        Unsupported: What the format needs is not installed.
    """
    if kind not in FORMATS:
        raise InvalidArgument(f"format must be one of {', '.join(FORMATS)}, got {kind!r}.")
    if table not in TABLES:
        raise InvalidArgument(f"table must be one of {', '.join(TABLES)}, got {table!r}.")
    write = FORMATS[kind]
    if not isinstance(target, str | os.PathLike):
        if write.holds == "folder":
            raise InvalidArgument(f"{kind} is a folder of files. Give a path, not a stream.")
        write(run, target, table, on_progress)
    elif write.holds == "folder":
        write(run, Path(target).expanduser(), table, on_progress)
    else:
        path = Path(target).expanduser()
        replace_file(path, lambda stream: write(run, stream, table, on_progress))
