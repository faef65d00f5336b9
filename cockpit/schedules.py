"""Schedules say on which steps a quantity is tracked.

A schedule is any callable ``int -> bool``. Those made here are values: they compare by content,
print themselves, and combine with ``|`` (either) and ``&`` (both)::

    linear(interval=10) | at([0, 1, 2])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from cockpit.errors import InvalidArgument, InvalidType

__all__ = ["Schedule", "at", "is_due", "linear", "logarithmic"]


class Schedule:
    """Base of the schedules of this module: a callable from the global step to a bool."""

    def __call__(self, global_step: int) -> bool:
        """Return whether `global_step` is tracked."""
        raise NotImplementedError

    def __or__(self, other: Callable[[int], bool]) -> Schedule:
        return _Either(self, _checked(other))

    def __and__(self, other: Callable[[int], bool]) -> Schedule:
        return _Both(self, _checked(other))

    __ror__ = __or__
    __rand__ = __and__


@dataclass(frozen=True)
class _Either(Schedule):
    first: Callable[[int], bool]
    second: Callable[[int], bool]

    def __call__(self, global_step: int) -> bool:
        return is_due(self.first, global_step) or is_due(self.second, global_step)


@dataclass(frozen=True)
class _Both(Schedule):
    first: Callable[[int], bool]
    second: Callable[[int], bool]

    def __call__(self, global_step: int) -> bool:
        return is_due(self.first, global_step) and is_due(self.second, global_step)


@dataclass(frozen=True)
class _Linear(Schedule):
    interval: int
    offset: int = 0

    def __call__(self, global_step: int) -> bool:
        return global_step >= self.offset and (global_step - self.offset) % self.interval == 0


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


def is_due(schedule: Callable[[int], bool], global_step: int) -> bool:
    """Ask a schedule about a step, and refuse an answer that is neither True nor False.

    Raises:
        InvalidType: if the schedule returns something that is not a bool. (``None``, say, is what a
            function without a ``return`` gives, and would silently track nothing.)
    """
    answer = schedule(global_step)
    if isinstance(answer, bool):
        return answer
    if type(answer).__name__ in ("bool_", "bool"):  # numpy's bool, without importing numpy
        return bool(answer)
    raise InvalidType(
        f"The schedule {schedule!r} returned {answer!r} for step {global_step}, which is no bool. "
        "A schedule is a callable that takes the global step and returns True or False, "
        "such as cockpit.schedules.linear(interval=10)."
    )


def _checked(schedule: Callable[[int], bool]) -> Callable[[int], bool]:
    if not callable(schedule):
        raise InvalidType(
            f"Schedules combine with schedules or other callables int -> bool, got {schedule!r}."
        )
    return schedule
