"""The JSON of Cockpit 1.0, written and read.

One object, ``{"<step>": {"<name>": value, ...}, ...}``. A value is a number, a list of numbers
(nested for an array, or one for each parameter), or an object of these; NaN and infinities stand
there as ``NaN``, ``Infinity`` and ``-Infinity``. Names of parameters, details, settings and events
are not in it: the run file has them.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from cockpit.errors import InvalidArgument, NotARunFile
from cockpit.findings import Finding
from cockpit.log.reader import RunFile, is_database, start_of
from cockpit.log.schema import Event, ParameterInfo, Series

MAX_BYTES = 2 * 2**30
"""Larger files are not read: such an object is in memory as a whole, several times its size."""

MAX_MEMORY = 2**33
"""Nor are those that would take so many bytes of it: empty lists take twenty times their text."""

MAX_DIMENSIONS = 32
"""More are no array here; some versions of numpy do not have more."""

METRICS = frozenset(
    {
        "epoch_count",
        "train_loss",
        "valid_loss",
        "test_loss",
        "train_accuracy",
        "valid_accuracy",
        "test_accuracy",
        "learning_rate",
    }
)
"""Metrics of the user; every other name is that of a quantity."""

PER_PARAMETER = frozenset(
    {
        "AdamStaleness",
        "Distance",
        "GradNorm",
        "HessTrace",
        "LostUpdates",
        "ParameterStats",
        "Parameters",
        "UpdateRatio",
        "UpdateSize",
    }
)
"""Quantities whose lists have one entry for each parameter."""

_UNREADABLE = "what stands there is neither a number nor an array of numbers"


# -- writing --------------------------------------------------------------------------------------


def with_ending(path: str | os.PathLike[str]) -> Path:
    """Return the path with ``.json`` at its end, appended as Cockpit 1.0 did unless it is there."""
    text = os.fspath(path)
    return Path(text if text.endswith(".json") else f"{text}.json").expanduser()


def write_json(path: str | os.PathLike[str], output: Mapping[int, Mapping[str, Any]]) -> Path:
    """Write values by step and name, so that there is never less than a whole file at `path`.

    What is there is replaced at the very end; if anything goes wrong before, it is left as it was.

    Args:
        path: Where to; ``.json`` is appended if it is not there, and folders are created.
        output: What to write: numbers, arrays, lists and dicts of these.

    Returns:
        The path of the file.

    Raises:
        InvalidArgument: Nothing can be written there.
    """
    path = with_ending(path)
    target = Path(os.path.realpath(path))  # where it is a link, what it points to is replaced
    temporary = target.with_name(f".cockpit-{secrets.token_hex(8)}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("x", encoding="utf-8") as file:
            file.writelines(json_pieces(output))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise InvalidArgument(
            f"{path} cannot be written: {error}. Give the path of a file, in a folder that may be "
            "written to and has room."
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()
    return path


def json_pieces(output: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the text of the file step by step: never is more than one step's text in memory."""
    yield "{"
    for place, step in enumerate(sorted(output)):
        yield f'{"," if place else ""}\n"{step}": {json.dumps(output[step], default=_plain)}'
    yield "\n}\n"


def _plain(values: np.ndarray) -> Any:
    if np.iscomplexobj(values):
        return {"real": values.real, "imag": values.imag}
    return values.tolist()


# -- reading --------------------------------------------------------------------------------------


def open_file(path: str | os.PathLike[str]) -> RunFile | JsonFile:
    """Open a run file, or the JSON of Cockpit 1.0; where both could be meant, the content says.

    Raises:
        NotARunFile: There is no such file, or it is neither.
    """
    path = Path(path).expanduser().absolute()
    start = start_of(path)
    looks_like_json = (
        path.suffix == ".json" or start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"
    )
    return JsonFile(path) if looks_like_json and not is_database(start) else RunFile(path)


