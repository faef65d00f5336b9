"""The slopes of the loss at both ends of an update."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.needs import Moment, Next, Observation, OfUpdate
from cockpit.engine.step import NotChecked, PerParameter, Step
from cockpit.quantities.quantity import Quantity


@dataclass(frozen=True)
class SlopeAtStart(OfUpdate):
    """∇_p L·d_p with the gradient as the optimizer got it and the update that follows, per parameter `[]`."""

    gradient = True
    forward = False

    def observe(self, step: Step, update: PerParameter) -> PerParameter:
        """Return the products."""
        return _products(step, update)


@dataclass(frozen=True)
class SlopeAtEnd(Observation):
    """∇_p L·d_p with the gradient after the backward pass and the update that led here, per parameter `[]`.

    With ``info["grad_scaler"]``, of the gradient without that scaler's factor.
    """

    moment = Moment.EXIT
    forward = False

    def observe(self, step: Step) -> PerParameter:
        """Return the products."""
        if step.previous_update is None:
            raise NotChecked("the update that led here is not known", usual=True)
        products = _products(step, step.previous_update)
        scaler = step.info.get("grad_scaler")
        if scaler is None:
            return products
        return PerParameter((n, p / scaler.scale(torch.ones_like(p))) for n, p in products.items())


def _products(step: Step, update: PerParameter) -> PerParameter:
    """Return the products of the gradients that are there with an update; 0 where there is none."""
    grads = ((name, step.parameters[name].grad, d) for name, d in update.items())
    return PerParameter((n, d.new_zeros(()) if g is None else _dot(g, d)) for n, g, d in grads)


def _dot(grad: Tensor, update: Tensor) -> Tensor:
    grad, update = grad.detach().reshape(-1), update.reshape(-1)
    if grad.is_sparse:
        grad = grad.to_dense()
    if grad.dtype != update.dtype or grad.dtype not in (torch.float32, torch.float64):
        grad, update = grad.float(), update.float()  # half precision would lose the small terms
    return torch.dot(grad, update)


@dataclass(frozen=True)
class UpdateSlopes(Quantity):
    r"""Slopes of the loss along the update, where it begins and where it ends.

    Formula: ``start`` :math:`= \nabla L_t \cdot d`, with the gradient as the optimizer got it, ``end``
    :math:`= \nabla L_{t+1} \cdot d`, on the next mini-batch, and ``ratio`` :math:`= -` end / start, with
    the update :math:`d = \theta_{t+1} - \theta_t`. Stored under t. On a parabola the ratio is `Alpha`,
    without its individual gradients; the one mini-batch that d comes from makes the start steeper than it is
    on all data.

    How to read it: −1 where the update changed nothing about the slope, 0 where it ended in the minimum
    along its line, 1 where it ended on the other side at the same height. Single values are noisy; read
    the ratio of sums. A start above 0 is a step uphill, which momentum makes now and then.

    Source: Mutschler & Zell (2020), arXiv:1903.11991, the two slopes; Cohen et al. (2021),
    arXiv:2103.00065, for the edge at which the ratio passes 1.

    With accumulation: both slopes are those of whole batches.
    """

    start = SlopeAtStart()
    end = Next(SlopeAtEnd())

    def compute(self, step: Step) -> dict[str, Tensor]:
        """Return ``start``, ``end`` and ``ratio``, each `[]`."""
        start, end = step[self.start].total(), step[self.end].total()
        return {"start": start, "end": end, "ratio": -end / start}
