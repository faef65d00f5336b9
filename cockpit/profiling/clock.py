"""Clocks: of the host, and of devices that work on while the host goes ahead."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

WITH_EVENTS = ("cuda", "xpu")
"""Types of devices whose streams take note of the time by themselves."""


class Clock:
    """The clock of the host, for devices that the host waits for anyway.

    Args:
        wait: Waits until the device has done what it was given.
    """

    def __init__(self, wait: Callable[[], None] = lambda: None) -> None:
        self.wait = wait

    def mark(self) -> Any:
        """Note this moment."""
        self.wait()
        return time.perf_counter()

    def seconds(self, start: Any, end: Any) -> float:
        """Return the time between two marks."""
        return float(end - start)


class StreamClock(Clock):
    """Marks are events in the device's stream, so that nobody waits between them.

    Where the host cannot keep up with the device, the time between two marks is that of the host.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._backend, self._device = getattr(torch, device.type), device
        super().__init__(lambda: self._backend.synchronize(device))

    def mark(self) -> Any:
        """Put an event into the stream that is current."""
        event = self._backend.Event(enable_timing=True)
        event.record(self._backend.current_stream(self._device))
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """Return the time between two events, once the device has come past both."""
        return float(start.elapsed_time(end)) / 1e3


def clock_of(device: torch.device) -> Clock:
    """Return the clock of a device."""
    if device.type in WITH_EVENTS:
        return StreamClock(device)
    if device.type == "mps":
        return Clock(torch.mps.synchronize)
    return Clock()
