"""Schedules say on which steps a quantity is tracked.

A schedule is any callable ``int -> bool``. Those made here are values: they compare by content,
print themselves, and combine with ``|`` (either) and ``&`` (both)::

    linear(interval=10) | at([0, 1, 2])

`budget` leaves the choice to the cockpit, which measures what tracking costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, field
from functools import cached_property

from cockpit.errors import CockpitError, InvalidArgument, InvalidType

__all__ = [
    "Budget",
    "Schedule",
    "at",
    "budget",
    "is_due",
    "linear",
    "logarithmic",
]


class Schedule:
    """Base of the schedules of this module: a callable from the global step to a bool."""

    def __call__(self, global_step: int) -> bool:
        """Return whether `global_step` is tracked."""
        raise NotImplementedError

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The budgets that it consists of, or is."""
        return ()

    def bound(self, decide: Callable[[int], bool]) -> Schedule:
        """Return the same schedule, with somebody who decides for its budgets."""
        return self

    def __or__(self, other: Callable[[int], bool]) -> Schedule:
        return _Either(self, _checked(other))

    def __and__(self, other: Callable[[int], bool]) -> Schedule:
        return _Both(self, _checked(other))

    __ror__ = __or__
    __rand__ = __and__


@dataclass(frozen=True)
class _Two(Schedule):
    first: Callable[[int], bool]
    second: Callable[[int], bool]

    @property
    def budgets(self) -> tuple[Budget, ...]:
        return budgets_of(self.first) + budgets_of(self.second)

    def bound(self, decide: Callable[[int], bool]) -> Schedule:
        return type(self)(_bound(self.first, decide), _bound(self.second, decide))


@dataclass(frozen=True)
class _Either(_Two):
    def __call__(self, global_step: int) -> bool:
        return is_due(self.first, global_step) or is_due(self.second, global_step)


@dataclass(frozen=True)
class _Both(_Two):
    def __call__(self, global_step: int) -> bool:
        return is_due(self.first, global_step) and is_due(self.second, global_step)


@dataclass(frozen=True)
class _Linear(Schedule):
    interval: int
    offset: int = 0

    def __call__(self, global_step: int) -> bool:
        return global_step >= self.offset and (global_step - self.offset) % self.interval == 0


class _Default(_Linear):
    """``linear(1)`` where nobody has asked for it: equal to it, but `is_default`."""

    def __repr__(self) -> str:
        return repr(linear(self.interval, self.offset))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Linear) and astuple(self) == astuple(other)

    __hash__ = _Linear.__hash__


@dataclass(frozen=True)
class _At(Schedule):
    steps: frozenset[int]

    def __call__(self, global_step: int) -> bool:
        return global_step in self.steps


@dataclass(frozen=True)
class _Logarithmic(Schedule):
    start: float
    end: float
    steps: int
    base: float
    init: bool

    @cached_property
    def _tracked(self) -> frozenset[int]:
        span = self.end - self.start
        exponents = (
            self.start + span * i / (self.steps - 1) if self.steps > 1 else self.start
            for i in range(self.steps)
        )
        tracked = {round(self.base**exponent) for exponent in exponents}
        return frozenset(tracked | {0} if self.init else tracked)

    def __call__(self, global_step: int) -> bool:
        return global_step in self._tracked


@dataclass(frozen=True)
class Budget(Schedule):
    """Tracks when it can be afforded; see `budget`.

    Args:
        share: What tracking may take, as a share of the time of the training without it.
    """

    share: float

    def __call__(self, global_step: int) -> bool:
        """Refuse to answer: it takes a cockpit to know what a step costs.

        Raises:
            CockpitError: always.
        """
        raise CockpitError(
            f"budget({self.share}) says nothing of step {global_step} by itself, since a cockpit has to "
            "measure what tracking costs: give the quantity to one, and ask those that it has, "
            "Cockpit(...).quantities."
        )

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """Itself."""
        return (self,)

    def bound(self, decide: Callable[[int], bool]) -> Schedule:
        """Return a schedule that asks somebody else, and looks like this one."""
        return _Decided(self, decide)


@dataclass(frozen=True)
class _Decided(Schedule):
    budget: Budget
    decide: Callable[[int], bool] = field(compare=False)

    def __call__(self, global_step: int) -> bool:
        return self.decide(global_step)

    def __repr__(self) -> str:
        return repr(self.budget)

    @property
    def budgets(self) -> tuple[Budget, ...]:
        return (self.budget,)

    def bound(self, decide: Callable[[int], bool]) -> Schedule:
        return _Decided(self.budget, decide)


