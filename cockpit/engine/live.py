"""The loss and what it came from while their graph is alive, before the user's backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cockpit.curvature import Curvature, Differences, FirstPossible, Hessian, Reevaluation
from cockpit.engine.scale import LossScale

if TYPE_CHECKING:
    from cockpit.engine.step import PerParameter
    from cockpit.gradients import IndividualGradients

Pass = Callable[[], "Sequence[Tensor | None]"]
"""Runs a backward pass, and returns what arrives at the tracked parameters."""


@dataclass(frozen=True, eq=False)
class Live:
    """The loss and what it came from, in their graph.

    Everything in here that is differentiated keeps the graph; nobody holds on to it after entry.

    Args:
        loss: The tensor on which ``backward()`` will be called.
        individual_losses: The losses of the samples, `[N]`, where they were given.
        model: The model, where it was given.
        outputs: What the model returned in its last forward pass, where some quantity asked for it.
        parameters: The tracked parameters by name.
        batch_size: Number of samples N; 0 where it is not known.
        said: What the user says of the loss, ``"mean"`` or ``"sum"``.
        seed: Of the random numbers of this step.
        closure: The user's function that computes the loss of the same mini-batch anew, if there is
            one.
        reduce: Runs a backward pass, and reduces the individual gradients that it brings.
    """

    loss: Tensor
    individual_losses: Tensor | None
    model: nn.Module | None
    outputs: Any
    parameters: Mapping[str, nn.Parameter]
    batch_size: int
    said: str | None
    seed: int
    closure: Callable[[], Tensor] | None
    reduce: Callable[[Pass, Callable[[IndividualGradients], Any]], PerParameter]

    @cached_property
    def reduction(self) -> Tensor | float:
        """r, what the loss is divided by to be the mean loss: 1 for a mean, N for a sum."""
        scale = LossScale(self.loss, self.individual_losses, self.said)
        losses = self.individual_losses
        try:
            if losses is not None and losses.requires_grad and self.loss.requires_grad:
                torch.autograd.grad(self.loss, losses, retain_graph=True, allow_unused=True)
        finally:
            scale.close()
        return scale.reduction(max(1, self.batch_size))

    @cached_property
    def hessian(self) -> Curvature:
        """The Hessian of the mean loss with respect to the tracked parameters, by its products.

        From the graph; or, where that lacks a second derivative and there is a closure, from the
        loss computed anew with the mathematical kernels, and from differences of its gradient.
        """
        # No way may refer to this object, which keeps them, or the graph would await the collector.
        loss, parameters, scale = self.loss, list(self.parameters.values()), 1 / self.reduction
        ways: list[Callable[[], Curvature]] = [lambda: Hessian(loss, parameters, scale)]
        if self.closure is not None:
            again = Reevaluation(self.closure, self.model, self.seed)

            plain = partial(again, differentiable=False)
            ways += [
                lambda: Hessian(again(), parameters, scale),
                lambda: Differences(plain, parameters, scale),
            ]
        return FirstPossible(ways, parameters)

    def generator(self) -> torch.Generator:
        """Return a generator of our own on the parameters' device, in the same state at every call."""
        device = next(iter(self.parameters.values())).device
        return torch.Generator(device=device).manual_seed(self.seed)
