"""What the events of a budget say."""

from __future__ import annotations

import math
from collections.abc import Mapping

SMALL = 0.0005
"""Share of the training time below which something is not worth mentioning."""

UNKNOWN = (
    "are needed at every step, so there is no step without them to compare with: what is computed from them "
    "is measured, but what it takes to fetch them is not known, and counts as training"
)
"""Of individual gradients."""


def of_interval(seconds: float, interval: float) -> str:
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


def of_untracked(expected: float, balance: float) -> str:
    """Tell that a quantity was not tracked.

    Args:
        expected: What it was taken to cost, in plain training steps.
        balance: What it had in the end, in plain training steps.
    """
    return (
        f"was expected to take about {expected:.2g} training steps, and its part of the budget came to "
        f"{max(0.0, balance):.2g}: it was not tracked; allow more, or give it a schedule of its own"
    )


def of_total(total: float, spent: Mapping[float, float], idle: float, steps: int) -> str:
    """Tell what tracking has taken in the end, as shares of the time of the training.

    Args:
        total: All of it.
        spent: What was spent of each budget, by what it allows.
        idle: What the with blocks have taken beside it.
        steps: Number of steps.
    """
    text = f"tracking took {_percent(total)} of the time of {steps} steps"
    if len(spent) == 1:
        text += f", and {100 * next(iter(spent)):g} % were allowed"
    else:
        pairs = [f"{_percent(part)} of {100 * share:g} %" for share, part in spent.items()]
        text += f"; of what was allowed, {', '.join(pairs)}"
    others = total - sum(spent.values())
    if others >= SMALL:
        text += f"; {_percent(others)} were taken by quantities with schedules of their own"
    if idle >= SMALL:
        text += (
            f"; {_percent(idle)} more, which no budget pays for, are taken by the with blocks at every step, "
            "tracked or not"
        )
    return text


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
