"""Updates that are lost to rounding."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cockpit.engine.needs import OfUpdate
from cockpit.engine.step import PerParameter, Step
from cockpit.quantities.quantity import Quantity


@dataclass(frozen=True)
class UnchangedShares(OfUpdate):
    """Share of the elements with a gradient that the update left as they were, per parameter `[]`."""

    gradient = True

    def observe(self, step: Step, update: PerParameter) -> PerParameter:
        """Return the shares; NaN for a parameter without a gradient."""
        shares = PerParameter()
        for name, parameter in step.parameters.items():
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            moving = grad.to_dense() != 0 if grad.is_sparse else grad != 0
            shares[name] = (moving & (update[name] == 0)).sum() / moving.sum()
        return shares


@dataclass(frozen=True)
class LostUpdates(Quantity):
    r"""Share of a parameter's elements that have a gradient and yet did not change.

    Formula: :math:`|\{d : g_d \ne 0,\ \theta_d(t+1) = \theta_d(t)\}| / |\{d : g_d \ne 0\}|` for every parameter, with
    the gradient as the optimizer got it. Stored under t. NaN for a parameter whose gradient is zero.

    How to read it: 0 in single precision. In bfloat16 or float16, shares of tens of per cent mean
    that updates are smaller than half the distance to the next number: keep the weights in single
    precision, or round stochastically.

    Source: Zamirai, Zhang, Aberger & De Sa (2020), arXiv:2010.06192.

    With accumulation: one update for the whole batch.
    """

    shares = UnchangedShares()

    def compute(self, step: Step) -> PerParameter:
        """Return the shares, one `[]` per parameter."""
        return step[self.shares]
