"""Event files of TensorBoard; needs the extra ``torch-cockpit[tensorboard]``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from cockpit.errors import InvalidArgument, Unsupported
from cockpit.export.format import Format, Told
from cockpit.log import JsonFile, RunFile, Series, open_file
from cockpit.run import Run

__all__ = ["FORMAT"]

PREFIX = "cockpit"
"""First part of every name, as in a training that forwards to TensorBoard."""

PIECES = 100
"""After how many steps somebody is told how far it is."""


def _write(run: Run, folder: Path, table: str, told: Told) -> None:
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise Unsupported(
            "event files need tensorboard. Install it with: "
            "pip install 'torch-cockpit[tensorboard]'"
        ) from error
    from cockpit.integrations.tensorboard import TensorBoardTracker

    if folder.is_file() or (folder.is_dir() and any(folder.glob("events.out.tfevents.*"))):
        raise InvalidArgument(
            f"{folder} is a file, or has event files already, which TensorBoard would draw as one "
            "run with the new ones. Give another folder, or remove them before."
        )
    with open_file(run.path) as file:
        steps, wall, _ = file.steps()
        known = np.isfinite(wall)
        times = dict(zip(steps[known].tolist(), wall[known].tolist(), strict=True))
        with closing(TensorBoardTracker(folder, times)) as tracker:
            for step, values in _scalars(file, told):
                tracker.scalars(step, values)
            for step, name, counts, edges in _histograms(file):
                tracker.histogram(step, name, counts, edges)
            for event in file.events():
                tracker.event(event.step, event.kind, event.subject, event.message)
            for found in file.findings():
                subject = f"{found.code} {found.name}"
                text = f"{found.title}. {found.action}"
                tracker.event(found.step, found.severity, subject, text)


def _scalars(file: RunFile | JsonFile, told: Told) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the numbers of each step by name, without the details."""
    names = {one.id: _name(one, one.key) for one in file.series() if not one.detail}
    ids, steps, values = file.scalars()
    order = np.argsort(steps, kind="stable")
    distinct, starts = np.unique(steps[order], return_index=True)
    for done, rows in enumerate(np.split(order, starts[1:]) if len(order) else []):
        known = ((names.get(int(ids[row])), float(values[row])) for row in rows)
        yield int(distinct[done]), {name: value for name, value in known if name is not None}
        if done % PIECES == 0:
            told(done, len(distinct))
    told(len(distinct), len(distinct))


def _histograms(
    file: RunFile | JsonFile,
) -> Iterator[tuple[int, str, np.ndarray, np.ndarray]]:
    """Yield step, name, counts `[bins]` and edges `[bins + 1]` of one-dimensional histograms."""
    arrays = [one for one in file.series() if one.kind == "array"]
    for one in arrays:
        if one.key != "hist":
            continue
        edges = {
            step: array
            for other in arrays
            if (other.quantity, other.key) == (one.quantity, "edges")
            for _, step, array in file.arrays(other.id)
        }
        for _, step, counts in file.arrays(one.id):
            bounds = edges.get(step)
            if bounds is not None and counts.ndim == 1 and bounds.shape == (len(counts) + 1,):
                yield step, _name(one, ""), counts, bounds


def _name(one: Series, key: str) -> str:
    return "/".join(filter(None, (PREFIX, one.quantity, key, one.parameter)))


FORMAT = Format(
    "tensorboard", "numbers, histograms, events and findings", "-tensorboard", "folder", _write
)
