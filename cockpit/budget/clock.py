"""Clocks that nobody waits for: moments are marked now, and read when the device has come past them."""

from __future__ import annotations

import time
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
    """The clock of the host, for devices that it waits for anyway."""

    def host(self) -> float:
        """Return the host's time, in seconds."""
        return time.perf_counter()

    def mark(self) -> float:
        """Note this moment."""
        return time.perf_counter()

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

    Others than those `WITH_EVENTS` have the host's, which sees what the host spends on them.
    """
    return StreamClock(device) if device.type in WITH_EVENTS else HostClock()
