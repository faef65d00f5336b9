"""Print what tracking costs: ``make bench``."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # the profiler talks to itself otherwise

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import interleaved, peak_memory, ratios, resident_memory
from benchmarks.networks import Training, mlp
from cockpit import configuration
from cockpit.gradients import MEMORY_BUDGET
from cockpit.quantities import InnerTest, NormTest, OrthoTest, Quantity

RESULTS = Path(__file__).parent / "results"
REPEATS = 60


def tests() -> list[Quantity]:
    """Return the three gradient tests."""
    return [NormTest(), InnerTest(), OrthoTest()]


SETS = {"plain": None, "three gradient tests": tests, "economy": lambda: configuration("economy")}
LIMITS = {"three gradient tests": 2.5}


def time_of_steps(repeats: int) -> list[dict[str, object]]:
    """Measure the sets on the MLP, every step tracked."""
    trainings = {name: Training(mlp, make and make()) for name, make in SETS.items()}
    times = interleaved(trainings, repeats)
    for training in trainings.values():
        training.close()
    of_plain = ratios(times, "plain")
    return [
        {
            "set": name,
            "median_ms": 1e3 * statistics.median(times[name]),
            "quartiles_ms": [1e3 * q for q in statistics.quantiles(times[name], n=4)],
            "ratio": of_plain[name],
            "limit": LIMITS.get(name),
        }
        for name in trainings
    ]


def memory_of_steps() -> dict[str, float]:
    """Measure the peak of a plain step and of one with the economy set, with all that stays between steps."""
    peaks = {}
    for name in ("plain", "economy"):
        make = SETS[name]
        training = Training(mlp, make and make())
        peak = peak_memory(training)
        state = [v for s in training.optimizer.state.values() for v in s.values() if v is not None]
        staying = [training.x, *training.model.parameters(), *state]
        if training.watch is not None:
            staying += [*(training.watch._engine.start or {}).values()]
            staying += [*(training.watch._engine._update or {}).values()]
        peaks[name] = (peak + resident_memory(staying)) / 2**20
        training.close()
    peaks["limit"] = 1.5 * peaks["plain"] + MEMORY_BUDGET / 2**20
    return peaks


def main(arguments: Sequence[str]) -> int:
    """Measure, print and keep the results; ``--quick`` takes few repeats."""
    console = Console()
    steps = time_of_steps(5 if "--quick" in arguments else REPEATS)
    memory = memory_of_steps()
    machine = {
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    table = Table(title="784-1000-500-100-10, batch 128, SGD with momentum, every step tracked")
    for column in ("tracked", "median [ms]", "quartiles [ms]", "times the plain step", "aim"):
        table.add_column(column, justify="left" if column == "tracked" else "right")
    for row in steps:
        low, _, high = row["quartiles_ms"]  # type: ignore[misc]
        aim = f"<= {row['limit']}" if row["limit"] else ""
        table.add_row(
            str(row["set"]),
            f"{row['median_ms']:.2f}",
            f"{low:.2f}-{high:.2f}",
            f"{row['ratio']:.2f}",
            aim,
        )
    console.print(table)
    console.print(
        f"Peak memory: plain {memory['plain']:.1f} MiB, economy {memory['economy']:.1f} MiB "
        f"(aim: <= 1.5 x plain + budget = {memory['limit']:.1f} MiB), that is "
        f"{memory['economy'] / memory['plain']:.2f} times the plain step."
    )
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()))
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "mlp.json"
    path.write_text(
        json.dumps({"machine": machine, "steps": steps, "memory_mib": memory}, indent=2)
    )
    console.print(
        f"Written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
