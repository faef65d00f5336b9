"""A run file as pandas frames."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pandas as pd

from cockpit.errors import InvalidArgument
from cockpit.log import JsonFile, RunFile, Series, open_file, with_ending

Numbers = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Ids of series, steps and values."""


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run file for reading, also while the training still writes it.

    The JSON of Cockpit 1.0 is read, too. It does not say what the parameters are called; they are
    ``parameter0``, ``parameter1``, ... What cannot be read of it is in the run's events.

    Args:
        path: What was given to ``Cockpit(..., log=path)`` or ``watch.write(path)``.

    Raises:
        NotARunFile: There is no such file, or it is no run file.
    """
    if not Path(path).expanduser().exists() and with_ending(path).exists():
        path = with_ending(path)
    return Run(path)


class Run:
    """What was recorded in a run, as numpy arrays and pandas frames.

    Data are read when they are first asked for and then kept; `reload` lets go of them, to see what
    has been written since. In between, the file is not held open.

    The *part* of a value tells the several values of a quantity apart: the key, such as
    ``"noise_scale"``, the name of a parameter, such as ``"fc1.weight"``, or both,
    ``"hist/fc1.weight"``. It is ``""`` for the value itself.

    Args:
        path: The run file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._kept: dict[Any, Any] = {}
        self._whole: JsonFile | None = None
        self.reload()

    def reload(self) -> None:
        """Forget what was read, so that it is read anew."""
        self.close()
        with self._open() as file:
            self._created = file.created
            self._kept["meta"] = file.settings, file.status, [one.name for one in file.parameters]

    @property
    def settings(self) -> dict[str, Any]:
        """What was stored about the run when it began."""
        return self._meta()[0]

    @property
    def status(self) -> str:
        """Either "running" (which a run that was killed says too) or "closed"."""
        return self._meta()[1]

    @property
    def parameters(self) -> list[str]:
        """Names of the model's parameters, in its order."""
        return self._meta()[2]

    @property
    def steps(self) -> np.ndarray:
        """The tracked steps, int64."""
        return self.times["step"].to_numpy()

    @property
    def times(self) -> pd.DataFrame:
        """The tracked steps, when they were since 1970 and on a clock never set, in seconds.

        The columns are ``step``, ``wall`` and ``monotonic``.
        """
        names = ("step", "wall", "monotonic")
        return self._read(
            "times", lambda file: pd.DataFrame(dict(zip(names, file.steps(), strict=True)))
        )

    @property
    def quantities(self) -> list[str]:
        """Names of the quantities and metrics that have values, in order of appearance."""
        return list(dict.fromkeys(one.quantity for one in self._series().values()))

    def scalars(self, quantity: str | None = None) -> pd.DataFrame:
        """Return the numbers in a tidy frame, sorted by step.

        The columns are ``step``, ``quantity``, ``part`` and ``value``.

        Args:
            quantity: Only those of this quantity.

        Raises:
            InvalidArgument: The run has no such quantity.
        """
        if quantity is None:
            ids, steps, values = self._scalars()
        else:
            columns = [self._numbers(one) for one in self._of(quantity) if one.kind == "scalar"]
            none: Numbers = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
            ids, steps, values = map(np.concatenate, zip(none, *columns, strict=True))
        order = np.lexsort((ids, steps))
        return self._tidy(ids[order].tolist(), steps[order], values[order])

    def arrays(self, quantity: str | None = None, part: str | None = None) -> pd.DataFrame:
        """Return the arrays in a frame as that of `scalars`; each ``value`` is a numpy array.

        Args:
            quantity: Only those of this quantity, which are all that is then read.
            part: Only this part of it.

        Raises:
            InvalidArgument: The run has no such quantity, or the quantity no such part.
        """
        if quantity is None:
            found = self._read("arrays", _all_arrays)
            series = self._series()
            found = [
                row for row in found if row[0] in series and part in (None, _part(series[row[0]]))
            ]
        else:
            chosen = [one for one in self._of(quantity, part) if one.kind == "array"]
            found = [(one.id, *row) for one in chosen for row in self._arrays(one)]
        found.sort(key=lambda row: (row[1], row[0]))
        steps = np.array([row[1] for row in found], dtype=np.int64)
        return self._tidy([row[0] for row in found], steps, _objects(row[2] for row in found))

    def series(self, quantity: str, part: str | None = None) -> pd.Series | pd.DataFrame:
        """Return the values of one quantity over the steps.

        Args:
            quantity: Its name.
            part: Which part of it. Without it, details are left out of a quantity that has anything
                else.

        Returns:
            A series with the steps as index; or, for several parts, a frame with one column per
            part, and NaN where a step has no value.

        Raises:
            InvalidArgument: The run has no such quantity, or the quantity no such part.
        """
        chosen = self._of(quantity, part)
        if part is None:
            chosen = [one for one in chosen if not one.detail] or chosen
        # Of two series with one name, say a quantity's and a metric's, the first one counts.
        columns: dict[str, dict[int, Any]] = {_part(one): {} for one in chosen}
        for one in reversed(chosen):
            columns[_part(one)].update(self._values(one))
        frame_steps = sorted(set().union(*columns.values()))
        index = pd.Index(frame_steps, dtype=np.int64, name="step")
        built = {
            name: pd.Series(
                _column([values.get(step, np.nan) for step in frame_steps]), index=index, name=name
            )
            for name, values in columns.items()
        }
        if len(built) == 1:
            return next(iter(built.values())).rename(quantity)
        return pd.DataFrame(built, index=index)

    def wide(self) -> pd.DataFrame:
        """Return all numbers in one frame: a row per step, a column per quantity and part."""
        ids, steps, values = self._scalars()
        scalars = [one for one in self._series().values() if one.kind == "scalar"]
        columns = {label: place for place, label in enumerate(dict.fromkeys(map(_label, scalars)))}
        index, rows = np.unique(steps, return_inverse=True)
        table = np.full((len(index), len(columns)), np.nan)
        for one in reversed(scalars):  # of two with one name the first one counts, as in `series`
            own = _rows_of(one, ids)
            table[rows[own], columns[_label(one)]] = values[own]
        return pd.DataFrame(table, index=pd.Index(index, name="step"), columns=list(columns))

    def events(self) -> pd.DataFrame:
        """Return what happened: ``step``, ``time`` (UTC), ``kind``, ``subject``, ``message``."""

        def frame(file: RunFile | JsonFile) -> pd.DataFrame:
            events = file.events()
            return pd.DataFrame(
                {
                    "step": pd.array([event.step for event in events], dtype="Int64"),
                    "time": pd.to_datetime([event.wall for event in events], unit="s", utc=True),
                    "kind": pd.Series([event.kind for event in events], dtype="str"),
                    "subject": pd.Series([event.subject for event in events], dtype="str"),
                    "message": pd.Series([event.message for event in events], dtype="str"),
                }
            )

        return self._read("events", frame)

    def plot(self, **kwargs: Any) -> Any:
        """Draw the run with ``CockpitPlotter().plot(run, show_plot=False, **kwargs)``."""
        plotter = importlib.import_module("cockpit.plotter").CockpitPlotter()
        return plotter.plot(self, show_plot=False, **kwargs)

    def close(self) -> None:
        """Let go of what was read; the run can still be used, and is then read again."""
        self._kept, self._whole = {}, None

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        steps, quantities = len(self.steps), len(self.quantities)
        return f"Run({str(self.path)!r}: {self.status}, {steps} steps, {quantities} quantities)"

    def _open(self) -> RunFile | JsonFile:
        """Open the file; one of JSON is read as a whole, and therefore kept."""
        if self._whole is not None:
            return self._whole
        file = open_file(self.path)
        if isinstance(file, JsonFile):
            self._whole = file
        return file

    def _read(self, key: Any, read: Callable[[RunFile | JsonFile], Any]) -> Any:
        """Return what is kept under `key`, or read it; keep nothing of an earlier run."""
        if key not in self._kept:
            with self._open() as file:
                if file.created != self._created:
                    self._kept, self._created = {}, file.created
                self._kept[key] = read(file)
        return self._kept[key]

    def _meta(self) -> tuple[dict[str, Any], str, list[str]]:
        return self._read(
            "meta",
            lambda file: (file.settings, file.status, [one.name for one in file.parameters]),
        )

    def _series(self) -> dict[int, Series]:
        return self._read("series", lambda file: {one.id: one for one in file.series()})

    def _scalars(self) -> Numbers:
        ids, steps, values = self._read("scalars", lambda file: file.scalars())
        known = np.isin(ids, list(self._series()))  # a series may be newer than the list of them
        return ids[known], steps[known], values[known]

    def _numbers(self, one: Series) -> Numbers:
        """Return ids, steps and values of one series, without reading the others."""
        if "scalars" in self._kept:
            ids, steps, values = self._kept["scalars"]
            own = _rows_of(one, ids)
            return ids[own], steps[own], values[own]
        ids, steps, values = self._read(("scalars", one.id), lambda file: file.scalars(one.id))
        own = slice(None) if self._series().get(one.id) == one else slice(0)  # of another run now
        return ids[own], steps[own], values[own]

    def _arrays(self, one: Series) -> list[tuple[int, np.ndarray]]:
        found = self._read(
            ("arrays", one.id),
            lambda file: [(step, array) for _, step, array in file.arrays(one.id)],
        )
        return found if self._series().get(one.id) == one else []

    def _of(self, quantity: str, part: str | None = None) -> list[Series]:
        """Return the series of a quantity, of one part or of all."""
        own = [one for one in self._series().values() if one.quantity == quantity]
        if not own:
            start = f"{self.path} has no quantity"
            raise InvalidArgument(_unknown(start, quantity, self.quantities))
        if part is None:
            return own
        chosen = [one for one in own if _part(one) == part]
        if not chosen:
            parts = dict.fromkeys(map(_part, own))
            raise InvalidArgument(_unknown(f"{quantity} in {self.path} has no part", part, parts))
        return chosen

    def _values(self, one: Series) -> dict[int, Any]:
        if one.kind == "array":
            return dict(self._arrays(one))
        _, steps, values = self._numbers(one)
        return dict(zip(steps.tolist(), values.tolist(), strict=True))

    def _tidy(self, ids: list[int], steps: np.ndarray, values: np.ndarray) -> pd.DataFrame:
        series = self._series()
        names = {one.id: (one.quantity, _part(one)) for one in series.values()}
        return pd.DataFrame(
            {
                "step": steps,
                "quantity": pd.Series([names[one][0] for one in ids], dtype="str"),
                "part": pd.Series([names[one][1] for one in ids], dtype="str"),
                "value": values,
            }
        )


def _all_arrays(file: RunFile | JsonFile) -> list[tuple[int, int, np.ndarray]]:
    return [(one.id, step, array) for one, step, array in file.arrays()]


def _rows_of(one: Series, ids: np.ndarray) -> slice:
    """Return where the series is in ids that are sorted."""
    return slice(*np.searchsorted(ids, (one.id, one.id + 1)))


def _part(one: Series) -> str:
    return "/".join(filter(None, (one.key, one.parameter)))


def _label(one: Series) -> str:
    return "/".join(filter(None, (one.quantity, _part(one))))


def _unknown(beginning: str, name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    listed = ", ".join(repr(one) for one in names) or "nothing yet"
    return f"{beginning} {name!r}; it has: {listed}.{hint}"


def _objects(values: Iterable[Any]) -> np.ndarray:
    """Return a one-dimensional array of objects, of arrays too, which numpy would stack."""
    items = list(values)
    column = np.empty(len(items), dtype=object)
    for place, item in enumerate(items):
        column[place] = item
    return column


def _column(values: list[Any]) -> np.ndarray:
    """Return numbers as float64, anything else as objects."""
    if any(isinstance(value, np.ndarray) for value in values):
        return _objects(values)
    return np.array(values, dtype=np.float64)
