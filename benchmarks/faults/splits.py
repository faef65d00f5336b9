"""The runs of the benchmark, and which half each of them belongs to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

from benchmarks.faults.fault import Injected
from benchmarks.faults.kinds import BY_NAME, KINDS
from benchmarks.faults.training import ARCHITECTURES, OPTIMIZERS, Setup

HALVES = "tuning", "held-out"
VARIANTS = {"tuning": ("a", "b", "c"), "held-out": ("d",)}
SEEDS = {"a": (0, 1, 2), "b": (3, 4, 5), "c": (20, 21, 22), "d": (30, 31, 32)}
"""Seeds of the faulty runs, by variant."""
HEALTHY_SEEDS = {"tuning": (20, 21), "held-out": (30, 31)}
"""Of the healthy runs with all rates in `FACTORS`."""
CHESSBOARD = (0, 1, 2), (3, 4, 5)
"""Of those that the tuning half has more, by the colour of the field, see `_chessboard`."""
HEALTHY = "healthy"
TUNED = {"low": 1 / 3, "best": 1.0, "high": 3.0}
FACTORS = {**TUNED, "lower": 3**-0.5, "higher": 3**0.5}
"""Learning rates of the healthy runs, relative to the best; the tuning half has those in `TUNED` more often."""
RATES = Path(__file__).parent / "rates.json"
"""What ``python -m benchmarks.faults sweep`` has found."""


@cache
def rates() -> dict[str, dict[str, dict[str, float]]]:
    """Return the ``"best"`` learning rates, and the ``"edge"``, by architecture and optimizer."""
    found: dict[str, dict[str, dict[str, float]]] = json.loads(RATES.read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class Planned:
    """One run.

    Args:
        half: One of `HALVES`.
        architecture: What is trained.
        kind: Name of the kind of fault, or ``"healthy"``.
        variant: ``"a"``, ``"b"``, ``"c"`` or ``"d"``; of a healthy run a key of `FACTORS`.
        optimizer: With what.
        seed: Of weights and order.
    """

    half: str
    architecture: str
    kind: str
    variant: str
    optimizer: str
    seed: int

    @property
    def name(self) -> str:
        """What its files are called."""
        parts = self.kind, self.variant, self.architecture, self.optimizer, str(self.seed)
        return "-".join(parts)

    def setup(self) -> tuple[Setup, Injected]:
        """Return the training, with its fault, and where that is."""
        rate, edge = (
            rates()[which][self.architecture][self.optimizer] for which in ("best", "edge")
        )
        if self.kind == HEALTHY:
            rate *= FACTORS[self.variant]
        setup = Setup(self.architecture, self.optimizer, rate, self.seed, edge)
        if self.kind == HEALTHY:
            return setup, Injected()
        change = BY_NAME[self.kind].change(self.variant)
        return setup, change(setup) or Injected()


def planned(half: str) -> list[Planned]:
    """Return the runs of a half: those with the first seed first, so that all kinds are there early."""
    return sorted([*_healthy(half), *_faulty(half)], key=lambda plan: plan.seed)


def _faulty(half: str) -> Iterator[Planned]:
    """Yield three runs of every kind, variant and architecture, with the optimizers in turn.

    A held-out run shares neither variant nor seed with a tuning run.
    """
    for place, kind in enumerate(KINDS):
        for variant in VARIANTS[half]:
            for architecture in kind.architectures(variant):
                for number, seed in enumerate(SEEDS[variant]):
                    optimizer = kind.optimizers[(place + number) % len(kind.optimizers)]
                    yield Planned(half, architecture, kind.name, variant, optimizer, seed)


def _healthy(half: str) -> Iterator[Planned]:
    """Yield the healthy runs: two of every combination of architecture, optimizer and rate."""
    for architecture, optimizer, factor in product(ARCHITECTURES, OPTIMIZERS, FACTORS):
        for seed in HEALTHY_SEEDS[half]:
            yield Planned(half, architecture, HEALTHY, factor, optimizer, seed)
    if half == "tuning":
        yield from _chessboard(half)


def _chessboard(half: str) -> Iterator[Planned]:
    """Yield three more of every combination with a rate in `TUNED`.

    Neighbours have different seeds, so that the two sets of them are spread like the colours of a chessboard.
    """
    cells = product(enumerate(ARCHITECTURES), enumerate(OPTIMIZERS), enumerate(TUNED))
    for (i, architecture), (j, optimizer), (k, factor) in cells:
        for seed in CHESSBOARD[(i + j + k) % 2]:
            yield Planned(half, architecture, HEALTHY, factor, optimizer, seed)
