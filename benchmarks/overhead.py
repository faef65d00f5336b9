"""Whether a budget is kept: what tracking really takes of a training that was allowed 5 %."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from benchmarks.networks import Make, Training, gpt2, mlp, three_c_three_d
from cockpit import configuration, schedules

BUDGET = 0.05
TOLERANCE = 0.02
"""How far the share that is really taken may be from the budget."""

STEPS = 500
BLOCK = 25
"""Steps that a training makes before the next one has its turn."""

NEIGHBOURS = 1
"""Blocks before and after one whose plain steps say as well what a plain step takes at that time."""

TRIM = 0.05
"""Part of the steps without tracking that is left out at either end: interruptions by the machine."""

PRESETS = ("economy", "full")
PLAIN, AGAIN, ATTACHED = "plain", "plain again", "attached"

NETWORKS: dict[str, tuple[Make, int]] = {
    "mlp": (mlp, 128),
    "3c3d": (three_c_three_d, 16),
    "gpt2": (gpt2, 2),
}
"""Networks with their batch sizes; those of the slow ones are small, for the sake of the many steps."""

QUICK = {"mlp": 32}
"""The networks of a first look, with their batch sizes."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "2147483647",
}
"""One thread, whose time on the processor is that of the step. And glibc keeps freed memory: otherwise it
depends on what happens to lie at the end of the heap whether a training has to fetch its activations from the
system anew at every step, and two that do the same differ by up to 8 %."""


Times = dict[str, tuple[list[float], list[float]]]
"""Of trainings by name: the seconds of each step, the processor's, and on the clock."""


@dataclass(frozen=True)
class Overhead:
    """What tracking took of a training.

    Args:
        network: Which network it was.
        preset: What was tracked on it.
        batch_size: Number of samples.
        steps: How many steps it made.
        budget: What it might take, as a share of the time of the plain training.
        processor: What it took of the processor's time, all threads together, as a share of that of the
            plain training.
        wall: What it took of the time on the clock.
        idle: What a cockpit takes of the processor's time that tracks nothing at all, and measures nothing.
        again: What a second plain training takes beyond the first: how much of the other shares is chance.
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
    again: float
    own: float
    tracked: dict[str, int]

    @property
    def kept(self) -> bool:
        """Whether the budget was kept, by the processor's time, which other programs do not disturb."""
        return abs(self.processor - self.budget) <= TOLERANCE


def measure(
    quick: bool = False, progress: Callable[[str], None] = lambda what: None
) -> list[Overhead]:
    """Train each network without and with a budget, in turn, block by block, in a process of its own.

    Args:
        quick: Whether one network with a small batch will do.
        progress: Told which network comes next.

    Raises:
        CalledProcessError: if a training failed; what it said stands on the error stream.
    """
    batch_sizes = QUICK if quick else {name: size for name, (_, size) in NETWORKS.items()}
    rows = []
    for name, batch_size in batch_sizes.items():
        progress(name)
        command = [sys.executable, "-m", "benchmarks.overhead", name, str(batch_size)]
        done = subprocess.run(
            command, env=os.environ | ENVIRONMENT, stdout=subprocess.PIPE, check=True
        )
        rows += [Overhead(**row) for row in json.loads(done.stdout.splitlines()[-1])]
    return rows


def of_network(
    name: str, batch_size: int, steps: int = STEPS, presets: Sequence[str] = PRESETS
) -> list[Overhead]:
    """Train one network, and return what tracking took with each preset."""
    make = NETWORKS[name][0]
    never = configuration(presets[-1], schedules.at([]))
    trainings = {
        PLAIN: Training(make, None, batch_size),
        AGAIN: Training(make, None, batch_size),
        ATTACHED: Training(make, never, batch_size),
    }
    for preset in presets:
        quantities = configuration(preset, schedules.budget(BUDGET))
        trainings[preset] = Training(make, quantities, batch_size)
    trainings[PLAIN]()  # what is done once in a process is nobody's
    trainings[PLAIN].step = 0
    times = _in_turn(trainings, steps)
    due: dict[str, dict[int, dict[str, object]]] = {AGAIN: {}, ATTACHED: {}}
    for preset in presets:
        trainings[preset].close()
        watch = trainings[preset].watch
        assert watch is not None
        due[preset] = watch.get_output()
    processor, wall = ({w: _taken(times, kind, w, due[w]) for w in due} for kind in (0, 1))
    return [
        Overhead(
            name,
            preset,
            batch_size,
            steps,
            BUDGET,
            processor[preset],
            wall[preset],
            processor[ATTACHED],
            processor[AGAIN],
            watch.overhead,
            dict(Counter(name for values in due[preset].values() for name in values)),
        )
        for preset in presets
        if (watch := trainings[preset].watch) is not None
    ]


