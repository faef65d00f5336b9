"""Tells the backward passes of one step apart, and adds up what they bring."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from cockpit.gradients import (
    Batch,
    Call,
    Collector,
    IndividualGradients,
    joint,
    plain_arithmetic,
)
from cockpit.gradients.nodes import Use

Grads = tuple["Tensor | None", ...]


class Passes:
    """Counts backward passes, and those among them that came through a known loss.

    A pass lasts until autograd calls back. What reentrant checkpointing starts from within a pass is
    a part of it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._through_loss: set[int] = set()
        self._under_way = False

    def note(self) -> None:
        """Note that a gradient has arrived; to be called from a hook."""
        if not self._under_way:
            self._under_way = True
            self.count += 1
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def note_loss(self) -> None:
        """Note that a gradient has arrived at a known loss; to be called from a hook."""
        self.note()
        self._through_loss.add(self.count)

    @property
    def unexplained(self) -> int:
        """How many passes came through no known loss."""
        return self.count - len(self._through_loss)

    def _end(self) -> None:
        self._under_way = False


class Arrivals:
    """Adds up what arrives at the output of each call, and at each use outside of layers, in several passes.

    The individual gradients are linear in what arrives there, so the sums are served as if one pass
    had brought them, in closed form where there is one. What a use needs of the graph is gone by
    then, and so it is served at once, but for the scale.

    Args:
        unit: The batch, without the scale that is known only when all losses have been seen.
    """

    def __init__(self, unit: Batch) -> None:
        self._unit = unit
        self._of: dict[int, tuple[Call, Grads]] = {}
        self._of_uses: list[tuple[Use, IndividualGradients | Exception]] = []

    def add(self, call: Call, grads: Grads) -> None:
        """Take in the gradients that arrived at the output of a module."""
        if id(call) in self._of:
            before = self._of[id(call)][1]
            grads = tuple(_plus(one, other) for one, other in zip(before, grads, strict=True))
        self._of[id(call)] = call, grads

    def add_use(self, use: Use, grad: Tensor) -> None:
        """Take in the gradient that arrived where a parameter is used outside of layers."""
        with plain_arithmetic(grad.device):
            try:
                self._of_uses.append((use, use.gradients(grad, self._unit)))
            except Exception as error:  # never let a fault of ours reach the user's backward pass
                self._of_uses.append((use, error))

    def hand_over(self, collector: Collector) -> None:
        """Report the sums, one by one, and let go of them."""
        while self._of:
            collector.add(*self._of.pop(next(iter(self._of))))
        while self._of_uses:
            use, made = self._of_uses.pop()
            collector.add_made(use, partial(_scaled, made))


def _scaled(made: IndividualGradients | Exception, batch: Batch) -> IndividualGradients:
    if isinstance(made, Exception):
        raise made
    return joint(batch, [made], [batch.scale])


def _plus(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one.detach() + other.detach()
