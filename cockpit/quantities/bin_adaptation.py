"""How the range of a histogram follows what it counts.

An adaptation is a value. On the steps of its own schedule it asks, in the same backward pass as the
histogram, for the extremes of what is counted; the range that follows from these holds from the next
histogram on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from cockpit.engine.needs import Moment, Observation
from cockpit.engine.step import PerParameter, Step
from cockpit.errors import InvalidArgument
from cockpit.schedules import is_due, linear
from cockpit.transforms import MinMax, Need

Range = tuple[float, float]


@dataclass(frozen=True)
class ParameterExtremes(Observation):
    """The smallest and the largest value of every parameter, `[2]` each."""

    moment = Moment.ENTRY
    forward = False

    def observe(self, step: Step) -> PerParameter:
        """Return the extremes of all parameters that have elements."""
        return PerParameter(
            (name, torch.stack(torch.aminmax(parameter.detach())))
            for name, parameter in step.parameters.items()
            if parameter.numel()
        )


@dataclass(frozen=True)
class NoAdaptation:
    """Leaves the range as it is."""

    def needs(self, global_step: int) -> tuple[Need, ...]:
        """Return what it asks for at a step: nothing."""
        return ()

    def adapted(self, step: Step, limits: Range) -> Range:
        """Return the range that holds from the next histogram on."""
        return limits


@dataclass(frozen=True)
class BinAdaptation(NoAdaptation):
    """Base of the adaptations that follow extremes.

    Args:
        schedule: On which steps the range adapts, a callable ``int -> bool``. Every step unless told otherwise.
        padding: How much wider than the values the range is, relative to them.
        min_size: The least size of the range.

    Raises:
        InvalidArgument: if `padding` is negative or `min_size` is not positive.
    """

    schedule: Callable[[int], bool] = field(default_factory=lambda: linear(1))
    padding: float = 0.0
    min_size: float = 1e-6

    extremes: ClassVar[Need]
    symmetric: ClassVar[bool]

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.padding < 0 or self.min_size <= 0:
            raise InvalidArgument(
                f"{type(self).__name__} needs padding >= 0 and min_size > 0, got "
                f"padding={self.padding!r} and min_size={self.min_size!r}."
            )

    def needs(self, global_step: int) -> tuple[Need, ...]:
        """Return what it asks for at a step: the extremes, when its schedule says so."""
        return (self.extremes,) if is_due(self.schedule, global_step) else ()

    def adapted(self, step: Step, limits: Range) -> Range:
        """Return the range that holds from the next histogram on.

        Extremes that are not finite leave it as it is.
        """
        if not is_due(self.schedule, step.global_step):
            return limits
        extremes: Any = torch.stack([e.double().cpu() for e in step[self.extremes].values()])
        low, high = _extremes(extremes)
        if not (math.isfinite(low) and math.isfinite(high)):
            return limits
        if self.symmetric:
            center, half = 0.0, max(abs(low), abs(high))
        else:
            center, half = (low + high) / 2, (high - low) / 2
        half = (1 + self.padding) * max(self.min_size / 2, half)
        return center - half, center + half


def _extremes(stacked: Tensor) -> tuple[float, float]:
    return float(stacked[:, 0].amin()), float(stacked[:, 1].amax())


@dataclass(frozen=True)
class GradAbsMax(BinAdaptation):
    """±(1 + padding) · max(min_size / 2, max |g_id|) over all individual gradients."""

    extremes = MinMax()
    symmetric = True


@dataclass(frozen=True)
class ParamAbsMax(BinAdaptation):
    """±(1 + padding) · max(min_size / 2, max |θ_d|) over all parameters."""

    extremes = ParameterExtremes()
    symmetric = True


@dataclass(frozen=True)
class GradMinMax(BinAdaptation):
    """Centre ± (1 + padding) · max(min_size / 2, half the span) of all individual gradients."""

    extremes = MinMax()
    symmetric = False


@dataclass(frozen=True)
class ParamMinMax(BinAdaptation):
    """Centre ± (1 + padding) · max(min_size / 2, half the span) of all parameters."""

    extremes = ParameterExtremes()
    symmetric = False
