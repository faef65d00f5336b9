"""Writing a run file from a thread: training neither waits for the disk nor fails with it."""

from __future__ import annotations

import json
import operator
import os
import sqlite3
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cockpit.errors import CockpitError, InvalidArgument, InvalidType, NotARunFile, warn
from cockpit.findings import Finding
from cockpit.log.opening import Opening, is_hopeless
from cockpit.log.reader import RunFile
from cockpit.log.schema import Batch, ParameterInfo, Point, Row
from cockpit.log.worker import Worker, older_kept


class RunWriter:
    """Writes one run file.

    What is handed over is committed by a thread within about half a second, one step's rows always
    together. Data are complete after `close`, and also when the interpreter exits or the writer is
    garbage-collected without it; ``kill -9`` costs the last half second.

    Whatever goes wrong there never reaches the training. Where the file cannot be written (the disk is full,
    the folder is read-only or gone, another program has locked it), what is recorded waits in memory, at most
    64 MiB of it, and the file goes on as soon as it can be written again. That is reported once, as a
    `CockpitWarning`; how long it took, and what was lost, if anything, is an event in the file. A file that
    was deleted or moved away is written anew, with all that was in it.

    Args:
        path: The run file; folders are created. An older run file there is kept under the first
            free name ``stem-1.db``, ``stem-2.db``, ... ``None`` writes to a temporary folder that
            goes when the writer does.
        settings: What to store about the run; what JSON does not know is stored as its `repr`.
        parameters: The model's parameters, in its order.
        resume: Continue the run file at `path` if there is one. Values of a step that it already
            has are replaced.
        retention: How many of the last arrays of each series all stay; of older ones ever fewer do,
            see `cockpit.log.retention.superfluous`. Numbers all stay. None keeps all arrays, too.

    Raises:
        InvalidArgument: `path` can be none of a run file, or the run to resume has parameters of
            other shapes.
        NotARunFile: The file at `path` is no run file; it is left alone.
        RunFileInUse: A process of this machine that is still alive writes to the file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        settings: Mapping[str, Any] | None = None,
        parameters: Sequence[ParameterInfo] = (),
        resume: bool = False,
        retention: int | None = None,
    ) -> None:
        folder = tempfile.mkdtemp(prefix="cockpit-") if path is None else None
        where = Path(folder, "run.db") if folder else Path(path or "").expanduser().absolute()
        opening = Opening(where, settings, tuple(parameters), resume, retention)
        tables = kept = problem = None
        try:
            tables, kept = opening.first()
        except CockpitError:
            raise
        except (OSError, sqlite3.Error, ValueError) as error:
            if is_hopeless(error):
                raise InvalidArgument(
                    f"no run file can be written at {where}: {error}. "
                    "Give the path of a file, in a folder that may be written to."
                ) from error
            problem = error
        self._worker = Worker(opening, tables, problem)
        weakref.finalize(self, self._worker.end_for_good, folder)
        if kept is not None:
            self._hand_over(older_kept(where, kept))
        self._warn()

    @property
    def path(self) -> Path:
        """The run file's absolute path; another one in the folder if its place was taken by another run."""
        return self._worker.opening.path

    def record(self, step: int, rows: Sequence[Row], *, tracked: bool = True) -> None:
        """Hand over the rows of a step and return at once; arrays are copied.

        Args:
            step: The global step.
            rows: Its values; they replace those recorded before for the same series and step.
            tracked: Whether to enter the step, with the time, into the table of tracked steps.

        Raises:
            InvalidType: A value is no number and no array of numbers.
        """
        batch = Batch(_step_number(step))
        if tracked:
            batch.times = time.time(), time.monotonic()
        for row in rows:
            batch.add(row)
        self._hand_over(batch)

    def note(self, step: int | None, kind: str, subject: str, message: str) -> None:
        """Record an event, such as ``note(7, "not-checked", "Alpha", "the fit is singular")``."""
        batch = Batch(None if step is None else _step_number(step))
        batch.note(kind, subject, message)
        self._hand_over(batch)

    def finding(self, finding: Finding) -> None:
        """Record something that is wrong with the training."""
        batch = Batch(finding.step)
        batch.findings.append((finding.step, json.dumps(finding.record())))
        self._hand_over(batch)

    def mark(self) -> dict[str, Any]:
        """Return which run this is and how far it has come; what was recorded is committed by then.

        While the file cannot be written, it is how far it had come before.
        """
        self.flush()
        return dict(self._worker.mark)

    def rewind(self, step: int, mark: Mapping[str, Any]) -> bool:
        """Drop what a resumed run will record again: all that came after a `mark` was taken.

        Args:
            step: The last step before the mark.
            mark: The mark.

        Returns:
            Whether the file is that of the run in which the mark was taken. If not, it is left alone.
        """
        created = self._worker.mark["created"]
        if created is None:  # it cannot be written so far
            with suppress(NotARunFile), RunFile(self.path) as file:
                created = file.created
        if created is None or created != mark.get("created"):
            return False
        findings = mark.get("findings", 0)  # marks of releases without findings do not say
        self._hand_over(Batch(None, rewind=Point(step, mark["events"], findings)))
        return True

    def flush(self) -> None:
        """Wait until all that was handed over is committed, and so readable by other processes."""
        self._worker.flush()
        self._warn()

    def close(self) -> None:
        """Commit everything, mark the run as closed, leave one file; further calls do nothing."""
        self._worker.end()
        self._warn()

    def __getstate__(self) -> Any:
        raise InvalidType(
            f"The writer of {self.path} cannot be sent to another process. Open another run file there, or "
            "record in one process only."
        )

    def __repr__(self) -> str:
        return f"RunWriter({str(self.path)!r})"

    def _hand_over(self, batch: Batch) -> None:
        self._worker.put(batch)
        self._warn()

    def _warn(self) -> None:
        report = self._worker.take_report()
        if report is not None:
            warn(report)


def _step_number(step: Any) -> int:
    try:
        return operator.index(step)
    except TypeError:
        raise InvalidType(f"step is of type {type(step).__name__}. Give an integer.") from None
