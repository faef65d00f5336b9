"""What tracking a set of quantities costs: time, memory, and how far both are from what they could be."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch

from benchmarks.measuring import interleaved, live_tensors
from benchmarks.networks import BATCH_SIZE, Make, Training
from benchmarks.rows import BOUND, EARLIER, HEAD, OPTIONAL, TIME, Row
from benchmarks.tables import Aim, Section, Table
from cockpit.gradients import MEMORY_BUDGET
from cockpit.profiling.arithmetic import lower_bound
from cockpit.profiling.figures import Figure, ratios
from cockpit.profiling.memory import peak_memory
from cockpit.quantities import HessMaxEV, Quantity

PLAIN = "plain"
SEARCH = HessMaxEV.__name__
"""The quantity whose products with the Hessian are counted."""
QUICK = 8
"""By how much the batches of ``--quick`` are smaller than those that the aims are for."""


@dataclass(frozen=True)
class Tracked:
    """A set of quantities, and what tracking it should cost at most.

    Args:
        quantities: Makes the set.
        time: Largest ratio to the plain step's time.
        memory: Largest peak, as a multiple of that of the plain step, to which the memory budget
            comes.
        products: Largest number of products with the Hessian in a step.
        nanoseconds: Largest time for an element of an individual gradient, beyond `over`.
        over: Name of the set that `nanoseconds` are counted from.
        earlier: What Cockpit 1.0.2 took, as a multiple of the plain step.
        every: Number of steps from one that is tracked to the next.
        backpack: Whether BackPACK is needed.
    """

    quantities: Callable[[], list[Quantity]]
    time: float | None = None
    memory: float | None = None
    products: float | None = None
    nanoseconds: float | None = None
    over: str = PLAIN
    earlier: float | None = None
    every: float = 1
    backpack: bool = False


@dataclass(frozen=True)
class Group:
    """Sets that are measured in turn with each other and with the plain step.

    Args:
        sets: What is tracked, by name.
        repeats: How often each is timed.
        warmup: How often before that, untimed.
        steps: Number of steps that are timed together.
        with_memory: Whether the peak is measured.
    """

    sets: dict[str, Tracked]
    repeats: int
    warmup: int = 3
    steps: int = 1
    with_memory: bool = True


@dataclass(frozen=True)
class Case:
    """A network and what is tracked on it.

    Args:
        title: What the table is called.
        make: Makes the network and a batch.
        groups: What is tracked.
        batch_size: Number of samples that the aims are for.
        notes: Sentences below the table.
    """

    title: str
    make: Make
    groups: tuple[Group, ...]
    batch_size: int = BATCH_SIZE
    notes: tuple[str, ...] = ()

    def samples(self, quick: bool) -> int:
        """Return the number of samples that are measured."""
        return self.batch_size // QUICK if quick else self.batch_size


def measured(case: Case, quick: bool, tick: Callable[[], None]) -> Section:
    """Measure a network, and return what is shown of it."""
    batch_size = case.samples(quick)
    rows = [row for group in case.groups for row in rows_of(case, group, batch_size, quick, tick)]
    kept = [row for i, row in enumerate(rows) if row.tracked != PLAIN or i == 0]
    batch = f"{batch_size}"
    if quick:
        batch += f" (the aims are for {case.batch_size}, after more steps)"
    notes = [BOUND, *([EARLIER] if any(row.earlier for row in kept) else []), *case.notes]
    table = Table(
        f"{case.title}, batch {batch}",
        HEAD,
        [tuple(row.cells()) for row in kept],
        ("tracked", "aims"),
        notes,
        OPTIONAL,
    )
    aims = [
        replace(aim, what=f"{case.title}: {row.tracked}, {aim.what}")
        for row in kept
        for aim in row.aims
    ]
    data = {"title": case.title, "batch_size": batch_size, "rows": [asdict(row) for row in kept]}
    return Section([table], aims, data)


def rows_of(
    case: Case, group: Group, batch_size: int, quick: bool, tick: Callable[[], None]
) -> list[Row]:
    """Measure the sets of a group side by side with the plain step; the plain one comes first."""
    repeats, warmup = (2, 1) if quick else (group.repeats, group.warmup)
    sets = {PLAIN: None, **group.sets}
    with backpack_in_silence():
        trainings, staying = prepared(
            {
                name: partial(training, case.make, tracked, batch_size)
                for name, tracked in sets.items()
            }
        )
        times = interleaved(
            {name: several(each, group.steps) for name, each in trainings.items()},
            repeats,
            warmup,
            tick,
        )
        peaks = {}
        if group.with_memory:
            peaks = {name: peak_of(each, staying[name]) for name, each in trainings.items()}
    tick()
    products = {
        name: statistics.median(found[warmup:])
        for name, each in trainings.items()
        if (found := products_of(each))
    }
    for each in trainings.values():
        each.close()
    elements = batch_size * sum(p.numel() for p in trainings[PLAIN].model.parameters())
    rows = []
    for name, tracked in sets.items():
        row = Row(
            name,
            Figure.of([1e3 * seconds / group.steps for seconds in times[name]]),
            ratios(times[name], times[PLAIN]),
            bound_of(case.make, tracked, batch_size, products.get(name)),
            peaks.get(name),
            peaks.get(PLAIN),
        )
        if tracked is not None:
            beyond = None
            if tracked.nanoseconds is not None:
                beyond = nanoseconds(times[name], times[tracked.over], elements)
            row = replace(
                row, earlier=tracked.earlier, nanoseconds=beyond, products=products.get(name)
            )
            row.aims.extend(aims_of(row, tracked))
        rows.append(row)
    return rows


def training(make: Make, tracked: Tracked | None, batch_size: int) -> Training:
    """Return a training that tracks a set, or none."""
    if tracked is None:
        return Training(make, None, batch_size)
    return Training(make, tracked.quantities(), batch_size, tracked.backpack)


def several(step: Callable[[], None], count: int) -> Callable[[], None]:
    """Return a function that takes some steps."""

    def steps() -> None:
        for _ in range(count):
            step()

    return steps


@contextmanager
def backpack_in_silence() -> Iterator[None]:
    """Drop what PyTorch warns of BackPACK's hooks: that the inputs of the model need no gradient."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        yield


