"""Print what tracking costs: ``make bench``, or ``python -m benchmarks --quick`` for a first look."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # the profiler talks to itself otherwise

import torch
from rich.console import Console

from benchmarks.measuring import growth, interleaved, live_tensors, peak_memory, ratios
from benchmarks.networks import (
    BATCH_SIZE,
    Make,
    Training,
    gpt2,
    mlp,
    resnet18,
    three_c_three_d,
    tiny,
)
from benchmarks.tables import Aim, Row, markdown, terminal
from cockpit import configuration
from cockpit.gradients import MEMORY_BUDGET
from cockpit.quantities import HessMaxEV, HessTrace, InnerTest, NormTest, OrthoTest, Quantity

RESULTS = Path(__file__).parent / "results"
PLAIN = "plain"
GROWTH_STEPS = 200
QUICK_BATCH = 16
"""Samples of ``--quick``; the aims are for more."""


@dataclass(frozen=True)
class Case:
    """A network, what is tracked on it, and what that should cost at most.

    Args:
        title: What the table is called.
        make: Makes the network and a batch.
        sets: Functions that make the tracked quantities, by name.
        repeats: How often each step is timed.
        times: Largest ratio to the plain step's time, by name of the set.
        batch_size: Number of samples that the aims are for.
        memory: Largest peak, as a multiple of that of the plain step, to which the memory budget
            comes.
        products: Largest number of products with the Hessian in a step.
    """

    title: str
    make: Make
    sets: dict[str, Callable[[], list[Quantity]]]
    repeats: int
    times: dict[str, float] = field(default_factory=dict)
    batch_size: int = BATCH_SIZE
    memory: dict[str, float] = field(default_factory=dict)
    products: dict[str, float] = field(default_factory=dict)


CASES = {
    "mlp": Case(
        "784-1000-500-100-10",
        mlp,
        {
            "three gradient tests": lambda: [NormTest(), InnerTest(), OrthoTest()],
            "economy": lambda: configuration("economy"),
        },
        repeats=60,
        times={"three gradient tests": 2.5},
        memory={"economy": 1.5},
    ),
    "3c3d": Case(
        "3c3d (three convolutions, three dense layers, 32 x 32 x 3)",
        three_c_three_d,
        {
            "HessTrace": lambda: [HessTrace(curvature="auto")],
            "HessMaxEV": lambda: [HessMaxEV()],
            "economy": lambda: configuration("economy"),
            "business": lambda: configuration("business"),
            "full": lambda: configuration("full"),
        },
        repeats=20,
        times={"HessTrace": 4, "HessMaxEV": 10},
        products={"HessMaxEV": 8},
    ),
    "resnet18": Case(
        "ResNet-18 of torchvision, 64 x 64 x 3",
        resnet18,
        {"economy": lambda: configuration("economy")},
        repeats=8,
        batch_size=32,
    ),
    "gpt2": Case(
        "GPT-2 of Hugging Face, 4 layers, width 128, context 128",
        gpt2,
        {
            "economy": lambda: configuration("economy"),
            "business": lambda: configuration("business"),
        },
        repeats=8,
        batch_size=32,
    ),
}


def measure(case: Case, repeats: int, warmup: int, batch_size: int = BATCH_SIZE) -> list[Row]:
    """Measure a network with each set, every step tracked, and without any."""
    sets = {PLAIN: lambda: None, **case.sets}
    trainings = {name: Training(case.make, make(), batch_size) for name, make in sets.items()}
    times = interleaved(trainings, repeats, warmup)
    products = {n: statistics.median(products_of(trainings[n])[warmup:]) for n in case.products}
    for training in trainings.values():
        training.close()
    del trainings
    of_plain = ratios(times, PLAIN)
    peaks = {name: peak_of(case.make, make(), batch_size) for name, make in sets.items()}
    rows = []
    for name in sets:
        aims = []
        if name in case.times:
            aims.append(Aim("time", of_plain[name], case.times[name]))
        if name in case.products:
            aims.append(Aim("products", products[name], case.products[name]))
        if name in case.memory:
            limit = case.memory[name] * peaks[PLAIN] + MEMORY_BUDGET
            aims.append(Aim("peak", peaks[name] / 2**20, limit / 2**20))
        low, middle, high = (
            1e3 * q for q in statistics.quantiles(times[name], n=4, method="inclusive")
        )
        rows.append(Row(name, (low, middle, high), of_plain[name], peaks[name], peaks[PLAIN], aims))
    return rows


def products_of(training: Training) -> list[float]:
    """Return how many products with the Hessian each step took."""
    assert training.watch is not None
    return training.watch.run().series("HessMaxEV", "products").tolist()


def peak_of(make: Make, quantities: list[Quantity] | None, batch_size: int) -> int:
    """Return the bytes of all tensors of a training at the worst moment of a step."""
    before = live_tensors()
    training = Training(make, quantities, batch_size)
    training()
    training()
    training.optimizer.zero_grad()  # as the step does, whose profile would not see it
    staying = live_tensors() - before
    peak = peak_memory(training, warmup=0)
    training.close()
    return staying + peak


def growth_of_full() -> dict[str, float]:
    """Return by how many bytes memory grows over tracked steps with the full set."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # fast for so small a network, whatever else the machine does
    training = Training(tiny, configuration("full"), QUICK_BATCH)
    tensors, process = growth(training, GROWTH_STEPS, warmup=GROWTH_STEPS // 4)
    training.close()
    torch.set_num_threads(before)
    return {"steps": GROWTH_STEPS, "tensors": tensors, "process": process}


def main(arguments: Sequence[str]) -> int:
    """Measure, print and keep the results; ``--quick`` takes few repeats."""
    quick = "--quick" in arguments
    console = Console(width=max(110, Console().width))
    machine = {
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    words = ", ".join(f"{key} {value}" for key, value in machine.items())
    console.print(f"Every step is tracked; SGD with momentum; {words}", soft_wrap=True)
    results: dict[str, object] = {"machine": machine}
    text = f"# What tracking costs\n\nEvery step is tracked; SGD with momentum; {words}.\n"
    for name, case in CASES.items():
        size = QUICK_BATCH if quick else case.batch_size
        rows = measure(case, *((2, 1) if quick else (case.repeats, 8)), size)
        batch = f"{size}"
        if quick:
            batch += f" (the aims are for {case.batch_size}, after more steps)"
        title = f"{case.title}, batch {batch}"
        console.print(terminal(title, rows))
        text += f"\n{markdown(title, rows)}"
        results[name] = [asdict(row) for row in rows]
    grown = results["growth"] = growth_of_full()
    line = (
        f"Growth over {GROWTH_STEPS} steps with the full set, on a small network: "
        f"{Aim('bytes of live tensors', grown['tensors'], 0)}; "
        f"process {grown['process'] / 2**20:+.2f} MiB"
    )
    console.print(line, soft_wrap=True)
    RESULTS.mkdir(exist_ok=True)
    stem = RESULTS / ("quick" if quick else "full")
    stem.with_suffix(".json").write_text(json.dumps(results, indent=2), encoding="utf-8")
    stem.with_suffix(".md").write_text(f"{text}\n{line}\n", encoding="utf-8")
    console.print(f"Written to {os.path.relpath(stem)}.json and {os.path.relpath(stem)}.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
