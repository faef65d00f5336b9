"""A row of the tables of costs: one set of quantities on one network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.tables import Aim
from cockpit.profiling.figures import Figure

TIME = "x plain"
"""What the aims of time are called, after the column of the table."""
EARLIER = (
    "Cockpit 1.0.2: measured with BackPACK 1.7.1 and torch 2.14 on two threads, batch 128, every step "
    "tracked, as multiples of its own plain step; not measured again here."
)
BOUND = (
    "bound: what the arithmetic alone would take, as a multiple of the plain step, if every "
    "multiply-add went as fast as those of the plain step, with the number of products with the Hessian "
    "that there were (blank: BackPACK's arithmetic is not counted); reached: the bound's share of the "
    "time."
)


@dataclass(frozen=True)
class Row:
    """The cost of tracking one set of quantities.

    Args:
        tracked: Name of the set.
        milliseconds: Of a step; where only some are tracked, of all steps on average.
        ratio: To the plain step, repeat by repeat.
        bound: What the arithmetic alone takes, as a multiple of the plain step.
        peak: Bytes of all tensors at the worst moment of a step.
        plain_peak: The same of the plain step.
        earlier: What Cockpit 1.0.2 took, as a multiple of the plain step.
        nanoseconds: For an element of an individual gradient, of what comes to the rest.
        products: Number of products with the Hessian in a step.
        aims: What should be reached.
    """

    tracked: str
    milliseconds: Figure
    ratio: Figure
    bound: float | None = None
    peak: int | None = None
    plain_peak: int | None = None
    earlier: float | None = None
    nanoseconds: float | None = None
    products: float | None = None
    aims: list[Aim] = field(default_factory=list)

    @property
    def reached(self) -> float | None:
        """The share of the bound in what was measured."""
        return None if self.bound is None else self.bound / self.ratio.median

    def cells(self) -> Iterator[str]:
        """Yield the words of the table's row."""
        time, ratio = self.milliseconds, self.ratio
        yield self.tracked
        yield f"{time.median:.1f}"
        yield f"{time.low:.1f}-{time.high:.1f}"
        yield f"{ratio.median:.3f}" if ratio.median < 1.2 else f"{ratio.median:.2f}"
        yield f"{ratio.low:.2f}-{ratio.high:.2f}"
        yield "" if self.bound is None else f"{self.bound:.2f}"
        yield "" if self.reached is None else share(self.reached)
        yield "" if self.earlier is None else f"{self.earlier:g}"
        yield "" if self.peak is None else f"{self.peak / 2**20:.1f}"
        yield "" if not (self.peak and self.plain_peak) else f"{self.peak / self.plain_peak:.2f}"
        yield "\n".join(aim.verdict if aim.what == TIME else str(aim) for aim in self.aims)


def share(value: float) -> str:
    """Return a share in percent."""
    return f"{value:.0%}" if value >= 0.1 else f"{value:.1%}"


HEAD = (
    "tracked",
    "step [ms]",
    "quartiles",
    "x plain",
    "quartiles ",
    "bound",
    "reached",
    "1.0.2",
    "peak [MiB]",
    "x plain ",
    "aims",
)

OPTIONAL = (
    "quartiles ",
    "quartiles",
    "x plain ",
    "peak [MiB]",
    "1.0.2",
    "step [ms]",
    "reached",
    "bound",
)