def products_of(training: Training) -> list[float]:
    """Return how many products with the Hessian each step took, if it took any."""
    if training.watch is None or SEARCH not in training.watch.run().quantities:
        return []
    return training.watch.run().series(SEARCH, "products").tolist()


def nanoseconds(times: Sequence[float], rest: Sequence[float], elements: int) -> float:
    """Return the time for an element of an individual gradient, of what takes longer than the rest."""
    beyond = [time - base for time, base in zip(times, rest, strict=True)]
    return 1e9 * statistics.median(beyond) / elements


def bound_of(
    make: Make, tracked: Tracked | None, batch_size: int, products: float | None
) -> float | None:
    """Return what the arithmetic alone takes, as a multiple of the plain step, if all of it is counted."""
    if tracked is None or math.isinf(tracked.every):
        return 1.0
    torch.manual_seed(0)
    problem = make(batch_size)
    found = lower_bound(
        problem.model,
        problem.losses,
        tracked.quantities(),
        products=None if products is None else {SEARCH: products},
    )
    return None if found.not_counted else (tracked.every - 1 + found.ratio) / tracked.every


def prepared(
    makes: Mapping[str, Callable[[], Training]],
) -> tuple[dict[str, Training], dict[str, int]]:
    """Return trainings that have made their first step, and the bytes of what each keeps between steps."""
    trainings, staying = {}, {}
    for name, make in makes.items():
        before = live_tensors()
        trainings[name] = make()
        trainings[name]()
        trainings[name].optimizer.zero_grad()  # as the next step does, before anything else
        staying[name] = live_tensors() - before
    return trainings, staying


def peak_of(training: Training, staying: int) -> int:
    """Return the bytes of all tensors of a training at the worst moment of a step without audit.

    Args:
        training: The training; with a cockpit, every step of it is tracked.
        staying: Bytes of what it keeps between steps, without gradients.
    """
    while (training.step + 1).bit_count() == 1:  # audited are the tracked steps 1, 2, 4, 8, ...
        training()
    training.optimizer.zero_grad()
    return staying + peak_memory(training, warmup=0)


def aims_of(row: Row, tracked: Tracked) -> list[Aim]:
    """Return what should be reached, and what was."""
    aims = []
    if tracked.time is not None:
        aims.append(Aim(TIME, row.ratio.median, tracked.time))
    if tracked.products is not None and row.products is not None:
        aims.append(Aim("products", row.products, tracked.products))
    if tracked.nanoseconds is not None and row.nanoseconds is not None:
        aims.append(Aim("ns/element", row.nanoseconds, tracked.nanoseconds))
    if tracked.memory is not None and row.peak is not None and row.plain_peak is not None:
        limit = tracked.memory * row.plain_peak + MEMORY_BUDGET
        aims.append(Aim("peak", row.peak / 2**20, limit / 2**20))
    return aims