def _taken(times: Times, kind: int, which: str, due: Collection[int]) -> float:
    """Return which share a training took beyond the mean of both plain ones, or the second beyond the first."""
    first, second = times[PLAIN][kind], times[AGAIN][kind]
    both = [fmean(pair) for pair in zip(first, second, strict=True)]
    return excess(times[which][kind], first if which == AGAIN else both, due)


def _in_turn(trainings: dict[str, Training], steps: int) -> Times:
    """Train all, block by block, and return the seconds of each step: the processor's, and on the clock."""
    times: Times = {name: ([], []) for name in trainings}
    order = list(trainings)
    for done in range(0, steps, BLOCK):
        for name in order:
            # A pause like that between two blocks is none of a budget's steps: it sees that by itself.
            for _ in range(min(BLOCK, steps - done)):
                starts = time.process_time(), time.perf_counter()
                trainings[name]()
                times[name][0].append(time.process_time() - starts[0])
                times[name][1].append(time.perf_counter() - starts[1])
        order = [*order[1:], order[0]]  # nobody always comes after the same one
    return times


def excess(seconds: Sequence[float], plain: Sequence[float], due: Collection[int]) -> float:
    """Return by which share steps took longer than plain ones.

    Each is compared with the plain steps of its time, so that it does not matter when the machine
    was slow. Steps at which something was due count as they are; the others, like the plain ones, by
    their trimmed mean.

    Args:
        seconds: What they took, in the order of the steps.
        plain: What the steps of the plain training took.
        due: The steps at which something was tracked.
    """
    usual = [_trimmed_mean(_about(plain, step)) for step in range(len(seconds))]
    differences = [took - usually for took, usually in zip(seconds, usual, strict=True)]
    idle = [d for step, d in enumerate(differences) if step not in due]
    total = sum(differences[step] for step in due) + len(idle) * _trimmed_mean(idle)
    return total / sum(usual)


def _about(plain: Sequence[float], step: int) -> Sequence[float]:
    """Return the times of the plain steps in the blocks about a step."""
    block = step // BLOCK
    return plain[max(0, block - NEIGHBOURS) * BLOCK : (block + NEIGHBOURS + 1) * BLOCK]


def _trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean without the largest and the smallest `TRIM` of them, 0 where there are none."""
    left_out = int(TRIM * len(values))
    kept = sorted(values)[left_out : len(values) - left_out]
    return fmean(kept) if kept else 0.0


def described(row: Overhead) -> str:
    """Return what tracking took, in a line."""
    shares = {
        "processor": row.processor,
        "clock": row.wall,
        "own account": row.own,
        "nothing tracked": row.idle,
        "plain again": row.again,
    }
    told = ", ".join(f"{what} {100 * share:.1f} %" for what, share in shares.items())
    verdict = "" if row.kept else "  MISSED"
    return f"{row.network} {row.preset}, batch {row.batch_size}: {told}{verdict}"


def main(arguments: Sequence[str]) -> None:
    """Print the shares; for one network, given with a batch size, as JSON."""
    if arguments:
        name, batch_size = arguments
        print(json.dumps([asdict(row) for row in of_network(name, int(batch_size))]))
        return
    for row in measure():
        print(described(row))
        print("  " + ", ".join(f"{name} {count}" for name, count in row.tracked.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
