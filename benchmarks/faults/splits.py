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
SEEDS = {"tuning": (0, 1, 2), "held-out": (3, 4, 5)}
VARIANT = {"tuning": "a", "held-out": "b"}
HEALTHY = "healthy"
FACTORS = {"low": 1 / 3, "best": 1.0, "high": 3.0}
"""Learning rates of the healthy runs, relative to the best."""
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
        variant: ``"a"`` or ``"b"``; of a healthy run a key of `FACTORS`.
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
        kind = BY_NAME[self.kind]
        change = kind.a if self.variant == "a" else kind.b
        return setup, change(setup) or Injected()


def planned(half: str) -> list[Planned]:
    """Return the runs of a half: those with the first seed first, so that all kinds are there early."""
    return sorted([*_healthy(half), *_faulty(half)], key=lambda plan: plan.seed)


def _faulty(half: str) -> Iterator[Planned]:
    """Yield three runs of every kind and architecture, with the optimizers in turn.

    A held-out run shares neither variant nor seed with a tuning run of its kind, nor, where the kind makes
    sense on more than one, the architecture.
    """
    for place, kind in enumerate(KINDS):
        for architecture in kind.split[HALVES.index(half)]:
            for number, seed in enumerate(SEEDS[half]):
                optimizer = kind.optimizers[(place + number) % len(kind.optimizers)]
                yield Planned(half, architecture, kind.name, VARIANT[half], optimizer, seed)


def _healthy(half: str) -> Iterator[Planned]:
    """Yield the healthy runs, three seeds each.

    Architectures, optimizers and rates are split like the squares of a chessboard: a held-out run has
    another combination of the three, as well as another seed, than any tuning run.
    """
    cells = product(enumerate(ARCHITECTURES), enumerate(OPTIMIZERS), enumerate(FACTORS))
    for (i, architecture), (j, optimizer), (k, factor) in cells:
        if (i + j + k) % 2 == HALVES.index(half):
            for seed in SEEDS[half]:
                yield Planned(half, architecture, HEALTHY, factor, optimizer, seed)
