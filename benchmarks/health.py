"""What the doctor's set of quantities costs, tracked at every step and at an interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from benchmarks.cases import CASES, PERIOD, preset
from benchmarks.costs import PLAIN, Group, Tracked, rows_of
from benchmarks.rows import Row
from benchmarks.tables import Aim, Section, Table
from cockpit import configuration
from cockpit.schedules import linear

HEALTH = "health"
SELDOM = f"health, every {PERIOD}th step"

LIMIT = 1.10
"""What a training may take with the set at an interval, as a multiple of the time without."""

REPEATS = {"mlp": (40, 20), "3c3d": (10, 6), "transformer": (6, 3)}
"""How often a step and a period are timed, by the network of `CASES`."""

HEAD = ("network", "batch", "tracked", "step [ms]", "quartiles", "x plain", "quartiles ", "aim")


@dataclass(frozen=True)
class Cost:
    """What tracking the set costs on a network.

    Args:
        network: What the network is called.
        batch_size: Number of samples.
        row: The time of a step, on average over a period where it is tracked at an interval.
    """

    network: str
    batch_size: int
    row: Row

    def cells(self) -> tuple[str, ...]:
        """Return the words of the table's row."""
        time, ratio = self.row.milliseconds, self.row.ratio
        return (
            self.network,
            f"{self.batch_size}",
            self.row.tracked,
            f"{time.median:.1f}",
            f"{time.low:.1f}-{time.high:.1f}",
            f"{ratio.median:.3f}",
            f"{ratio.low:.3f}-{ratio.high:.3f}",
            "; ".join(aim.verdict for aim in self.row.aims),
        )


def costs(quick: bool = False, tick: Callable[[], None] = lambda: None) -> list[Cost]:
    """Measure each network without the set, with it at every step, and with it at an interval.

    Args:
        quick: Whether small batches and few repeats will do.
        tick: Called from time to time.
    """
    found = []
    for name, (steps, periods) in REPEATS.items():
        case, title = CASES[name], CASES[name].title.partition(" (")[0]
        always = Group({HEALTH: preset(HEALTH)}, steps, warmup=5, with_memory=False)
        seldom = Tracked(lambda: configuration(HEALTH, linear(PERIOD)), LIMIT, every=PERIOD)
        period = Group({SELDOM: seldom}, periods, warmup=1, steps=PERIOD, with_memory=False)
        size = case.samples(quick)
        for group in (always, period):
            rows = rows_of(case, group, size, quick, tick)
            found += [Cost(title, size, row) for row in rows if row.tracked != PLAIN]
    return found


def measured(quick: bool, tick: Callable[[], None]) -> Section:
    """Measure what the set costs, and return what is shown of it."""
    found = costs(quick, tick)
    table = Table(
        'The doctor\'s set of quantities, configuration("health")',
        HEAD,
        [cost.cells() for cost in found],
        ("network", "tracked", "aim"),
        notes=(f"Of the set at an interval, {PERIOD} steps are timed as a whole.",),
        optional=("quartiles ", "quartiles", "batch", "step [ms]"),
    )
    aims = [
        Aim(f"{cost.network}: {cost.row.tracked}, {aim.what}", aim.value, aim.limit)
        for cost in found
        for aim in cost.row.aims
    ]
    return Section([table], aims, {"rows": [asdict(cost) for cost in found]})
