"""Updates that are lost to rounding."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cockpit.engine.needs import OfUpdate
from cockpit.engine.step import PerParameter, Step
from cockpit.quantities.quantity import Quantity, require_count
from cockpit.quantities.spacing import spaced_elements
from cockpit.transforms import Need


@dataclass(frozen=True)
class UnchangedShares(OfUpdate):
    """Share of the elements with a gradient that the update left as they were, per parameter `[]`.

    Args:
        elements: See `LostUpdates`.
    """

    elements: int | None

    gradient = True
    forward = False

    def observe(self, step: Step, update: PerParameter) -> PerParameter:
        """Return the shares; NaN for a parameter without a gradient."""
        shares = PerParameter()
        for name, parameter in step.parameters.items():
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            grad = grad.to_dense() if grad.is_sparse else grad
            moving = spaced_elements(grad, self.elements) != 0
            unchanged = spaced_elements(update[name], self.elements) == 0
            shares[name] = (moving & unchanged).sum() / moving.sum()
        return shares


@dataclass(frozen=True)
class LostUpdates(Quantity):
    r"""Share of a parameter's elements that have a gradient and yet did not change.

    Formula: :math:`|\{d : g_d \ne 0,\ \theta_d(t+1) = \theta_d(t)\}| / |\{d : g_d \ne 0\}|` for every parameter, with
    the gradient as the optimizer got it. Stored under t. NaN for a parameter whose gradient is zero. Of a
    parameter with more than `elements` elements, evenly spaced ones are looked at, always the same, and
    the share is that among these.

    How to read it: 0 in single precision. In bfloat16 or float16, shares of tens of per cent mean
    that updates are smaller than half the distance to the next number: keep the weights in single
    precision, or round stochastically.

    Source: Zamirai, Zhang, Aberger & De Sa (2020), arXiv:2010.06192.

    With accumulation: one update for the whole batch.

    Args:
        track_schedule: On which steps it is tracked.
        verbose: Whether to print the value.
        elements: How many elements of a parameter are looked at; None for all of them.

    Raises:
        InvalidArgument: if `elements` is below 1.
    """

    elements: int | None = 4096

    def __post_init__(self) -> None:
        """Check the settings."""
        require_count(self, "elements")

    @property
    def shares(self) -> UnchangedShares:
        """The need of these settings."""
        return UnchangedShares(self.elements)

    def needs(self) -> tuple[Need, ...]:
        """Return the shares of these settings."""
        return (self.shares,)

    def compute(self, step: Step) -> PerParameter:
        """Return the shares, one `[]` per parameter."""
        value: PerParameter = step[self.shares]
        return value
