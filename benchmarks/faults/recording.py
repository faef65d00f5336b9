"""One run: trained, watched, and written down."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.faults.kinds import BY_NAME
from benchmarks.faults.splits import HEALTHY, Planned
from benchmarks.faults.statistics import BaselineStatistics
from benchmarks.faults.training import Setup, train
from cockpit import Cockpit, CockpitWarning, configuration
from cockpit.quantities import Quantity
from cockpit.quantities.wiring import Wiring
from cockpit.schedules import at, linear

INTERVAL = 10
"""Steps between two that are tracked."""


def tracked() -> list[Quantity]:
    """Return what is tracked: the preset of the doctor, and what the baselines read.

    As with ``doctor=True``, how the training is put together is looked at in the first three steps, too.
    """
    every = linear(INTERVAL)
    chosen = configuration("health", every)
    chosen = [
        replace(one, track_schedule=every | at([0, 1, 2])) if isinstance(one, Wiring) else one
        for one in chosen
    ]
    return [*chosen, BaselineStatistics(every)]


def record(plan: Planned, folder: Path) -> dict[str, Any]:
    """Train, and write the run file and what is known of the run beside it.

    Returns:
        What is known of the run.
    """
    torch.set_num_threads(1)
    setup, injected = plan.setup()
    path = folder / f"{plan.name}.db"
    unfinished = folder / f".{plan.name}.{os.getpid()}.db"

    def watch(setup: Setup, optimizers: Sequence[torch.optim.Optimizer]) -> Cockpit:
        return Cockpit(setup.model, tracked(), optimizer=optimizers, log=unfinished, seed=plan.seed)

    with warnings.catch_warnings():
        # A fault makes a quantity impossible to compute now and then: that is in the run file.
        warnings.simplefilter("ignore", CockpitWarning)
        curves = train(setup, watch)
    expected = [] if plan.kind == HEALTHY else list(BY_NAME[plan.kind].named)
    known = {
        "file": path.name,
        "half": plan.half,
        "architecture": plan.architecture,
        "kind": plan.kind,
        "variant": plan.variant,
        "optimizer": plan.optimizer,
        "rate": setup.rate,
        "seed": plan.seed,
        "expected": expected,
        "places": list(injected.places),
        "step": injected.step,
        "steps": setup.steps,
        "loss": [finite(value) for value in curves.loss],
        "valid": [[step, *map(finite, values)] for step, *values in curves.valid],
    }
    unfinished.replace(path)
    write(folder / f"{plan.name}.json", json.dumps(known))
    return known


def finite(value: float | None) -> float | str | None:
    """Return a number as JSON has it; those that are not finite in words."""
    return value if value is None or math.isfinite(value) else str(value)


def write(path: Path, text: str) -> None:
    """Write a file so that nobody sees a part of it."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def write_index(folder: Path) -> list[dict[str, Any]]:
    """Write ``index.json``: what is known of all runs in a folder, but for the curves."""
    found = [
        {k: v for k, v in known.items() if k not in ("loss", "valid")} for known in read(folder)
    ]
    write(folder / "index.json", json.dumps(found, indent=1))
    return found


def read(folder: Path) -> Iterable[dict[str, Any]]:
    """Yield what is known of the runs in a folder, by name."""
    for path in sorted(folder.glob("[!.]*.json")):
        if path.name != "index.json":
            yield json.loads(path.read_text(encoding="utf-8"))
