"""The best learning rate of every architecture and optimizer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.faults.recording import write
from benchmarks.faults.splits import RATES
from benchmarks.faults.training import ARCHITECTURES, OPTIMIZERS, Setup, train


def rounded(rate: float) -> float:
    """Return a rate as it is written."""
    return float(f"{rate:.4g}")


GRIDS = {
    "sgd": [rounded(0.01 * 3**k) for k in range(6)],
    "momentum": [rounded(0.001 * 3**k) for k in range(6)],
    "adamw": [rounded(0.0003 * 3**k) for k in range(5)],
}
SEED = 100
"""That of no run of the benchmark."""
LAST = 20
"""Steps at the end whose mean loss counts."""
GOOD = 0.9
"""Share of the best run's descent that a rate must reach for its third to count as safe."""
BAD = 0.5
"""Share of it that a rate must reach not to be too high."""


class Unwatched:
    """Stands in for a cockpit."""

    def __enter__(self) -> Unwatched:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""

    @contextmanager
    def __call__(self, step: int, **info: Any) -> Iterator[None]:
        """Do nothing."""
        yield

    def log(self, step: int, **metrics: float) -> None:
        """Do nothing."""


def final_loss(architecture: str, optimizer: str, rate: float) -> tuple[float, float]:
    """Return the first loss, and the mean of the last ones; infinite where one is not finite."""
    torch.set_num_threads(1)
    curves = train(
        Setup(architecture, optimizer, rate, SEED), lambda setup, optimizers: Unwatched()
    )
    last = sum(curves.loss[-LAST:]) / LAST
    return curves.loss[0], last if math.isfinite(last) else math.inf


def middle_of_good(rates: list[float], losses: list[float], start: float) -> float:
    """Return the middle of the range of rates that are good.

    Of the rates whose triple still comes down by nine tenths of what the best does, it is the one
    whose worst loss among a third of it, itself and the triple is lowest.

    Args:
        rates: The rates, each three times the one before.
        losses: What they end with.
        start: The loss at the beginning.

    Raises:
        ValueError: if there is none; the grid is too short.
    """
    enough = start - GOOD * (start - min(losses))
    worst = {
        rates[k]: max(losses[k - 1 : k + 2])
        for k in range(1, len(rates) - 1)
        if losses[k + 1] <= enough
    }
    if not worst:
        raise ValueError(f"no rate of {rates} is good with its triple, losses {losses}")
    return min(worst, key=lambda rate: worst[rate])


@dataclass(frozen=True)
class Explored:
    """What learning rates do on an architecture with an optimizer.

    Args:
        architecture: What is trained.
        optimizer: With what.
        best: The middle of the rates that are good.
        edge: The first rate above, each three times the one before, that is too high.
        final: The mean of the last losses by rate.
    """

    architecture: str
    optimizer: str
    best: float
    edge: float
    final: dict[float, float]


def explore(pair: tuple[str, str]) -> Explored:
    """Train an architecture with an optimizer at all rates of its grid, and beyond up to the edge."""
    architecture, optimizer = pair
    final = {}
    for rate in GRIDS[optimizer]:
        start, final[rate] = final_loss(architecture, optimizer, rate)
    best = edge = middle_of_good(list(final), list(final.values()), start)
    enough = start - BAD * (start - min(final.values()))
    while final[edge] <= enough:
        edge = rounded(3 * edge)
        if edge not in final:
            _, final[edge] = final_loss(architecture, optimizer, edge)
    return Explored(architecture, optimizer, best, edge, final)


def write_rates(explored: Iterable[Explored]) -> None:
    """Write what was found of all architectures and optimizers."""
    by_pair = {(one.architecture, one.optimizer): one for one in explored}

    def table(of: Callable[[Explored], Any]) -> dict[str, dict[str, Any]]:
        return {a: {o: of(by_pair[a, o]) for o in OPTIMIZERS} for a in ARCHITECTURES}

    content = {
        "command": "python -m benchmarks.faults sweep",
        "best": table(lambda one: one.best),
        "edge": table(lambda one: one.edge),
        "final loss": table(
            lambda one: {
                f"{rate:g}": round(loss, 4) if math.isfinite(loss) else str(loss)
                for rate, loss in sorted(one.final.items())
            }
        ),
    }
    write(RATES, json.dumps(content, indent=1) + "\n")