def budget(share: float) -> Budget:
    """Track so often that it takes a share of the training time, as the cockpit measures it.

    What the ``with`` blocks take at every step, tracked or not, is paid first, with four fifths of the budget
    at most. Of the rest, quantities with equal budgets get the same part each: what is cheap is tracked
    more often than what is dear. The first steps, of which the time of the training itself is known,
    are not tracked. It combines with other schedules: ``budget(0.05) | at([0])`` tracks step 0 whatever
    it costs, and charges it to the budget.

    Args:
        share: What tracking may take, as a share of the time of the training without it: 0.05 for
            5 %.

    Raises:
        InvalidArgument: if `share` is not a positive number.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < math.inf:
        raise InvalidArgument(
            f"A budget must be a positive share of the training time, such as 0.05 for 5 %, got {share!r}."
        )
    return Budget(float(share))


def linear(interval: int, offset: int = 0) -> Schedule:
    """Track every `interval`-th step, beginning with step `offset`.

    Raises:
        InvalidArgument: if `interval` is not a positive integer, or `offset` is negative.
    """
    if not isinstance(interval, int) or isinstance(interval, bool) or interval < 1:
        raise InvalidArgument(f"interval must be a positive integer, got {interval!r}.")
    if not isinstance(offset, int) or offset < 0:
        raise InvalidArgument(f"offset must be an integer of at least 0, got {offset!r}.")
    return _Linear(interval, offset)


def default() -> Schedule:
    """Return the schedule of a quantity that was given none: every step, unless a cockpit has a budget.

    It is equal to ``linear(1)``. But where ``Cockpit(..., overhead=0.05)`` says what tracking may take,
    that is for the quantities that have this schedule; with ``linear(1)`` they are tracked at every step.
    """
    return _Default(1)


def is_default(schedule: Callable[[int], bool]) -> bool:
    """Whether a schedule is the `default`, rather than one that was asked for."""
    return isinstance(schedule, _Default)


def logarithmic(
    start: float, end: float, steps: int = 300, base: float = 10, init: bool = True
) -> Schedule:
    """Track up to `steps` steps, evenly spaced on a logarithmic scale, more densely early on.

    The steps are ``base**e`` rounded to integers, with `steps` exponents e spread evenly over
    [`start`, `end`], both ends included; equal ones count once. With `init`, step 0 is tracked too.

    Raises:
        InvalidArgument: if `end` is below `start`, or `steps` or `base` is not positive.
    """
    if end < start:
        raise InvalidArgument(f"end must be at least start, got start={start!r} and end={end!r}.")
    if not isinstance(steps, int) or steps < 1:
        raise InvalidArgument(f"steps must be a positive integer, got {steps!r}.")
    if base <= 0:
        raise InvalidArgument(f"base must be positive, got {base!r}.")
    return _Logarithmic(start, end, steps, base, init)


def at(steps: Iterable[int]) -> Schedule:
    """Track exactly the given steps."""
    if isinstance(steps, int):
        raise InvalidType(f"at takes several steps, got {steps!r}. Write at([{steps}]).")
    return _At(frozenset(int(step) for step in steps))


def budgets_of(schedule: Callable[[int], bool]) -> tuple[Budget, ...]:
    """Return the budgets that any schedule consists of."""
    return schedule.budgets if isinstance(schedule, Schedule) else ()


def is_due(schedule: Callable[[int], bool], global_step: int) -> bool:
    """Ask a schedule about a step, and refuse an answer that is neither True nor False.

    Raises:
        InvalidType: if the schedule returns something that is not a bool. (``None``, say, is what a
            function without a ``return`` gives, and would silently track nothing.)
    """
    answer = schedule(global_step)
    if answer is True or answer is False:
        return answer
    if type(answer).__name__ in ("bool_", "bool"):  # numpy's bool, without importing numpy
        return bool(answer)
    raise InvalidType(
        f"The schedule {schedule!r} returned {answer!r} for step {global_step}, which is no bool. "
        "A schedule is a callable that takes the global step and returns True or False, "
        "such as cockpit.schedules.linear(interval=10)."
    )


def _bound(schedule: Callable[[int], bool], decide: Callable[[int], bool]) -> Callable[[int], bool]:
    return schedule.bound(decide) if isinstance(schedule, Schedule) else schedule


def _checked(schedule: Callable[[int], bool]) -> Callable[[int], bool]:
    if not callable(schedule):
        raise InvalidType(
            f"Schedules combine with schedules or other callables int -> bool, got {schedule!r}."
        )
    return schedule
