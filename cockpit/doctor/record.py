"""What a run has recorded so far, as the rules read it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cockpit.findings import Finding
from cockpit.log import Event, ParameterInfo, Row, open_file

HEAD, TAIL = 64, 512
"""First and last values that are kept at least of each series of a run that is watched."""

FLAGS = 64
"""Arrays by sample that are kept of each series."""

BY_SAMPLE = ("by_sample", "doubtful", "suspected", "sample_ids")
"""Keys of the arrays that rules look at: which samples, and what they are called."""

Key = tuple[str, str, str]  # quantity, key, parameter or module


class Curve(NamedTuple):
    """One series of numbers: steps (int64, growing) and values (float64), `[n]` each."""

    steps: np.ndarray
    values: np.ndarray


class _Kept:
    """The values of one series: all, or the first and the last ones."""

    def __init__(self, bounded: bool) -> None:
        self._bounded, self._count = bounded, 0
        self._steps, self._values = np.zeros(8, np.int64), np.zeros(8)

    @classmethod
    def of(cls, steps: np.ndarray, values: np.ndarray) -> _Kept:
        """Keep a series as a whole."""
        kept = cls(bounded=False)
        kept._steps, kept._values, kept._count = steps, values, len(steps)
        return kept

    def add(self, step: int, value: float) -> None:
        """Take a value, in the place of one of the same step."""
        if self._count and self._steps[self._count - 1] == step:
            self._count -= 1
        elif self._count == len(self._steps):
            self._make_room()
        self._steps[self._count], self._values[self._count] = step, value
        self._count += 1

    def _make_room(self) -> None:
        if self._bounded and self._count >= HEAD + 2 * TAIL:
            for column in (self._steps, self._values):
                column[HEAD : HEAD + TAIL] = column[self._count - TAIL : self._count].copy()
            self._count = HEAD + TAIL
            return
        size = 2 * len(self._steps)
        if self._bounded:
            size = min(size, HEAD + 2 * TAIL)
        self._steps, self._values = np.resize(self._steps, size), np.resize(self._values, size)

    def curve(self) -> Curve:
        """Return them, without a copy: good until the next value comes."""
        return Curve(self._steps[: self._count], self._values[: self._count])


class Record:
    """The numbers of a run by quantity, key and part, its events, and what is known of it.

    Of a run that is being watched, it takes each row as it is written, and keeps the first and the
    last ones: what it costs does not grow with the run.

    Args:
        settings: What was stored about the run when it began.
        parameters: The model's parameters.
        bounded: Whether to keep no more than the first and the last values.
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        parameters: Sequence[ParameterInfo] = (),
        *,
        bounded: bool = False,
    ) -> None:
        self.settings, self.parameters = dict(settings or {}), list(parameters)
        self.events: list[Event] = []
        self.findings: list[Finding] = []
        self.tracked = 0
        """Number of steps that were tracked."""
        self._last = -1
        self._bounded = bounded
        self._numbers: dict[tuple[str, str], dict[str, _Kept]] = {}  # by quantity and key, part
        self._flags: dict[Key, deque[tuple[int, np.ndarray]]] = {}

    @classmethod
    def of_file(cls, path: str | os.PathLike[str]) -> Record:
        """Read a run file, also while another process writes it.

        Raises:
            NotARunFile: There is no such file, or it is no run file.
        """
        file = open_file(path)
        try:
            record = cls(file.settings, file.parameters)
            record.events, record.findings = file.events(), file.findings()
            record.tracked = len(file.steps()[0])
            for one in file.series():
                key = one.quantity, one.key, one.parameter
                if one.kind == "scalar":
                    _, steps, values = file.scalars(one.id)
                    record._column(key, steps, values)
                elif one.detail and one.key in BY_SAMPLE:
                    for _, step, array in file.arrays(one.id):
                        record._array(key, step, array)
        finally:
            file.close()
        return record

    def add(self, step: int, rows: Iterable[Row], *, tracked: bool = True) -> None:
        """Take the rows of a step, as they go to the run file."""
        if tracked and step > self._last:
            self._last, self.tracked = step, self.tracked + 1
        for row in rows:
            key = row.quantity, row.key, row.parameter
            if isinstance(row.value, np.ndarray):
                self._array(key, step, row.value)
            else:
                self._number(key, step, float(row.value))

    def _number(self, key: Key, step: int, value: float) -> None:
        quantity, name, part = key
        parts = self._numbers.setdefault((quantity, name), {})
        if part not in parts:
            parts[part] = _Kept(self._bounded)
        parts[part].add(step, value)

    def _column(self, key: Key, steps: np.ndarray, values: np.ndarray) -> None:
        """Take a whole series; of two with one name, a quantity's and a metric's, the first one counts."""
        quantity, name, part = key
        parts = self._numbers.setdefault((quantity, name), {})
        if part not in parts:
            parts[part] = _Kept.of(steps, values)

    def _array(self, key: Key, step: int, value: np.ndarray) -> None:
        if key[1] in BY_SAMPLE and value.ndim == 1:
            self._flags.setdefault(key, deque(maxlen=FLAGS)).append((step, value))

    # -- what rules read --------------------------------------------------------------------------

    def curve(self, quantity: str, key: str = "", part: str = "") -> Curve | None:
        """Return one series; None where there is none."""
        kept = self._numbers.get((quantity, key), {}).get(part)
        return None if kept is None else kept.curve()

    def curves(self, quantity: str, key: str = "") -> dict[str, Curve]:
        """Return the series of a quantity by parameter or module, in the order of appearance."""
        parts = self._numbers.get((quantity, key), {})
        return {part: kept.curve() for part, kept in parts.items() if part}

    def has(self, quantity: str) -> bool:
        """Whether there is any number of a quantity."""
        return any(name == quantity for name, _ in self._numbers)

    def flags(self, quantity: str, key: str, step: int) -> np.ndarray | None:
        """Return an array by sample of a step, `[n]`, if it is still known."""
        found = dict(self._flags.get((quantity, key, ""), ()))
        return found.get(step)

    def flagged(self, quantity: str, key: str) -> list[int]:
        """Return the steps of which an array by sample is still known."""
        return [step for step, _ in self._flags.get((quantity, key, ""), ())]
