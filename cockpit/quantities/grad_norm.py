"""The norm of the gradient."""

from __future__ import annotations

from dataclasses import dataclass

from cockpit.engine.needs import GradientNorms
from cockpit.engine.step import PerParameter, Step
from cockpit.quantities.quantity import Quantity


@dataclass(frozen=True)
class GradNorm(Quantity):
    r"""Norm of ``parameter.grad`` after the backward pass, for every parameter.

    Formula: :math:`\lVert \partial L / \partial \theta_p \rVert_2`; 0 for a parameter without a
    gradient. It is what the optimizer will find, before clipping.

    How to read it: layers whose norms differ by orders of magnitude do not learn at the same pace;
    a norm that falls to zero in the early layers is a vanishing gradient, one that grows without
    bound an exploding one.

    Source: any textbook; Schneider, Dangel & Hennig (2021), arXiv:2102.06604.

    With accumulation: that of the accumulated gradient, after the last micro-batch.
    """

    norms = GradientNorms()

    def compute(self, step: Step) -> PerParameter:
        """Return the norms, one `[]` per parameter."""
        return step[self.norms]
