"""The time of a step."""

from __future__ import annotations

import time
from dataclasses import dataclass

from cockpit.engine.step import Step
from cockpit.quantities.quantity import Quantity


@dataclass(frozen=True)
class Time(Quantity):
    r"""The time at which a step was tracked, in seconds since the epoch.

    Formula: ``time.time()`` at the end of the backward pass. The clock of the machine may be set
    back; the run file keeps a monotonic clock for every step beside it.

    How to read it: differences between steps are the time that these took.

    Source: the clock.

    With accumulation: the time at the end of the last backward pass.
    """

    def compute(self, step: Step) -> float:
        """Return the time in seconds."""
        return time.time()
