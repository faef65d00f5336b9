"""Whether a budget is kept: what tracking really takes of a training that was allowed 5 %."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.networks import Make, Training, gpt2, mlp, three_c_three_d
from cockpit import configuration, schedules

BUDGET = 0.05
TOLERANCE = 0.02
"""How far the share that is really taken may be from the budget."""

STEPS = 500
BLOCK = 50
"""Steps that a training makes before the next one has its turn."""

PRESETS = ("economy", "full")
PLAIN, ATTACHED = "plain", "attached"

NETWORKS: dict[str, tuple[Make, int]] = {
    "mlp": (mlp, 128),
    "3c3d": (three_c_three_d, 16),
    "gpt2": (gpt2, 2),
}
"""Networks with their batch sizes; those of the slow ones are small, for the sake of the many steps."""

QUICK_NETWORKS: dict[str, tuple[Make, int]] = {"mlp": (mlp, 32)}


@dataclass(frozen=True)
class Overhead:
    """What tracking took of a training.

    Args:
        network: Which network it was.
        preset: What was tracked on it.
        batch_size: Number of samples.
        steps: How many steps it made.
        budget: What it might take, as a share of the time of the plain training.
        processor: What it took of the processor's time, as a share of that of the plain training.
        wall: What it took of the time on the clock.
        idle: What a cockpit takes of the processor's time that tracks nothing at all; a budget has
            no influence on that.
        own: What it took by the cockpit's own account.
        tracked: At how many steps each quantity was tracked.
    """

    network: str
    preset: str
    batch_size: int
    steps: int
    budget: float
    processor: float
    wall: float
    idle: float
    own: float
    tracked: dict[str, int]

    @property
    def kept(self) -> bool:
        """Whether the budget was kept, by the processor's time, which other programs do not disturb."""
        return abs(self.processor - self.budget) <= TOLERANCE


def measure(
    quick: bool = False, progress: Callable[[str], None] = lambda what: None
) -> list[Overhead]:
    """Train each network without and with a budget, in turn, block by block.

    Args:
        quick: Whether one network with a small batch will do.
        progress: Told which network comes next.
    """
    rows = []
    for name, (make, batch_size) in (QUICK_NETWORKS if quick else NETWORKS).items():
        progress(name)
        rows += of_network(name, make, batch_size, STEPS)
    return rows


def of_network(
    name: str, make: Make, batch_size: int, steps: int, presets: tuple[str, ...] = PRESETS
) -> list[Overhead]:
    """Train one network, and return what tracking took with each preset."""
    trainings = {
        PLAIN: Training(make, None, batch_size),
        ATTACHED: Training(make, configuration(presets[-1], schedules.at([])), batch_size),
    }
    for preset in presets:
        quantities = configuration(preset, schedules.budget(BUDGET))
        trainings[preset] = Training(make, quantities, batch_size)
    trainings[PLAIN]()  # what is done once in a process is nobody's
    trainings[PLAIN].step = 0
    processor: Counter[str] = Counter()
    wall: Counter[str] = Counter()
    for _ in range(0, steps, BLOCK):
        for which, training in trainings.items():
            # A pause like that between two blocks is none of a budget's steps: it sees that by itself.
            starts = time.process_time(), time.perf_counter()
            for _ in range(BLOCK):
                training()
            processor[which] += time.process_time() - starts[0]
            wall[which] += time.perf_counter() - starts[1]
    rows = []
    for preset in presets:
        training = trainings[preset]
        training.close()
        assert training.watch is not None
        rows.append(
            Overhead(
                name,
                preset,
                batch_size,
                steps,
                BUDGET,
                processor[preset] / processor[PLAIN] - 1,
                wall[preset] / wall[PLAIN] - 1,
                processor[ATTACHED] / processor[PLAIN] - 1,
                training.watch.overhead,
                _tracked(training.watch.get_output()),
            )
        )
    return rows


def _tracked(output: dict[int, dict[str, object]]) -> dict[str, int]:
    return dict(Counter(name for values in output.values() for name in values))


def described(row: Overhead) -> str:
    """Return what tracking took, in a line."""
    shares = {
        "processor": row.processor,
        "clock": row.wall,
        "own account": row.own,
        "nothing tracked": row.idle,
    }
    told = ", ".join(f"{what} {100 * share:.1f} %" for what, share in shares.items())
    verdict = "" if row.kept else "  MISSED"
    return f"{row.network} {row.preset}, batch {row.batch_size}: {told}{verdict}"


def main() -> None:
    """Print the shares."""
    for row in measure():
        print(described(row))
        print("  " + ", ".join(f"{name} {count}" for name, count in row.tracked.items()))


if __name__ == "__main__":
    main()
