"""What the run file costs: time on the training's thread, room on the disk, time to read."""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F

from cockpit import Cockpit, open_run
from cockpit.demo.data import fashion_mnist
from cockpit.demo.train import BATCH_SIZE, LEARNING_RATE, SmallCNN
from cockpit.log import Row, RunFile, RunWriter
from cockpit.quantities import GradHist1d, GradHist2d

SCALARS, QUICK_SCALARS = 1_000_000, 50_000
SERIES = 50
"""Numbers of each step."""

HISTOGRAMS, QUICK_HISTOGRAMS = 10_000, 500
"""Histograms of each kind: of the whole network and of its eight parameters, step after step."""
SERIES_OF_HISTOGRAMS = 9

BURST = 20
"""Steps that are handed over before the writer may catch up, which is not timed: the writer works while
a training computes, and none is as fast as a loop that does nothing but record."""


@dataclass(frozen=True)
class Figure:
    """A number that was measured, and what it should not exceed."""

    what: str
    value: float
    unit: str
    limit: float


def measure(quick: bool) -> list[Figure]:
    """Return what a run of scalars and a run of histograms cost.

    Args:
        quick: Whether with a twentieth of the rows, to see that it works.
    """
    scalars = QUICK_SCALARS if quick else SCALARS
    histograms = QUICK_HISTOGRAMS if quick else HISTOGRAMS
    with tempfile.TemporaryDirectory(prefix="cockpit-bench-") as folder:
        return [
            *of_scalars(Path(folder), scalars),
            *of_histograms(Path(folder), -(-histograms // SERIES_OF_HISTOGRAMS)),
        ]


def of_scalars(folder: Path, rows: int) -> Iterator[Figure]:
    """Yield what `rows` numbers cost, `SERIES` a step."""
    path = folder / "scalars.db"
    generator = np.random.default_rng(0)
    numbers = generator.normal(size=(rows // SERIES, SERIES)).tolist()
    seconds = write(
        path,
        ([Row(f"q{place}", number) for place, number in enumerate(step)] for step in numbers),
    )
    yield Figure(f"{rows:,} scalars: training thread", 1e6 * seconds / rows, "µs a row", 20)
    yield Figure(f"{rows:,} scalars: file", path.stat().st_size / rows, "bytes a row", 12)
    for what, limit, wanted in (
        ("one series", 0.2, ["q7"]),
        ("all series", 0.5, [f"q{place}" for place in range(SERIES)]),
    ):
        seconds = median(_read(path, wanted) for _ in range(5))
        yield Figure(f"{rows:,} scalars: open_run and {what}", seconds, "s", limit)


def of_histograms(folder: Path, steps: int) -> Iterator[Figure]:
    """Yield what the histograms of a real training cost, of each kind by itself."""
    path = folder / "training.db"
    train(path, steps)
    with RunFile(path) as file:
        names = {one.quantity for one in file.series()}
    for name in sorted(names):
        of_steps = arrays(path, name)
        again = folder / f"{name}.db"
        seconds = write(again, of_steps)
        rows = [row for step in of_steps for row in step]
        what = f"{len(rows):,} histograms and edges of {name}"
        yield Figure(f"{what}: training thread", 1e6 * seconds / len(rows), "µs a row", 20)
        in_parquet = parquet(of_steps)
        yield Figure(
            f"{what}: file, {again.stat().st_size / len(rows):.0f} bytes each, Parquet (zstd) "
            f"{in_parquet / len(rows):.0f}",
            again.stat().st_size / in_parquet,
            "x Parquet",
            1.2,
        )


def write(path: Path, steps: Iterable[list[Row]]) -> float:
    """Write the rows of steps; return the seconds that handing them over took."""
    seconds, numbered = 0.0, zip(count(), steps)
    with closing(RunWriter(path)) as writer:
        while burst := list(islice(numbered, BURST)):
            begun = time.perf_counter()
            for step, rows in burst:
                writer.record(step, rows)
            seconds += time.perf_counter() - begun
            writer.flush()
    return seconds


def _read(path: Path, quantities: Sequence[str]) -> float:
    begun = time.perf_counter()
    with open_run(path) as run:
        found = [run.series(quantity) for quantity in quantities]
    seconds = time.perf_counter() - begun
    assert all(len(values) > 0 for values in found)
    return seconds


def train(path: Path, steps: int) -> None:
    """Train the demonstration's network on Fashion-MNIST and record all histograms of gradients."""
    data = fashion_mnist()
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    quantities = [GradHist1d(), GradHist2d(keep_individual=True)]
    with Cockpit(model, quantities, optimizer=optimizer, log=path, seed=0) as watch:
        for step in range(steps):
            chosen = torch.randint(len(data.x_train), (BATCH_SIZE,), generator=generator)
            optimizer.zero_grad()
            losses = F.cross_entropy(
                model(data.x_train[chosen]), data.y_train[chosen], reduction="none"
            )
            loss = losses.mean()
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            optimizer.step()


def arrays(path: Path, quantity: str) -> list[list[Row]]:
    """Return the arrays of a quantity, step by step."""
    by_step: dict[int, list[Row]] = {}
    with RunFile(path) as file:
        for one in file.series():
            if one.quantity == quantity and one.kind == "array":
                for _, step, array in file.arrays(one.id):
                    row = Row(quantity, array, one.key, one.parameter, one.detail)
                    by_step.setdefault(step, []).append(row)
    return [by_step[step] for step in sorted(by_step)]


def parquet(steps: Sequence[list[Row]]) -> int:
    """Return the bytes of the same arrays in Parquet with zstd: counts in one file, edges in another.

    They are in the order that suits it best, series by series; shapes are left out.
    """
    import pyarrow as pa
    from pyarrow import parquet

    size = 0
    for kind in (np.int64, np.float64):
        found = sorted(
            ((row.key, row.parameter), step, row.value.ravel())
            for step, rows in enumerate(steps)
            for row in rows
            if isinstance(row.value, np.ndarray) and row.value.dtype == kind
        )
        names = ["/".join(name) for name, _, _ in found]
        table = pa.table(
            {
                "series": pa.array(names).dictionary_encode(),
                "step": [step for _, step, _ in found],
                "value": [values for _, _, values in found],
            }
        )
        stream = io.BytesIO()
        parquet.write_table(table, stream, compression="zstd")
        size += stream.tell()
    return size
