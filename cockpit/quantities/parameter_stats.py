"""Statistics of the parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.needs import Moment, Observation, ParameterNorms
from cockpit.engine.step import PerParameter, Step
from cockpit.quantities.quantity import Quantity


@dataclass(frozen=True)
class ParameterMoments(Observation):
    """Standard deviation, mean, smallest and largest value of each parameter, `[4]`."""

    moment = Moment.ENTRY
    forward = False

    def observe(self, step: Step) -> PerParameter:
        """Return the four of each."""
        return PerParameter((name, moments(p.detach())) for name, p in step.parameters.items())


def moments(values: Tensor) -> Tensor:
    """Return standard deviation, mean, minimum and maximum, `[4]`."""
    mean = values.mean()
    # Several times as fast as torch.std_mean.
    std = torch.linalg.vector_norm(values - mean) / math.sqrt(values.numel())
    return torch.stack((std, mean, *torch.aminmax(values)))


@dataclass(frozen=True)
class ParameterStats(Quantity):
    r"""Norm, mean, standard deviation and extremes of every parameter, before the update.

    Formula: over the elements of :math:`\theta_p(t)`, ``norm`` :math:`\lVert \theta_p \rVert_2`,
    ``mean``, ``std`` :math:`\sqrt{\overline{(\theta - \bar\theta)^2}}`, ``min`` and ``max``.

    How to read it: a norm that grows without end asks for weight decay or a smaller step. One that
    falls to zero means that weight decay wins over the gradient. Single large values, ``max`` far
    beyond ``std``, are what low precision loses first.

    Source: any textbook.

    With accumulation: one set of values for the whole batch.
    """

    norms = ParameterNorms()
    moments = ParameterMoments()

    def compute(self, step: Step) -> dict[str, PerParameter]:
        """Return the five by their names, each with one `[]` per parameter."""
        moments = step[self.moments]
        columns = {
            statistic: PerParameter((name, values[place]) for name, values in moments.items())
            for place, statistic in enumerate(("std", "mean", "min", "max"))
        }
        return {"norm": step[self.norms], **columns}
