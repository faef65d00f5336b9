"""What happens to the gradient between the backward pass and the optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cockpit.engine.needs import GradientNorms, Moment, Observation, OfUpdate, norms_of
from cockpit.engine.step import NotChecked, PerParameter, Step
from cockpit.quantities.quantity import Outcome, Quantity


class Seen(NamedTuple):
    """A gradient, and how often it had been written to."""

    grad: Tensor
    version: int

    def is_other(self, grad: Tensor) -> bool:
        """Whether this is another gradient, or one that has been written to since."""
        return grad is not self.grad or grad._version != self.version


@dataclass(frozen=True)
class GradientsAfterPass(Observation):
    """The gradients as the backward pass leaves them, a `Seen` each."""

    moment = Moment.EXIT
    forward = False

    def observe(self, step: Step) -> PerParameter:
        """Return those that are there."""
        grads = ((name, parameter.grad) for name, parameter in step.parameters.items())
        return PerParameter((n, Seen(g, g._version)) for n, g in grads if g is not None)


@dataclass(frozen=True)
class GradientsAtStep(OfUpdate):
    """The gradient that the optimizer got: norm `[]` and largest absolute element `[]`; None if it was left alone."""

    gradient = True
    forward = False

    def observe(self, step: Step, update: PerParameter) -> tuple[Tensor, Tensor] | None:
        """Return both, of all parameters together."""
        grads = {n: p.grad for n, p in step.parameters.items() if p.grad is not None}
        values = [g.coalesce().values() if g.is_sparse else g.detach() for g in grads.values()]
        values = [value for value in values if value.numel()]
        if not values:
            raise NotChecked("no parameter had a gradient when the optimizer stepped", usual=True)
        seen = step[GradientsAfterPass()]
        if not any(name not in seen or seen[name].is_other(g) for name, g in grads.items()):
            return None
        largest = torch.stack([torch.stack(torch.aminmax(v)).abs().amax() for v in values]).amax()
        return torch.linalg.vector_norm(torch.stack(list(norms_of(values)))), largest


@dataclass(frozen=True)
class Clipping(Quantity):
    r"""Norm of the whole gradient after the backward pass, and when the optimizer steps.

    Formula: ``before`` and ``after``, :math:`\sqrt{\sum_p \lVert \nabla_p L \rVert^2}` at both moments; in the
    run file also ``written``, whether a gradient was written to in between: clipping multiplies it in
    place, also by 1; and if so, ``largest``, the largest absolute element when the optimizer steps.

    How to read it: leave that to the doctor. Where the two differ, something in between has changed the
    gradient. Some optimizers write to it themselves, such as those with Nesterov's momentum on a GPU.

    Source: Pascanu, Mikolov & Bengio (2013), arXiv:1211.5063.

    With accumulation: both are those of the accumulated gradient.
    """

    norms = GradientNorms()
    passed = GradientsAfterPass()
    at_step = GradientsAtStep()

    def compute(self, step: Step) -> Outcome:
        """Return ``before`` and ``after``, each `[]`."""
        before = torch.linalg.vector_norm(torch.stack(list(step[self.norms].values())))
        written = step[self.at_step]
        if written is None:
            return Outcome({"before": before, "after": before}, {"written": 0})
        norm, largest = written
        return Outcome({"before": before, "after": norm}, {"largest": largest, "written": 1})
