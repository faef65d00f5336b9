"""Whether memory grows over many steps."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.measuring import growth
from benchmarks.networks import Training, tiny
from benchmarks.tables import Aim, Section, Table
from cockpit import configuration

STEPS, QUICK_STEPS = 200, 20
WARMUP = 50
SAMPLES = 16


def measured(quick: bool, tick: Callable[[], None]) -> Section:
    """Measure by how many bytes memory grows over tracked steps with the full set."""
    steps = QUICK_STEPS if quick else STEPS
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # fast for so small a network, whatever else the machine does
    training = Training(tiny, configuration("full"), SAMPLES)
    assert training.watch is not None
    tensors, process = growth(training, steps, WARMUP, settle=training.watch.get_output)
    training.close()
    torch.set_num_threads(before)
    tick()
    table = Table(
        f"Growth over {steps} steps with the full set, on a small network",
        ("memory", "bytes"),
        [("live tensors", f"{tensors:,}"), ("process", f"{process:,}")],
        ("memory",),
    )
    data = {"steps": steps, "tensors": tensors, "process": process}
    return Section([table], [Aim("growth: bytes of live tensors", tensors, 0)], data)
