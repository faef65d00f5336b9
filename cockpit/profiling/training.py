"""A training step of the user's model, with or without a cockpit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cockpit.cockpit import Cockpit
from cockpit.errors import InvalidArgument, InvalidType

LossesOf = Callable[[], "Tensor | tuple[Tensor, Tensor | None]"]
"""Runs the model on a batch; returns the losses `[N]`, the loss `[]`, or both as (loss, losses)."""


class Training:
    """What happens in one step: gradients to zero, forward, backward, update.

    Args:
        model: The model.
        losses: See `LossesOf`.
        optimizers: What updates it.
        info: What else the cockpit is told of a step.
    """

    def __init__(
        self,
        model: nn.Module,
        losses: LossesOf,
        optimizers: Sequence[Any],
        info: Mapping[str, Any],
    ) -> None:
        self.model, self.optimizers = model, optimizers
        self._losses, self._info = losses, info

    def step(self, watch: Cockpit | None, number: int) -> None:
        """Train one step.

        Args:
            watch: Who looks on; None for a plain step.
            number: Number of the step.
        """

        def evaluate() -> Tensor:
            with torch.enable_grad():
                for optimizer in self.optimizers:
                    optimizer.zero_grad()
                loss, losses = read_outcome(self._losses())
                if watch is None:
                    loss.backward()
                else:
                    with watch(number, loss=loss, individual_losses=losses, info=self._info):
                        loss.backward()
            return loss

        with_closure = [o for o in self.optimizers if needs_closure(o)]
        if not with_closure:
            evaluate()
        for optimizer in self.optimizers:
            if optimizer in with_closure:
                optimizer.step(evaluate)
            else:
                optimizer.step()

    def batch_size(self) -> int:
        """Return the number of samples, as far as the losses tell; otherwise 0."""
        with torch.enable_grad():
            _, losses = read_outcome(self._losses())
        return 0 if losses is None else len(losses)


def needs_closure(optimizer: Any) -> bool:
    """Whether an optimizer evaluates the loss by itself, as L-BFGS does."""
    parameter = inspect.signature(optimizer.step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def read_outcome(outcome: Any) -> tuple[Tensor, Tensor | None]:
    """Return the loss and the losses of the samples, where these are known.

    Raises:
        InvalidType: if it is neither.
        InvalidArgument: if the shape is not that of losses, or there is no graph.
    """
    loss, losses = outcome if isinstance(outcome, tuple) and len(outcome) == 2 else (outcome, None)
    if not isinstance(loss, Tensor):
        raise InvalidType(
            "losses() must run the model and return the losses of the samples, a tensor [N], or the "
            f"loss, a tensor with one element, or both as (loss, losses); got {type(outcome).__name__}."
        )
    if loss.dim() > 1:
        raise InvalidArgument(
            f"losses() must return one loss for each sample, [N], got {list(loss.shape)}. Average over "
            "the other dimensions: losses.flatten(1).mean(1)."
        )
    if not loss.requires_grad:
        raise InvalidArgument(
            "What losses() returned has no graph, so there is nothing to backpropagate. It has to run "
            "the model, without torch.no_grad()."
        )
    return (loss.mean(), loss) if loss.dim() == 1 else (loss, losses)
