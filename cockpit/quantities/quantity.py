"""What a quantity is: settings, the needs it declares, and one pure computation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from cockpit.engine.step import Step
from cockpit.errors import InvalidArgument
from cockpit.gradients import BatchGradTransforms
from cockpit.schedules import default, is_due
from cockpit.transforms import Need, Transform


@dataclass(frozen=True)
class Outcome:
    """A value with more to it than `Cockpit.get_output` returns.

    Args:
        value: What `Cockpit.get_output` returns and plots show first.
        details: Further values by key, which go to the run file only.
        basis: What the value was computed from, in words; an event of the run file says so whenever
            it changes.
    """

    value: Any
    details: Mapping[str, Any]
    basis: str = ""


@dataclass(frozen=True)
class Quantity:
    """Base of all quantities: a value made of settings.

    A subclass declares what it needs as class attributes and computes from it::

        @dataclass(frozen=True)
        class MeanSquareNorm(Quantity):
            norms = SquareNorms()

            def compute(self, step):
                return step[self.norms].total().mean()

    Args:
        track_schedule: On which steps it is tracked, a callable ``int -> bool``. Every step unless
            told otherwise.
        verbose: Whether to print the value at each tracked step.
    """

    track_schedule: Callable[[int], bool] = field(default_factory=default)
    verbose: bool = False

    _declared: ClassVar[tuple[Need, ...]] = ()

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Note the needs of a new kind of quantity."""
        super().__init_subclass__(**arguments)
        attributes: dict[str, Any] = {}
        for kind in reversed(cls.__mro__):
            attributes |= vars(kind)
        cls._declared = tuple(value for value in attributes.values() if isinstance(value, Need))

    def needs(self) -> tuple[Need, ...]:
        """Return what `compute` asks for: the class attributes that are needs."""
        return self._declared

    def needs_at(self, global_step: int, memory: Any) -> tuple[Need, ...]:
        """Return what `compute` asks for at a step, given what was remembered of earlier ones.

        Overridden by quantities whose needs change, such as a histogram with a range that adapts.
        """
        return self.needs()

    def remember(self, step: Step) -> Any:
        """Return what to hand to later steps: a value that can be saved, such as numbers in a dict.

        It is called once for each step that is computed, before `compute`. What was remembered
        when the step began is ``step.memory``; a quantity itself holds no state.
        """
        return step.memory

    def compute(self, step: Step) -> Any:
        """Return the value at a step, from the step's values of the needs alone.

        That is a number, a tensor, a `PerParameter` of these, a dict of all these, or an `Outcome`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no compute(step).")

    def is_due(self, global_step: int) -> bool:
        """Whether it is tracked at a step."""
        return is_due(self.track_schedule, global_step)

    def extensions(self, global_step: int) -> list[Any]:
        """Return the BackPACK extensions of a step: its `BatchGradTransforms`, or none.

        Overridden by quantities that need other extensions; these run along in the backward pass.
        """
        transforms = {repr(n): n for n in self.needs() if isinstance(n, Transform)}
        if not transforms or not self.is_due(global_step):
            return []
        return [BatchGradTransforms(transforms)]

    @property
    def name(self) -> str:
        """Name under which it is logged."""
        return type(self).__name__


def require_count(quantity: Quantity, setting: str) -> None:
    """Refuse a setting that is neither None nor at least 1.

    Raises:
        InvalidArgument: if it is neither.
    """
    value = getattr(quantity, setting)
    if value is not None and not value >= 1:
        name = type(quantity).__name__
        raise InvalidArgument(
            f"{name} needs {setting} of at least 1, or None for all, got {value!r}."
        )
