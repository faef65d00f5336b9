"""Times and memory, side by side in one run."""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from torch import Tensor
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
    """Return the largest number of bytes that tensors take at a time during a step, beyond those before it.

    Tensors that were there before and are released in the step go on counting.
    """
    for _ in range(warmup):
        step()
    with _silence(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    current = peak = 0
    for _, change in changes:
        current += change
        peak = max(peak, current)
    return peak


@contextmanager
def _silence() -> Iterator[None]:
    """Drop what native code prints to the standard error: the profiler reports each start and stop."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes that tensors take; what they share counts once, and what has no memory not at all."""
    storages = {}
    for tensor in tensors:
        # A tensor in a transformation of torch.func, or in a compilation.
        with suppress(NotImplementedError, RuntimeError):
            storage = tensor.untyped_storage()
            # A compilation's stand-in for a tensor has a size without memory, and no address.
            if storage.device.type != "meta":
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def live_tensors() -> int:
    """Return the bytes of all tensors that Python can still reach."""
    gc.collect()
    return bytes_of(found for found in gc.get_objects() if issubclass(type(found), Tensor))


def process_memory() -> int:
    """Return the bytes of the process in main memory, 0 where the system does not tell."""
    counts = Path("/proc/self/statm")
    return int(counts.read_text().split()[1]) * os.sysconf("SC_PAGESIZE") if counts.exists() else 0


def growth(step: Callable[[], None], steps: int, warmup: int) -> tuple[int, int]:
    """Return by how many bytes the live tensors, and the whole process, grow over some steps."""
    for _ in range(warmup):
        step()
    tensors, process = live_tensors(), process_memory()
    for _ in range(steps):
        step()
    return live_tensors() - tensors, process_memory() - process
