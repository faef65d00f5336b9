"""Schedules: which steps they track, how they combine, and that they are values."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cockpit.schedules import at, is_due, linear, logarithmic


def tracked(schedule: object, end: int = 1001) -> list[int]:
    return [step for step in range(end) if is_due(schedule, step)]


def test_linear() -> None:
    assert tracked(linear(3), 10) == [0, 3, 6, 9]
    assert tracked(linear(3, offset=2), 10) == [2, 5, 8]
    assert tracked(linear(5, offset=7), 20) == [7, 12, 17]


def test_at() -> None:
    assert tracked(at([4, 1, 4])) == [1, 4]
    assert tracked(at(range(3))) == [0, 1, 2]


def test_logarithmic() -> None:
    assert tracked(logarithmic(0, 3, steps=4)) == [0, 1, 10, 100, 1000]
    assert tracked(logarithmic(0, 3, steps=4, init=False)) == [1, 10, 100, 1000]
    assert tracked(logarithmic(0, 4, steps=5, base=2, init=False)) == [1, 2, 4, 8, 16]
    assert tracked(logarithmic(1, 1, steps=1, init=False)) == [10]
    steps = tracked(logarithmic(0, 3))
    assert len(steps) < 301  # equal ones count once
    assert np.all(np.diff(np.diff(np.log(steps[60:]))) < 0.05)


@given(st.integers(1, 9), st.integers(0, 9), st.frozensets(st.integers(0, 30)))
def test_combinations(interval: int, offset: int, steps: frozenset[int]) -> None:
    first, second = linear(interval, offset), at(steps)

    def by_hand(step: int) -> bool:
        return step in steps

    for other in (second, by_hand):
        assert tracked(first | other, 31) == sorted({*tracked(first, 31), *steps})
        assert tracked(first & other, 31) == sorted({*tracked(first, 31)} & steps)
        assert tracked(other | first, 31) == tracked(first | other, 31)
        assert tracked(other & first, 31) == tracked(first & other, 31)


def test_schedules_are_values() -> None:
    assert linear(3) == linear(3) != linear(4)
    assert at([1, 2]) == at([2, 1])
    assert logarithmic(0, 2) == logarithmic(0, 2)
    assert len({linear(3) | at([1]), linear(3) | at([1])}) == 1


def test_numpy_booleans_will_do() -> None:
    assert is_due(lambda step: np.bool_(step == 1), 1) is True
