"""Clocks that nobody waits for: moments are marked now, and read when the device has come past them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

WITH_EVENTS = ("cuda", "xpu")
"""Types of devices whose streams take note of the time by themselves."""


class Clock(Protocol):
    """Tells the time between moments."""

    def host(self) -> float:
        """Return the host's time, in seconds."""

    def mark(self) -> Any:
        """Note this moment."""

    def passed(self, moment: Any) -> bool:
        """Whether the device has come past it, so that the time can be told."""

    def seconds(self, start: Any, end: Any) -> float:
        """Return the time between two moments that have passed."""


class HostClock:
    """A clock of the host, for devices that it waits for anyway.

    Args:
        seconds: Tells its time, in seconds.
    """

    def __init__(self, seconds: Callable[[], float] = time.perf_counter) -> None:
        self.host = self.mark = seconds

    def passed(self, moment: float) -> bool:
        """Whether it has passed: always."""
        return True

    def seconds(self, start: float, end: float) -> float:
        """Return the time between two moments."""
        return end - start


class StreamClock:
    """Events in the current stream of a device.

    The time between two of them is the device's where this has more to do than it can, and the host's
    where it waits for the host: in either case that by which the training takes longer.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._backend, self._device = getattr(torch, device.type), device

    def host(self) -> float:
        """Return the host's time, in seconds."""
        return time.perf_counter()

    def mark(self) -> Any:
        """Put an event into the stream."""
        event = self._backend.Event(enable_timing=True)
        event.record(self._backend.current_stream(self._device))
        return event

    def passed(self, moment: Any) -> bool:
        """Whether the device has come past an event; asks without waiting."""
        return bool(moment.query())

    def seconds(self, start: Any, end: Any) -> float:
        """Return the time between two events that have passed."""
        return float(start.elapsed_time(end)) / 1e3


def clock_of(device: torch.device) -> Clock:
    """Return the clock of a device.

    On a CPU it is the processor's time of the training's own thread, which waits for the others where
    there are several: like that on the wall, but other programs on the machine, a stalled loader and a
    breakpoint leave it as it is. (Windows counts it in ticks of 16 ms, which is too coarse.) Devices
    that are neither CPUs nor `WITH_EVENTS` have that on the wall, which sees what the host spends on them.
    """
    if device.type in WITH_EVENTS:
        return StreamClock(device)
    return HostClock(
        time.thread_time if device.type == "cpu" and os.name != "nt" else time.perf_counter
    )
