"""What the page asks for, and the figures that it gets."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from cockpit.dashboard.encoding import encode
from cockpit.dashboard.opened import Shelf
from cockpit.errors import CockpitError, InvalidArgument
from cockpit.instruments import Heat, Line, Mark, Panel
from cockpit.instruments.overlay import COLORS, colors_of, overlay
from cockpit.plotting.plotly import figure

__all__ = ["Query", "board", "figures", "of_layers"]

MAX_RUNS, MAX_INSTRUMENTS, MAX_LAYERS = 8, 256, 2000
WIDTHS = range(100, 4001)
MAX_DENSITY = 4
ENOUGH_SECONDS = 1.0
"""An answer that has taken so long leaves the rest to the next one, so that pictures keep coming."""

AS_LINES = 6
"""So few rows of a heat map over steps are better read as lines."""


@dataclass(frozen=True)
class Query:
    """Which figures the page wants, and how large.

    Args:
        runs: Names of the runs, which are laid over each other.
        instruments: Names of the instruments.
        window: First and last step to show; all of them if None.
        width: Width of a picture in pixels.
        density: How many columns of the screen a pixel has.
        style: ``"light"`` or ``"dark"``.
        layers: Names of the layers to show; all of them if None.
        known: Tags of figures that the page has, which are not sent again.
    """

    runs: tuple[str, ...]
    instruments: tuple[str, ...]
    window: tuple[float, float] | None = None
    width: int = 600
    density: float = 1.0
    style: str = "light"
    layers: frozenset[str] | None = None
    known: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: Any) -> Query:
        """Return the query that JSON stands for; nothing in it is trusted.

        Raises:
            InvalidArgument: It is none, and why.
        """
        _require(isinstance(data, dict), "the query", "an object")
        window, width = data.get("window"), data.get("width", cls.width)
        style, known = data.get("style", cls.style), data.get("known", {})
        layers, density = data.get("layers"), data.get("density", cls.density)
        runs = _texts(data.get("runs"), "runs", MAX_RUNS)
        _require(bool(runs), "runs", "at least one name")
        _require(type(width) is int and width in WIDTHS, "width", "a number of pixels")
        fine = type(density) in (int, float) and 0 < density <= MAX_DENSITY
        _require(fine, "density", "how many columns of the screen a pixel has")
        _require(style in ("light", "dark"), "style", '"light" or "dark"')
        _require(
            isinstance(known, dict) and all(isinstance(v, str) for v in known.values()),
            "known",
            "tags by instrument",
        )
        if window is not None:
            fine = isinstance(window, list) and len(window) == 2
            fine = fine and all(type(v) in (int, float) and math.isfinite(v) for v in window)
            _require(fine and window[0] < window[1], "window", "the first and the last step")
        return cls(
            runs,
            _texts(data.get("instruments"), "instruments", MAX_INSTRUMENTS),
            None if window is None else (float(window[0]), float(window[1])),
            width,
            float(density),
            style,
            None if layers is None else frozenset(_texts(layers, "layers", MAX_LAYERS)),
            known,
        )


def _texts(data: Any, name: str, most: int) -> tuple[str, ...]:
    fine = isinstance(data, list) and len(data) <= most and all(isinstance(v, str) for v in data)
    _require(fine, name, f"a list of at most {most} names")
    return tuple(dict.fromkeys(data))


def _require(holds: bool, name: str, what: str) -> None:
    if not holds:
        raise InvalidArgument(f"{name} of the query: give {what}.")


def board(shelf: Shelf, runs: tuple[str, ...]) -> dict[str, Any]:
    """Return which pictures there are of runs, and what their layers are called."""
    names: dict[str, list[str]] = {}
    parameters: dict[str, None] = {}
    for name in runs:
        opened = shelf.open(name)
        recorded = opened.quantities
        for key, one in opened.instruments().items():
            own = names.setdefault(key, [])
            own += [q for q in one.quantities if q in recorded and q not in own]
        parameters |= dict.fromkeys(opened.parameters)
    return {
        "instruments": [{"name": key, "quantities": names[key]} for key in names],
        "parameters": list(parameters),
        "labels": labels_of(runs),
        "colors": colors_of(runs),
    }


def figures(shelf: Shelf, query: Query) -> dict[str, Any]:
    """Return the figures, as far as one answer gets with them; the names of the ``rest`` beside them.

    Each instrument has a list of pictures, mostly of one: several runs may take several. Those that
    are ``coarse`` are of a part of the values, until all have been read: ask again. One that fails
    takes no other with it: it has an ``error``.
    """
    begun = time.monotonic()
    found: list[dict[str, Any]] = []
    for place, name in enumerate(query.instruments):
        if found and time.monotonic() - begun > ENOUGH_SECONDS:
            return {"panels": found, "rest": query.instruments[place:]}
        try:
            found.append({"name": name} | _pictures(shelf, query, name))
        except CockpitError as error:
            found.append({"name": name, "error": shelf.library.hide(str(error))})
        except Exception as error:  # an instrument met data that it was not made for
            found.append(
                {"name": name, "error": shelf.library.hide(f"{type(error).__name__}: {error}")}
            )
    return {"panels": found, "rest": []}


def _pictures(shelf: Shelf, query: Query, name: str) -> dict[str, Any]:
    made = {run: shelf.open(run).panel(name) for run in query.runs}
    coarse = not all(exact for _, exact in made.values())
    found = {run: panel for run, (panel, _) in made.items()}
    rows = dict.fromkeys(row for panel in found.values() if panel for row in _rows(panel))
    single = len(query.runs) == 1
    if query.layers is not None:
        found = {
            run: panel and of_layers(panel, query.layers, lines=single)
            for run, panel in found.items()
        }
    if single:
        shown = [panel for panel in found.values() if panel is not None]
    else:
        labels = labels_of(query.runs)
        shown = overlay({labels[run]: [panel] if panel else [] for run, panel in found.items()})
    pictures = [_picture(query, panel, name) for panel in shown]
    return {"rows": list(rows), "coarse": coarse, "pictures": pictures}


def _picture(query: Query, panel: Panel, instrument: str) -> dict[str, Any]:
    head = {
        "id": panel.name or instrument,
        "title": panel.title,
        "group": panel.group,
        "how_to_read": panel.how_to_read,
        "headline": panel.headline,
        "over_steps": panel.over_steps,
    }
    drawn = figure(
        panel,
        style=query.style,
        width=query.width,
        window=query.window,
        density=query.density,
    )
    tag = blake2b(encode([head, drawn]), digest_size=9).hexdigest()
    if query.known.get(panel.name or instrument) == tag:
        return {"id": head["id"], "tag": tag}
    return head | {"tag": tag, "figure": drawn}


def _rows(panel: Panel) -> list[str]:
    return [row for m in panel.marks if isinstance(m, Heat) for row in m.names if row]


def labels_of(runs: Sequence[str]) -> dict[str, str]:
    """Return what runs are called in legends: the name of the file, or its path where two share it."""
    stems = [PurePosixPath(run).stem for run in runs]
    paths = [str(PurePosixPath(run).with_suffix("")) for run in runs]
    return {
        run: stem if stems.count(stem) == 1 else path if paths.count(path) == 1 else run
        for run, stem, path in zip(runs, stems, paths, strict=True)
    }


def of_layers(panel: Panel, layers: frozenset[str], *, lines: bool = True) -> Panel | None:
    """Return a panel with the rows of some layers only; `None` when it has rows, but none of these.

    A row belongs to a layer when it has its name, or is a parameter of it. What has no rows by layer
    stays as it is.

    Args:
        panel: The panel.
        layers: Names of the layers.
        lines: Whether a few rows over steps become lines.
    """
    marks: list[Mark] = []
    label = ""
    for mark in panel.marks:
        if not isinstance(mark, Heat) or not mark.names:
            marks.append(mark)
            continue
        kept = [i for i, row in enumerate(mark.names) if _is_of(row, layers)]
        if not kept:
            return None
        part = replace(mark, values=mark.values[kept], names=tuple(mark.names[i] for i in kept))
        if lines and panel.over_steps and len(kept) <= AS_LINES:
            marks += _as_lines(part)
            label = mark.label
        else:
            marks.append(part)
    if not label:
        return replace(panel, marks=tuple(marks))
    scale = next(m.scale for m in panel.marks if isinstance(m, Heat))
    return replace(panel, marks=tuple(marks), scale=scale, y_label=label)


def _is_of(row: str, layers: frozenset[str]) -> bool:
    return row in layers or row.rpartition(".")[0] in layers


def _as_lines(heat: Heat) -> list[Line]:
    return [
        Line(heat.x, np.asarray(values, float), name, color)
        for name, values, color in zip(heat.names, heat.values, COLORS, strict=False)
    ]
