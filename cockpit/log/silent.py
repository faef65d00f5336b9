"""Stands in for the run file on the processes that write none."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cockpit.findings import Finding
from cockpit.log.schema import Row


class SilentWriter:
    """Takes what a `RunWriter` takes, and writes nothing: of several processes one writes the run file.

    Args:
        path: The run file that the other process writes; None where that is a temporary one.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.path = Path(path or os.devnull).expanduser().absolute()

    def record(self, step: int, rows: Sequence[Row], *, tracked: bool = True) -> None:
        """Drop the rows of a step."""

    def note(self, step: int | None, kind: str, subject: str, message: str) -> None:
        """Drop an event."""

    def finding(self, finding: Finding) -> None:
        """Drop a finding."""

    def mark(self) -> dict[str, Any]:
        """Return nothing: the process that writes knows how far the run file has come."""
        return {}

    def rewind(self, step: int, mark: Mapping[str, Any]) -> bool:
        """Leave the run file alone."""
        return True

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
