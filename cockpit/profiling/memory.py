"""How much memory tensors take at the worst moment of a piece of work."""

from __future__ import annotations

import os
import sys
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

Around = Callable[[Hashable], AbstractContextManager[Any]]
"""Makes what is put around a piece of work, which is known by a label."""


class HostMemory:
    """The memory of the host, by what PyTorch's profiler hears of its allocator.

    Memory that was taken before the work and is given back during it goes on counting.
    """

    def peak(self, work: Callable[[], None]) -> int | None:
        """Return by how many bytes memory grows at most while `work` runs."""
        return max(0, *(level for _, level in _levels(_traced(work))))

    def peaks(self, work: Callable[[Around], None]) -> dict[Hashable, int]:
        """Return by how many bytes it grows at most within each piece of `work`, by its label."""
        labels: dict[str, Hashable] = {}

        def around(label: Hashable) -> AbstractContextManager[Any]:
            name = f"cockpit {len(labels)}"
            labels[name] = label
            return record_function(name)

        events = _traced(lambda: work(around))
        levels = _levels(events)
        moments = [moment for moment, _ in levels]
        found: dict[Hashable, int] = {}
        for event in events:
            if event.name() in labels:
                start = event.start_ns()
                first, last = (
                    bisect_left(moments, m) for m in (start, start + event.duration_ns())
                )
                before = levels[first - 1][1] if first else 0
                grown = max((level - before for _, level in levels[first:last]), default=0)
                label = labels[event.name()]
                found[label] = max(found.get(label, 0), grown)
        return found


class DeviceMemory:
    """The memory of a device, by the statistics of its allocator.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._backend, self._device = getattr(torch, device.type), device

    def peak(self, work: Callable[[], None]) -> int | None:
        """Return by how many bytes memory grows at most while `work` runs."""
        before = self._begin()
        work()
        return int(self._backend.max_memory_allocated(self._device)) - before

    def peaks(self, work: Callable[[Around], None]) -> dict[Hashable, int]:
        """Return by how many bytes it grows at most within each piece of `work`, by its label."""
        found: dict[Hashable, int] = {}

        @contextmanager
        def around(label: Hashable) -> Iterator[None]:
            before = self._begin()
            yield
            grown = int(self._backend.max_memory_allocated(self._device)) - before
            found[label] = max(found.get(label, 0), grown)

        work(around)
        return found

    def _begin(self) -> int:
        self._backend.reset_peak_memory_stats(self._device)
        return int(self._backend.memory_allocated(self._device))


class UnknownMemory:
    """That of devices that do not tell."""

    def peak(self, work: Callable[[], None]) -> int | None:
        """Do the work; its peak is not known."""
        work()
        return None

    def peaks(self, work: Callable[[Around], None]) -> dict[Hashable, int]:
        """Return nothing."""
        return {}


def memory_of(device: torch.device) -> HostMemory | DeviceMemory | UnknownMemory:
    """Return what measures the memory of a device."""
    if device.type == "cpu":
        return HostMemory()
    if hasattr(getattr(torch, device.type, None), "max_memory_allocated"):
        return DeviceMemory(device)
    return UnknownMemory()


def peak_memory(step: Callable[[], None], warmup: int = 2) -> int:
    """Return the largest number of bytes that tensors on the host take at a time during a step, beyond those before it.

    Tensors that were there before and are released in the step go on counting.

    Args:
        step: The step.
        warmup: How often it is made before it is looked at.
    """
    for _ in range(warmup):
        step()
    peak = HostMemory().peak(step)
    assert peak is not None
    return peak


def _traced(work: Callable[[], None]) -> list[Any]:
    """Return what the profiler notes of a piece of work."""
    with (
        _silence(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        work()
    return list(profiler.profiler.kineto_results.events())


def _levels(events: list[Any]) -> list[tuple[int, int]]:
    """Return when memory changed, in order, and by how much it had grown by then."""
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    grown = accumulate(change for _, change in changes)
    return [(moment, level) for (moment, _), level in zip(changes, grown, strict=True)]


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
