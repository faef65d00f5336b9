"""What the events of a budget say, and when."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from cockpit.budget.ledger import Ledger

EVENT = "budget"
"""Kind of the events of the run file that say what was chosen."""

NOTICEABLE = 1.5
"""Ratio by which an interval has to change to be noted again."""

SMALL = 0.0005
"""Share of the training time below which something is not worth mentioning."""

GRADIENTS = "individual gradients"
"""Subject of the event that says that their cost is not known as a whole."""

UNKNOWN = (
    "are needed at every step, so there is no step without them to compare with: what is computed from them "
    "is measured, but what it takes to fetch them is not known, and counts as training"
)
"""Of individual gradients."""

Note = Callable[[int, str, str, str], None]
"""Takes an event: the step, its kind, its subject, and a text."""


class Notices:
    """Notes what a budget has chosen, each thing when it is new.

    Args:
        note: Takes the events.
    """

    def __init__(self, note: Note) -> None:
        self._note = note
        self._learned: dict[str, int] = {}  # how often something was learned of each quantity
        self._intervals: dict[str, float] = {}  # that were noted; and what is said only once

    def unknown(self, step: int) -> None:
        """Note, once, that it is not known what it takes to fetch individual gradients."""
        if GRADIENTS not in self._intervals:
            self._intervals[GRADIENTS] = 1.0
            self._note(step, EVENT, GRADIENTS, UNKNOWN)

    def learned(self, step: int, name: str, ledger: Ledger) -> None:
        """Note at which interval a quantity is tracked, where that has changed noticeably."""
        times = self._learned.get(name, 0) + 1
        self._learned[name] = times
        if not ledger.plain or times & (times - 1):  # ever more rarely: costs come and go
            return
        interval, earlier = ledger.intervals()[name], self._intervals.get(name)
        if interval == earlier:
            return
        if earlier is not None and 1 / NOTICEABLE < interval / earlier < NOTICEABLE:
            return
        self._intervals[name] = interval
        self._note(step, EVENT, name, _of_interval(ledger.cost(name), interval))

    def total(
        self,
        step: int,
        steps: int,
        taken: float,
        spent: Mapping[float, float],
        others: float,
        attached: float,
    ) -> None:
        """Note what tracking has taken in the end, as shares of the time of the training.

        Args:
            step: The last step.
            steps: Number of steps.
            taken: All of it.
            spent: What was spent of each budget, by what it allows.
            others: What quantities have taken for which no budget pays.
            attached: What the blocks have taken where nothing is tracked.
        """
        text = f"tracking took {_percent(taken)} of the time of {steps} steps"
        if len(spent) == 1:
            text += f", and {100 * next(iter(spent)):g} % were allowed"
        else:
            pairs = [f"{_percent(part)} of {100 * share:g} %" for share, part in spent.items()]
            text += f"; of what was allowed, {', '.join(pairs)}"
        if others >= SMALL:
            text += f"; {_percent(others)} were taken by quantities with schedules of their own"
        if attached >= SMALL:
            text += f"; {_percent(attached)} by the with blocks at every step, tracked or not"
        self._note(step, EVENT, "overhead", text)

    def untracked(self, step: int, name: str, expected: float, balance: float) -> None:
        """Note that a quantity was not tracked.

        Args:
            step: The last step.
            name: The quantity.
            expected: What it was taken to cost, in plain training steps.
            balance: What it had in the end, in plain training steps.
        """
        text = (
            f"was expected to take about {expected:.2g} training steps, and its part of the budget came to "
            f"{max(0.0, balance):.2g}: it was not tracked; allow more, or give it a schedule of its own"
        )
        self._note(step, EVENT, name, text)

    def state_dict(self) -> dict[str, Any]:
        """Return what has been noted, as plain data."""
        return {"learned": dict(self._learned), "intervals": dict(self._intervals)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what has been noted."""
        self._learned, self._intervals = dict(state["learned"]), dict(state["intervals"])


def _of_interval(seconds: float, interval: float) -> str:
    """Tell what a quantity costs, and how often it is tracked.

    Args:
        seconds: What it usually takes.
        interval: The interval in steps, infinite where nothing is left for it.
    """
    takes = f"takes {1e3 * seconds:.3g} ms a time, and"
    if math.isinf(interval):
        return (
            f"{takes} cannot be afforded: what has a schedule of its own takes all that was allowed"
        )
    if interval > 1:
        return f"{takes} is tracked about every {interval:.0f} steps"
    return f"{takes} is tracked at every step"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
