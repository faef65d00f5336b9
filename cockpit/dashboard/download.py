"""The data of a run for other programs, as a stream: no more than a piece is in memory."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from cockpit.dashboard.encoding import encode
from cockpit.errors import InvalidArgument, NotARunFile
from cockpit.log import JsonFile, RunFile, Series, open_file

__all__ = ["FORMATS", "rows_of"]

ARRAYS_AT_A_TIME = 100


def rows_of(path: Path, kind: str, quantity: str | None = None) -> Iterator[bytes]:
    """Yield the numbers of a run, or numbers and arrays of one quantity, in pieces.

    Args:
        path: The run.
        kind: ``"csv"``: the columns step, quantity, part, value, ordered by series and step; the
            entries of an array have parts such as ``hist[3]``. Or ``"json"``: settings, parameters,
            and a list of series with their steps and values, where NaN and infinities are the texts
            ``"nan"``, ``"inf"`` and ``"-inf"``.
        quantity: Only those of this one, and its arrays.

    Raises:
        InvalidArgument: There is no such quantity, or no such format.
        NotARunFile: The file cannot be read, or is another one by now.
    """
    if kind not in FORMATS:
        raise InvalidArgument(f"format must be one of {', '.join(FORMATS)}, got {kind!r}.")
    with open_file(path) as file:
        source = _Source(path, file.created, file.steps()[0], file)
        wanted = (None, "scalar") if quantity is None else (quantity, None)
        chosen = [
            one
            for one in file.series()
            if wanted[0] in (None, one.quantity) and wanted[1] in (None, one.kind)
        ]
    if quantity is not None and not chosen:
        raise InvalidArgument(f"the run has no values of a quantity {quantity!r}.")
    return FORMATS[kind](source, chosen)


class _Source:
    """Reads one piece after the other; a run file is not held open in between.

    Pieces of a stream may be made in different threads, and a reader belongs to one.
    """

    def __init__(
        self, path: Path, created: float, steps: np.ndarray, file: RunFile | JsonFile
    ) -> None:
        self.path, self.created, self.steps = path, created, steps
        self.whole = file if isinstance(file, JsonFile) else None

    def about(self) -> dict[str, object]:
        with self.whole or open_file(self.path) as file:
            parameters = [{"name": p.name, "shape": list(p.shape)} for p in file.parameters]
            return {"run": self.path.name, "settings": file.settings, "parameters": parameters}

    def pieces(self, one: Series) -> Iterator[tuple[list[int], list[Any]]]:
        """Yield steps and values of a series: numbers at once, arrays of some steps at a time."""
        if one.kind == "scalar":
            with self._same() as file:
                _, steps, values = file.scalars(one.id)
            yield steps.tolist(), values.tolist()
            return
        for place in range(0, len(self.steps), ARRAYS_AT_A_TIME):
            some = self.steps[place : place + ARRAYS_AT_A_TIME]
            with self._same() as file:
                found = list(file.arrays(one.id, start=int(some[0]), stop=int(some[-1]) + 1))
            yield [step for _, step, _ in found], [array for _, _, array in found]

    @contextmanager
    def _same(self) -> Iterator[RunFile | JsonFile]:
        with self.whole or open_file(self.path) as file:
            if file.created != self.created:
                raise NotARunFile(f"{self.path} was replaced while it was read. Download it again.")
            yield file


def _part(one: Series) -> str:
    return "/".join(filter(None, (one.key, one.parameter)))


def _csv(source: _Source, chosen: list[Series]) -> Iterator[bytes]:
    yield b"step,quantity,part,value\n"
    for one in chosen:
        for steps, values in source.pieces(one):
            text = io.StringIO()
            rows = csv.writer(text, lineterminator="\n")
            for step, value in zip(steps, values, strict=True):
                if one.kind == "scalar":
                    rows.writerow((step, one.quantity, _part(one), value))
                    continue
                for index, entry in np.ndenumerate(value):
                    part = f"{_part(one)}[{','.join(map(str, index))}]"
                    rows.writerow((step, one.quantity, part, entry))
            yield text.getvalue().encode(errors="replace")


def _json(source: _Source, chosen: list[Series]) -> Iterator[bytes]:
    yield encode(source.about())[:-1] + b',"series":['
    for place, one in enumerate(chosen):
        steps: list[int] = []
        head = {"quantity": one.quantity, "part": _part(one)}
        yield b"," * (place > 0) + b"\n" + encode(head)[:-1] + b',"values":['
        for some, values in source.pieces(one):
            plain = [v.tolist() if isinstance(v, np.ndarray) else v for v in values]
            yield (b"," if steps and some else b"") + encode(plain)[1:-1]
            steps += some
        yield b'],"steps":' + encode(steps) + b"}"
    yield b"\n]}\n"


Writer: TypeAlias = Callable[[_Source, list[Series]], Iterator[bytes]]

FORMATS: dict[str, Writer] = {"csv": _csv, "json": _json}
"""What data can be downloaded as."""
