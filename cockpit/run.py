"""A run file as pandas frames."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pandas as pd

from cockpit.errors import InvalidArgument, NotARunFile
from cockpit.findings import Finding
from cockpit.log import JsonFile, RunFile, Series, open_file, with_ending

Numbers = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Ids of series, steps and values; of the tracked steps, these and their two times."""

OVERLAP = 200
"""Steps that `Run.refresh` reads anew: a value may be known some steps after its own."""

MAX_ARRAY_BYTES = 2**32
"""Bytes of arrays that are read at once: a small file may hold many of zeros, which take no room in it."""


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run file for reading, also while the training still writes it.

    The JSON of Cockpit 1.0 is read, too. It does not say what the parameters are called; they are
    ``parameter0``, ``parameter1``, ... What cannot be read of it is in the run's events.

    Args:
        path: What was given to ``Cockpit(..., log=path)`` or ``watch.write(path)``.

    Raises:
        NotARunFile: There is no such file, or it is no run file.
    """
    if not os.path.exists(Path(path).expanduser()) and os.path.exists(with_ending(path)):
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
        self._progress: _Progress | None = None
        self.reload()

    def reload(self) -> None:
        """Forget what was read, so that it is read anew."""
        self.close()
        with self._open() as file:
            self._created = file.created
            self._progress = _progress(file) if isinstance(file, RunFile) else None
            self._kept["meta"] = file.settings, file.status, [one.name for one in file.parameters]

    def refresh(self) -> None:
        """See what has been written since, and read no more than that: `reload` for a live view.

        Of what was read already, the last `OVERLAP` steps are read anew. A number that was logged for
        a step still further back is seen when the run is closed, or with `reload`.
        """
        if self._whole is not None:
            return
        with self._open() as file:
            assert isinstance(file, RunFile)
            before, self._progress = self._progress, _progress(file)
            if self._progress == before and before.status != "running":
                return
            grown = before is not None and self._progress.follows(before)
            self._kept = {
                key: _continued(file, key[0], key[1], found)
                for key, found in (self._kept.items() if grown else ())
                if isinstance(key, tuple)  # all else is read as a whole
            }

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
        return self._times()[0]

    @property
    def times(self) -> pd.DataFrame:
        """The tracked steps, when they were since 1970 and on a clock never set, in seconds.

        The columns are ``step``, ``wall`` and ``monotonic``.
        """
        step, wall, monotonic = self._times()
        return pd.DataFrame({"step": step, "wall": wall, "monotonic": monotonic})

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
        parts: dict[str, list[Series]] = {}
        for one in chosen:
            parts.setdefault(_part(one), []).append(one)
        columns = {name: self._values(own) for name, own in parts.items()}
        steps = _union([own for own, _ in columns.values()])
        index = pd.Index(steps, dtype=np.int64, name="step")
        built = {
            name: pd.Series(_filled(steps, *column), index=index, name=name)
            for name, column in columns.items()
        }
        if len(built) == 1:
            return next(iter(built.values())).rename(quantity)
        return pd.DataFrame(built, index=index)

    def parts(self, quantity: str, kind: str = "scalar", *, details: bool = True) -> list[str]:
        """Return which parts of a quantity there are; none of a quantity that there is not.

        Args:
            quantity: Its name.
            kind: ``"scalar"`` for those that are numbers, ``"array"`` for those that are arrays.
            details: Whether to name details, too.
        """
        own = [o for o in self._series().values() if o.quantity == quantity and o.kind == kind]
        return list(dict.fromkeys(_part(one) for one in own if details or not one.detail))

    def curve(self, quantity: str, part: str = "") -> tuple[np.ndarray, np.ndarray]:
        """Return steps (int64) and values (float64) of one part of a quantity, which are all that is read.

        Raises:
            InvalidArgument: The run has no such quantity, or the quantity no such part.
        """
        return self._values([o for o in self._of(quantity, part) if o.kind == "scalar"])

    def newest(self, quantity: str) -> tuple[int, dict[str, np.ndarray]] | None:
        """Return the last step that has arrays of a quantity, and these by their parts.

        No other steps are read but a few at the end; `None` where there are no arrays.
        """
        own = [o for o in self._series().values() if (o.quantity, o.kind) == (quantity, "array")]

        def read(file: RunFile | JsonFile) -> tuple[int, dict[str, np.ndarray]] | None:
            _, first, last = file.extent()
            reach = 1
            while own and first is not None and last is not None:
                start = None if last - reach < first else last - reach + 1
                rows = [row for one in own for row in _bounded(file.arrays(one.id, start=start))]
                step = max((step for _, step, _ in rows), default=None)
                if step is not None:
                    found = [(_part(one), array) for one, at, array in rows if at == step]
                    return step, dict(reversed(found))  # of two with one name the first one counts
                if start is None:
                    break
                reach *= 8
            return None

        return self._read(f"newest {quantity}", read)

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
                    "time": pd.to_datetime(
                        [event.wall for event in events], unit="s", utc=True, errors="coerce"
                    ),
                    "kind": pd.Series([event.kind for event in events], dtype="str"),
                    "subject": pd.Series([event.subject for event in events], dtype="str"),
                    "message": pd.Series([event.message for event in events], dtype="str"),
                }
            )

        return self._read("events", frame)

    def finding_records(self) -> tuple[Finding, ...]:
        """Return what was found to be wrong with the training, in the order in which it was found."""
        return self._read("findings", lambda file: tuple(file.findings()))

    def findings(self) -> pd.DataFrame:
        """Return what was found to be wrong with the training, a row each.

        The columns are those of `cockpit.findings.Finding`: ``code``, ``name``, ``severity``,
        ``step``, ``title``, ``why``, ``action``, ``source``, ``subjects`` (tuples), ``evidence``
        (dictionaries), ``confidence`` and ``instrument`` (``""`` for none).
        """
        found = self.finding_records()
        texts = ("code", "name", "severity", "title", "why", "action", "source", "instrument")
        dtypes = {"step": "int64", "confidence": "float64", **dict.fromkeys(texts, "str")}
        return pd.DataFrame(
            {
                one.name: pd.Series(
                    _objects(
                        "" if (value := getattr(finding, one.name)) is None else value
                        for finding in found
                    ),
                    dtype=dtypes.get(one.name, "object"),
                )
                for one in fields(Finding)
            }
        )

    def plot(self, name: str | None = None, *, ax: Any = None, **kwargs: Any) -> Any:
        """Draw all pictures of the run, or one: ``run.plot("alpha", ax=ax)``.

        Args:
            name: Name of the picture, such as ``"alpha"``, or of a quantity; all unless given.
            ax: Axes of matplotlib to draw this one picture on; a figure of its own unless given.
            kwargs: For `CockpitPlotter.plot`, without showing it in a window, or for
                `CockpitPlotter.plot_panel`.

        Returns:
            The figure; the axes where `ax` is given.

        Raises:
            InvalidArgument: There is no such picture, or the run has no data for it.
        """
        plotter = importlib.import_module("cockpit.plotter").CockpitPlotter()
        if name is None and ax is None:
            return plotter.plot(self, show_plot=False, **kwargs)
        if name is None:
            raise InvalidArgument('ax is for a single picture; name it: run.plot("alpha", ax=ax).')
        axes = plotter.plot_panel(self, name, ax=ax, **kwargs)
        return axes.figure if ax is None else axes

    def close(self) -> None:
        """Let go of what was read; the run can still be used, and is then read again."""
        self._kept, self._whole, self._progress = {}, None, None

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

    def _times(self) -> Numbers:
        return self._read(("times", None), lambda file: file.steps())

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
            lambda file: [(step, array) for _, step, array in _bounded(file.arrays(one.id))],
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

    def _values(self, series: Iterable[Series]) -> tuple[np.ndarray, np.ndarray]:
        """Return steps and values of series with one name, say of a quantity and a metric.

        Where both have a step, the first one counts.
        """
        found = [self._column(one) for one in series]
        if len(found) == 1:
            return found[0]
        none = (np.zeros(0, np.int64), np.zeros(0))
        steps, values = map(np.concatenate, zip(none, *found, strict=True))
        steps, first = np.unique(steps, return_index=True)
        return steps, values[first]

    def _column(self, one: Series) -> tuple[np.ndarray, np.ndarray]:
        if one.kind == "scalar":
            return self._numbers(one)[1:]
        found = self._arrays(one)
        steps = np.array([step for step, _ in found], dtype=np.int64)
        return steps, _objects(array for _, array in found)

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


@dataclass(frozen=True)
class _Progress:
    """Which run a file has, who writes it, and how far it has come."""

    status: str
    writer: tuple[Any, ...]
    counts: tuple[int, ...]

    def follows(self, earlier: _Progress) -> bool:
        """Whether values have been appended since and nothing else; not so when a run is continued."""
        grown = all(now >= before for now, before in zip(self.counts, earlier.counts, strict=True))
        return grown and (self.status, self.writer) == (earlier.status, earlier.writer)


def _progress(file: RunFile) -> _Progress:
    mark, (steps, _, last) = file.mark(), file.extent()
    counts = (mark["events"], mark.get("findings", 0), steps, -1 if last is None else last)
    return _Progress(file.status, (file.created, *file.process.values()), counts)


def _continued(file: RunFile, kind: str, series: int | None, found: Any) -> Any:
    """Return what was read of a series or of the steps, with what has been written since."""
    if kind in ("scalars", "times"):
        steps = found[1 if kind == "scalars" else 0]
        kept = max(len(steps) - OVERLAP, 0)
        start = int(steps[kept]) if kept else None
        new = file.scalars(series, start=start) if kind == "scalars" else file.steps(start=start)
        return tuple(np.concatenate([a[:kept], b]) for a, b in zip(found, new, strict=True))
    kept = max(len(found) - OVERLAP, 0)
    start = found[kept][0] if kept else None
    rows = _bounded(file.arrays(series, start=start))
    return found[:kept] + [(step, array) for _, step, array in rows]


def _all_arrays(file: RunFile | JsonFile) -> list[tuple[int, int, np.ndarray]]:
    return [(one.id, step, array) for one, step, array in _bounded(file.arrays())]


def _bounded(
    arrays: Iterable[tuple[Series, int, np.ndarray]],
) -> Iterator[tuple[Series, int, np.ndarray]]:
    """Yield arrays that will be in memory together, unless they are too large for that."""
    total = 0
    for one, step, array in arrays:
        total += array.nbytes
        if total > MAX_ARRAY_BYTES:
            raise NotARunFile(
                f"the arrays of {one.quantity} and what is read with them take more than "
                f"{MAX_ARRAY_BYTES} bytes of memory. Read one part, run.arrays(quantity, part), or "
                "one array after the other, cockpit.log.RunFile(path).arrays()."
            )
        yield one, step, array


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


def _union(columns: list[np.ndarray]) -> np.ndarray:
    """Return all steps of ascending ones, which mostly are the same ones."""
    first = columns[0]
    if all(np.array_equal(own, first) for own in columns):
        return first
    return np.unique(np.concatenate(columns))


def _filled(steps: np.ndarray, own: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return values of `own` steps at all `steps`, and NaN where there are none."""
    if len(own) == len(steps):
        return values.copy()
    column = np.full(len(steps), np.nan, dtype=values.dtype)
    column[np.searchsorted(steps, own)] = values
    return column
