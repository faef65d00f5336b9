"""Which quantities are due at a step, and how often their schedules are asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from cockpit.agenda import due_at, may_be_due
from cockpit.errors import InvalidType
from cockpit.quantities import GradNorm, Loss, NormTest, Quantity
from cockpit.schedules import at, linear


def asked(schedule: Callable[[int], bool]) -> tuple[Callable[[int], bool], list[int]]:
    """Return a schedule that keeps the steps that it is asked about, and these."""
    steps: list[int] = []

    def ask(step: int) -> bool:
        steps.append(step)
        return schedule(step)

    return ask, steps


def test_each_is_due_by_its_own_schedule() -> None:
    quantities = {"a": Loss(linear(2)), "b": GradNorm(linear(3)), "c": NormTest(at([4]))}
    assert [list(due_at(quantities, step)) for step in range(5)] == [
        ["a", "b"],
        [],
        ["a"],
        ["b"],
        ["a", "c"],
    ]


def test_a_schedule_that_is_shared_is_asked_once() -> None:
    schedule, steps = asked(linear(2))
    quantities = {"a": Loss(schedule), "b": GradNorm(schedule), "c": NormTest(schedule)}
    assert list(due_at(quantities, 4)) == ["a", "b", "c"]
    assert due_at(quantities, 5) == {}
    assert steps == [4, 5]


def test_a_quantity_may_decide_by_itself() -> None:
    @dataclass(frozen=True)
    class Odd(Quantity):
        def is_due(self, global_step: int) -> bool:
            return global_step % 2 == 1

    schedule, steps = asked(linear(2))
    quantities = {"a": Loss(schedule), "b": Odd(schedule)}
    assert [list(due_at(quantities, step)) for step in (0, 1)] == [["a"], ["b"]]
    assert steps == [0, 1]


def test_what_a_schedule_cannot_say_may_be() -> None:
    def ends(step: int) -> bool:
        return [False, True][step]

    assert [bool(may_be_due({"a": Loss(ends)}, step)) for step in (0, 1, 2)] == [False, True, True]
    with pytest.raises(InvalidType, match="no bool"):
        due_at({"a": Loss(lambda step: None)}, 0)  # type: ignore[arg-type,return-value]
