"""Times and memory, side by side in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch.profiler import ProfilerActivity, profile


def interleaved(
    steps: Mapping[str, Callable[[], None]], repeats: int, warmup: int = 5
) -> dict[str, list[float]]:
    """Time several steps in turn, A B C A B C ..., so that the machine's moods meet all alike.

    Returns:
        The seconds of every repeat, by name.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(warmup + repeats):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if repeat >= warmup:
                times[name].append(time.perf_counter() - start)
    return times


def ratios(times: Mapping[str, list[float]], base: str) -> dict[str, float]:
    """Return the median of each step's ratios to the base, repeat by repeat."""
    return {
        name: statistics.median(t / b for t, b in zip(of_step, times[base], strict=True))
        for name, of_step in times.items()
    }


def peak_memory(step: Callable[[], None], warmup: int = 2) -> int:
    """Return the largest number of bytes that tensors take at a time during a step, beyond those before it."""
    for _ in range(warmup):
        step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    current = peak = 0
    for _, change in changes:
        current += change
        peak = max(peak, current)
    return peak


def resident_memory(tensors: list[torch.Tensor]) -> int:
    """Return the bytes of tensors that stay between the steps."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())
