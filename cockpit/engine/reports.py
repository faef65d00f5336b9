"""What the engine tells whoever runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Result:
    """The value of a quantity at a step, or a `Missing` that says why there is none."""

    global_step: int
    quantity: str
    value: Any


class Reports(Protocol):
    """Takes the results, and what is to be known of them."""

    def results(self, results: list[Result]) -> None:
        """Take the results of a moment, of one step or two."""

    def untracked(self, global_step: int, parameter: str, reason: str) -> None:
        """Hear of a parameter whose individual gradients cannot be had."""

    def mismatch(self, global_step: int, parameter: str, layer: str, apart: float) -> None:
        """Hear of a parameter whose individual gradients do not add up to its gradient.

        Args:
            global_step: The step.
            parameter: Its name.
            layer: Kind of the layer that delivered them.
            apart: Norm of the difference, relative to that of the gradient.
        """

    def doubt(self, global_step: int, times: float) -> None:
        """Hear of a loss that is so many times the mean of the samples' losses: no mean and no sum."""

    def drawn(self, global_step: int, count: int, size: int) -> None:
        """Hear that individual gradients are those of `count` samples, drawn from the `size` of the batch."""

    def layout(self, global_step: int, subject: str, reason: str) -> None:
        """Hear of what is not known for sure of where the samples lie."""
