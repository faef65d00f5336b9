"""Which arrays of a long run are kept: all of the last ones, ever fewer of older ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def superfluous(steps: Sequence[int], keep: int) -> list[int]:
    """Return the steps whose arrays may go.

    The first one and the last `keep` stay. Of the others, one may go where the gap that it leaves is no
    longer than ``2 / keep`` of the time since. With evenly spaced steps, all of the last `keep` stay, every
    second of the `keep` before them, every fourth of the ``2 * keep`` before those, and so on: of `n` arrays
    about ``keep * (1 + log2(n / keep) / 2)``. What is left is thinned further as it gets older, so it does
    not matter how often this is asked.

    Args:
        steps: The steps that have arrays, rising.
        keep: How many of the last ones stay, at least 1.
    """
    gone: list[int] = []
    if len(steps) <= keep + 1:
        return gone
    newest, left = steps[-1], steps[0]
    for step, right in pairwise(steps[1 : len(steps) - keep + 1]):
        if (right - left) * keep <= 2 * (newest - right):
            gone.append(step)
        else:
            left = step
    return gone
