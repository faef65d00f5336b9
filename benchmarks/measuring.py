"""Steps in turn, and memory that grows."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from torch import Tensor


def _nothing() -> None:
    pass


def interleaved(
    steps: Mapping[str, Callable[[], None]],
    repeats: int,
    warmup: int = 5,
    tick: Callable[[], None] = _nothing,
) -> dict[str, list[float]]:
    """Time several steps in turn, A B C A B C ..., so that the machine's moods meet all alike.

    Args:
        steps: What is timed, by name.
        repeats: How often.
        warmup: How often before that, untimed.
        tick: Called after every step, outside of the time that is taken.

    Returns:
        The seconds of every repeat, by name.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(warmup + repeats):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds = time.perf_counter() - start
            if repeat >= warmup:
                times[name].append(seconds)
            tick()
    return times


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


def growth(
    step: Callable[[], None], steps: int, warmup: int, settle: Callable[[], object] = int
) -> tuple[int, int]:
    """Return by how many bytes the live tensors, and the whole process, grow over some steps.

    Args:
        step: Makes a step.
        steps: How many of them.
        warmup: How many before.
        settle: Waits for other threads. Looking at all objects takes hold of theirs for a moment, and
            what SQLite's thread let go of in that moment would be let go of in this one.
    """
    for _ in range(warmup):
        step()
    settle()
    tensors, process = live_tensors(), process_memory()
    for _ in range(steps):
        step()
    settle()
    return live_tensors() - tensors, process_memory() - process
