"""What makes a format of export, and the tables that those of rows and columns can hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import numpy as np
import pandas as pd

from cockpit.run import Run

__all__ = ["TABLES", "Format", "Told", "frame_of", "with_lists"]

Told: TypeAlias = Callable[[int, int], None]
"""Is told how much is done, of how much."""

TABLES = ("scalars", "wide", "arrays", "events", "findings")
"""What a run has as tables: see the methods of `cockpit.run.Run` by these names."""


@dataclass(frozen=True)
class Format:
    """A format that a run can be written in.

    Args:
        name: What it is called.
        what: What is in it, in a few words.
        ending: What names of its files end in; of a folder, its own.
        holds: ``"table"`` for one of `TABLES`, of one's choice; ``"run"`` for a run as a whole, in
            one file; ``"folder"`` for the same in a folder.
        write: Writes a run: to a stream of bytes, or into the folder at a path.
    """

    name: str
    what: str
    ending: str
    holds: Literal["table", "run", "folder"]
    write: Callable[[Run, Any, str, Told], None]

    def __call__(self, run: Run, target: BinaryIO | Path, table: str, told: Told) -> None:
        """Write a run."""
        self.write(run, target, table, told)


def frame_of(run: Run, table: str) -> pd.DataFrame:
    """Return one of `TABLES`; that of all numbers side by side has the steps as a column."""
    frame: pd.DataFrame = getattr(run, table)()
    return frame.reset_index() if table == "wide" else frame


def with_lists(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame of `Run.arrays` with plain lists in the place of the arrays.

    Returns:
        The frame with ``dtype``, ``shape`` and ``value``: the elements in one list, the last
        dimension first. Complex numbers take two elements each, the real and the imaginary part.
    """
    arrays = [np.asarray(value) for value in frame["value"]]
    return frame.drop(columns="value").assign(
        dtype=pd.Series([array.dtype.name for array in arrays], index=frame.index, dtype="str"),
        shape=_objects([list(array.shape) for array in arrays], frame.index),
        value=_objects([_elements(array) for array in arrays], frame.index),
    )


def _objects(values: list[Any], index: pd.Index) -> pd.Series:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return pd.Series(column, index=index)


def _elements(array: np.ndarray) -> list[float]:
    if np.iscomplexobj(array):
        array = np.stack([array.real, array.imag], axis=-1)
    elements: list[float] = array.astype(np.float64).ravel().tolist()
    return elements