class JsonFile:
    """The JSON of Cockpit 1.0, read as a whole, with the methods of a `RunFile`.

    The parameters have no names in it: they are called ``parameter0``, ``parameter1``, ...

    Args:
        path: The file.

    Raises:
        NotARunFile: There is no such file, or it is not one that `write_json` could have written.
    """

    settings: Mapping[str, Any] = {}
    status = "closed"
    is_live = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser().absolute()
        start_of(self.path)
        self.created = self.path.stat().st_mtime
        self._ids: dict[tuple[str, str, str, str], int] = {}
        self._numbers: dict[int, tuple[array[int], array[float]]] = {}
        self._grids: dict[int, list[tuple[int, np.ndarray]]] = {}
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._unread: dict[str, list[int]] = {}
        by_step = _by_step(self.path)
        self._count = max(
            (
                _length(value)
                for names in by_step.values()
                for name, value in names.items()
                if _is_per_parameter(name)
            ),
            default=0,
        )
        self._tracked = [step for step, names in by_step.items() if set(names) - METRICS]
        for step in list(by_step):
            for name, value in by_step.pop(step).items():
                self._take(step, name, "", value)

    @property
    def parameters(self) -> list[ParameterInfo]:
        """The parameters; their shapes are known where their values were recorded."""
        return [
            ParameterInfo(f"parameter{place}", self._shapes.get(place, ()), "")
            for place in range(self._count)
        ]

    def series(self) -> list[Series]:
        """Return what there are values of, in the order of first appearance."""
        return [
            Series(
                number,
                quantity,
                key,
                parameter,
                kind,
                detail=False,
                source="log" if quantity in METRICS else "quantity",
            )
            for (quantity, key, parameter, kind), number in self._ids.items()
        ]

    def steps(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the tracked steps (int64) and, in seconds, wall and monotonic time.

        The wall time is that of the quantity ``Time``, the other one NaN: neither is in the file by
        itself.
        """
        steps, seconds = self._numbers.get(
            self._ids.get(("Time", "", "", "scalar"), 0), (array("q"), array("d"))
        )
        known = dict(zip(steps, seconds, strict=True))
        wall = np.array([known.get(step, math.nan) for step in self._tracked], dtype=np.float64)
        return np.array(self._tracked, dtype=np.int64), wall, np.full(len(wall), math.nan)

    def extent(self) -> tuple[int, int | None, int | None]:
        """Return how many steps were tracked, the first and the last."""
        steps = self.steps()[0]
        return (len(steps), int(steps[0]), int(steps[-1])) if len(steps) else (0, None, None)

    def scalars(self, series: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return series ids, steps (int64) and values (float64), ordered by series and step.

        Args:
            series: Only those of the series with this id.
        """
        found = [item for item in sorted(self._numbers.items()) if series in (None, item[0])]
        ids = np.repeat(
            np.array([number for number, _ in found], dtype=np.int64),
            [len(steps) for _, (steps, _) in found],
        )
        steps = [np.array(column, np.int64) for _, (column, _) in found]
        values = [np.array(column, np.float64) for _, (_, column) in found]
        none = np.zeros(0)
        return ids, np.concatenate([none.astype(np.int64), *steps]), np.concatenate([none, *values])

    def arrays(
        self, series: int | None = None, *, start: int | None = None, stop: int | None = None
    ) -> Iterator[tuple[Series, int, np.ndarray]]:
        """Yield series, step and array, ordered by series and step.

        Args:
            series: Only those of the series with this id.
            start: Only those of the steps from this one on.
            stop: Only those of the steps before this one.
        """
        for one in self.series():
            if one.kind == "array" and series in (None, one.id):
                for step, grid in self._grids[one.id]:
                    if (start is None or start <= step) and (stop is None or step < stop):
                        yield one, step, grid

    def events(self) -> list[Event]:
        """Return what of the file could not be read."""
        return [
            Event(
                steps[0],
                self.created,
                "not-read",
                name,
                f"{_UNREADABLE} (at {len(steps)} step{'s' * (len(steps) != 1)}, first at {steps[0]})",
            )
            for name, steps in self._unread.items()
        ]

    def findings(self) -> list[Finding]:
        """Return none: there is no place for them in such a file."""
        return []

    def close(self) -> None:
        """Do nothing: the file is closed once it has been read."""

    def __enter__(self) -> JsonFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"JsonFile({str(self.path)!r})"

    def _take(self, step: int, name: str, key: str, value: Any) -> None:
        """Enter a value of a step, and what is in it."""
        if isinstance(value, dict):
            for part, item in value.items():
                self._take(step, name, f"{key}/{part}" if key else part, item)
        elif _is_per_parameter(name) and self._count and _length(value) == self._count:
            for place, item in enumerate(value):
                if isinstance(item, np.ndarray) and item.ndim and not key:
                    self._shapes[place] = item.shape
                self._enter(step, name, key, f"parameter{place}", item)
        elif isinstance(value, list) and all(isinstance(item, np.ndarray) for item in value):
            for place, item in enumerate(value):  # such as the edges of both axes
                self._enter(step, name, f"{key}/{place}" if key else str(place), "", item)
        else:
            self._enter(step, name, key, "", value)

    def _enter(self, step: int, name: str, key: str, parameter: str, value: Any) -> None:
        """Enter a number or an array; remember where anything else was."""
        if isinstance(value, np.ndarray) and value.ndim:
            number = self._id(name, key, parameter, "array")
            self._grids.setdefault(number, []).append((step, value))
        elif isinstance(value, int | float | np.number | np.bool_):
            number = self._id(name, key, parameter, "scalar")
            steps, values = self._numbers.setdefault(number, (array("q"), array("d")))
            steps.append(step)
            values.append(_as_float(value))
        elif value is not None:  # which a script of 1.0 logs for a metric that it does not have
            steps_unread = self._unread.setdefault(name, [])
            if steps_unread[-1:] != [step]:
                steps_unread.append(step)

    def _id(self, *series: str) -> int:
        quantity, key, parameter, kind = series
        return self._ids.setdefault((quantity, key, parameter, kind), len(self._ids) + 1)


def _by_step(path: Path) -> dict[int, dict[str, Any]]:
    """Return what the file says, ordered by step, with lists of numbers as arrays."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise NotARunFile(
            f"{path} has {size} bytes; JSON of more than {MAX_BYTES} is not read. "
            "Record with Cockpit(..., log=path) and open that run file instead."
        )
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)  # it may have grown since
        memory = _memory_of(data)
        if len(data) > MAX_BYTES or memory > MAX_MEMORY:
            raise MemoryError
        text = data.decode("utf-8-sig")
        del data
        content = json.loads(text, object_hook=_compact)
    except OSError as error:
        raise NotARunFile(f"{path} cannot be read: {error}. Check its permissions.") from error
    except RecursionError:
        raise NotARunFile(
            f"{path} is JSON nested too deeply for an output of Cockpit 1.0. Give another path."
        ) from None
    except MemoryError:
        raise NotARunFile(
            f"{path} has {size} bytes of JSON, which take more memory than there is for them. "
            "Record with Cockpit(..., log=path) and open that run file instead."
        ) from None
    except ValueError as error:
        raise NotARunFile(
            f"{path} is not whole JSON ({error}): it was cut short or damaged, or is no JSON. "
            "Take an older copy, or write it anew with Cockpit.write(path)."
        ) from error
    return _checked(content, path)


def _memory_of(data: bytes) -> int:
    """Return how many bytes of memory JSON takes at most while it is parsed, in CPython.

    A place in a list takes 8, and what is there: a number 28, a text 56, a list 80, an object 130.
    """
    lists, objects, texts = data.count(b"["), data.count(b"{"), data.count(b'"') // 2
    places = data.count(b",") + lists + objects
    return len(data) + 36 * places + 56 * texts + 80 * lists + 130 * objects


def _checked(content: Any, path: Path) -> dict[int, dict[str, Any]]:
    by_step = {}
    wrong = None if isinstance(content, dict) else f"it begins with a {type(content).__name__}"
    for key, values in content.items() if isinstance(content, dict) else ():
        if not re.fullmatch("[0-9]{1,18}", key):
            wrong = f"{key[:40]!r} is no number of a step"
        elif not isinstance(values, dict):
            wrong = f"step {key} has no values by name"
        else:
            by_step[int(key)] = values
    if wrong:
        raise NotARunFile(
            f"{path} is JSON, but not an output of Cockpit 1.0, which is "
            f'{{"<step>": {{"<quantity>": value}}}}: {wrong}. '
            "Give the path that was passed to Cockpit.write(path)."
        )
    return dict(sorted(by_step.items()))  # 1.0 sorted the steps as text


def _compact(members: dict[str, Any]) -> dict[str, Any]:
    """Make arrays of the lists as soon as an object is complete, which takes much less memory."""
    return {
        key: _array(value) if isinstance(value, list) else value for key, value in members.items()
    }


def _array(values: list[Any]) -> Any:
    """Return a list as an array if it is rectangular and all numbers, else as a list of its parts."""
    kinds = set(map(type, values))
    if kinds <= {int} or kinds <= {bool}:
        numbers = np.array(values)
        return _floats(values) if numbers.dtype.kind == "O" else numbers
    if kinds <= {int, float, bool, NoneType}:
        return _floats(values)
    parts = [_array(item) if isinstance(item, list) else item for item in values]
    shapes = {part.shape if isinstance(part, np.ndarray) else None for part in parts}
    alike = shapes.pop() if len(shapes) == 1 else None
    return np.stack(parts) if alike is not None and len(alike) < MAX_DIMENSIONS else parts


def _floats(values: list[Any]) -> Any:
    try:
        return np.array(values, dtype=np.float64)  # None is read as NaN
    except OverflowError:  # integers too large even for that
        return np.array([_as_float(math.nan if value is None else value) for value in values])


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _is_per_parameter(name: str) -> bool:
    return re.sub(r"-\d+$", "", name) in PER_PARAMETER  # the second of its kind is "GradNorm-2"


def _length(value: Any) -> int:
    """Return the number of entries of a list, or of the longest one in a dict."""
    if isinstance(value, dict):
        return max(map(_length, value.values()), default=0)
    return len(value) if isinstance(value, list) or np.ndim(value) else 0
