"""What a profile consists of: medians with their spread, and what costs how much."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

TOGETHER = "(all at once)"
"""Stands for a parameter where a need is met for all of them at once."""


@dataclass(frozen=True)
class Figure:
    """What was measured several times.

    Args:
        median: The median.
        low: The lower quartile.
        high: The upper quartile.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        """Return the quartiles of one value or more."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class StepCost:
    """The cost of a whole training step.

    Args:
        seconds: Time of the step.
        ratio: To the plain step, round by round.
        peak: Bytes of all tensors at the worst moment: of the parameters, the buffers, the optimizer's
            state, and what the step adds to these; None where the device does not tell.
    """

    seconds: Figure
    ratio: Figure
    peak: int | None


@dataclass(frozen=True)
class QuantityCost:
    """What one quantity costs.

    Args:
        name: The name under which it is tracked.
        alone: Seconds beyond the plain step where nothing else is tracked.
        saved: Seconds that the tracked step gains where this one is left out.
        alone_peak: Bytes beyond the plain step's peak where nothing else is tracked.
        saved_peak: Bytes that the tracked step's peak loses where this one is left out.
        every: An interval for ``schedules.linear``: with those of all quantities, tracking takes about
            the share of the training time that was asked for, or less.
    """

    name: str
    alone: Figure
    saved: Figure
    alone_peak: int | None
    saved_peak: int | None
    every: int


@dataclass(frozen=True)
class NeedCost:
    """What it costs to meet a need in a tracked step, for all parameters.

    Args:
        need: The need.
        seconds: Time of meeting it.
        peak: Bytes of its result and of what it takes in between, for the worst parameter.
        quantities: Who asks for it.
    """

    need: str
    seconds: Figure
    peak: int | None
    quantities: tuple[str, ...]


@dataclass(frozen=True)
class LayerCost:
    """What it costs to meet one need for one parameter in a tracked step.

    Args:
        parameter: Name of the parameter; `TOGETHER` for what such a need does for all of them at once,
            such as the counting of histograms.
        need: The need.
        seconds: Time of meeting it. What needs share, such as individual gradients that fit into the
            memory budget, counts for the first of them.
        peak: Bytes of its result and of what it takes in between.
    """

    parameter: str
    need: str
    seconds: Figure
    peak: int | None


def differences(more: Iterable[float], less: Iterable[float]) -> Figure:
    """Return by how much one is more than the other, round by round."""
    return Figure.of([a - b for a, b in zip(more, less, strict=True)])


def ratios(values: Iterable[float], base: Iterable[float]) -> Figure:
    """Return one over the other, round by round."""
    return Figure.of([a / b for a, b in zip(values, base, strict=True)])


def intervals(costs: Mapping[str, float], share: float) -> dict[str, int]:
    r"""Return at which intervals things of different costs together take a share of the time.

    With costs :math:`c_q` in units of the plain step, the intervals are :math:`k_q = \lceil \max(1, c_q
    / s) \rceil`, with s such that :math:`\sum_q \min(c_q, s)` is the share: all get the same part of it,
    what is cheaper than its part is had at every step, and what that leaves goes to the others. Among
    all choices it is the one with the largest product of the frequencies. The intervals are rounded up
    to 1, 2 or 5 times a power of ten.

    Args:
        costs: The costs by name, relative to the plain step; what is not positive is free.
        share: Share of the plain step's time.
    """
    left, part = share, share
    ascending = sorted(max(0.0, cost) for cost in costs.values())
    for position, cost in enumerate(ascending):
        part = left / (len(ascending) - position)
        if cost > part:
            break
        left -= cost
    return {name: _round_up(max(0.0, cost) / part) for name, cost in costs.items()}


def _round_up(interval: float) -> int:
    power = 1
    while True:
        for digit in (1, 2, 5):
            if interval <= digit * power:
                return digit * power
        power *= 10
