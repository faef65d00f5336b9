"""Whether the losses of samples depend on other samples, and between which modules these meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from cockpit.engine.needs import InForward, Moment, Observation
from cockpit.engine.step import NotChecked, PerModule, Step
from cockpit.gradients import Call, couples_samples
from cockpit.gradients.graph import Graph

LEAST = 4
"""Samples without which nothing is told apart: two that are looked at, and others between them."""


class Place(NamedTuple):
    """Where the output of a module stands in the graph.

    Args:
        node: The operation that it comes from.
        number: Which of that one's results it is.
        coupling: Whether the module normalises with the statistics of the batch.
    """

    node: Node
    number: int
    coupling: bool


@dataclass(frozen=True)
class Places(InForward):
    """Where the outputs of the modules stand in the graph, a `Place` each; they hold the graph."""

    def see(self, name: str, call: Call, output: Any) -> Place | None:
        """Return the place of an output that is one tensor."""
        if not isinstance(output, Tensor) or output.grad_fn is None or not output.dim():
            return None
        return Place(output.grad_fn, output.output_nr, couples_samples(call.module))

    def part(self, name: str, call: Call, output: Any) -> None:
        """Return nothing: a graph does not leave its process."""

    def joined(self, parts: Sequence[Any]) -> None:
        """Return nothing."""


@dataclass(frozen=True)
class SampleCoupling(Observation):
    r"""How much of the gradient of some losses goes to other samples, by module.

    With :math:`h_j` the slice of sample j of a module's output and :math:`\ell = \ell_0 + \ell_{N-1}`, the
    losses of the first and the last sample, it is :math:`\lVert \partial \ell / \partial h_{1..N-2} \rVert /
    \lVert \partial \ell / \partial h \rVert`, `[]`: 0 where no other sample has a part in these two. It takes a
    backward pass of its own, without the gradients of the parameters.

    With it, 1 for each module that normalises with the statistics of the batch, and so couples the
    samples by design.
    """

    moment = Moment.ENTRY
    info = ("loss",)
    places = Places()

    def observe(self, step: Step) -> tuple[PerModule, PerModule]:
        """Return both."""
        seen = step.values.get(self.places)
        places = dict(seen) if isinstance(seen, PerModule) else {}
        if isinstance(seen, PerModule):
            seen.clear()  # they hold the graph, and the step lives longer
        live = step.live
        if live is None or live.postponed is not None or live.individual_losses is None:
            raise NotChecked("individual_losses are not known", usual=True)
        losses = live.individual_losses
        if losses.grad_fn is None or len(losses) < LEAST or not places:
            raise NotChecked("nothing tells the samples apart", usual=True)
        if any(True for _ in Graph(losses.grad_fn).custom()):
            raise NotChecked("a custom autograd function may be pulled back only once", usual=True)
        shares = _shares(losses, places)
        found = PerModule((name, shares[p]) for name, p in places.items() if p in shares)
        coupling = PerModule((name, 1) for name, p in places.items() if p.coupling)
        return found, coupling


def _shares(losses: Tensor, places: dict[str, Place]) -> dict[Place, Tensor]:
    """Pull two losses back, and return what goes to others at each place that this comes to."""
    chosen = torch.zeros_like(losses)
    chosen[[0, -1]] = 1
    shares: dict[Place, Tensor] = {}

    def note(place: Place) -> Callable[[Sequence[Tensor | None]], None]:
        def arrived(grads: Sequence[Tensor | None]) -> None:
            grad = grads[place.number]
            if grad is not None and _samples_first(grad, len(losses)):
                whole = torch.linalg.vector_norm(grad)
                shares[place] = torch.linalg.vector_norm(grad[1:-1]) / whole

        return arrived

    first = next(iter(places.values()))
    with ExitStack() as cleanup:
        for place in dict.fromkeys(places.values()):
            cleanup.callback(place.node.register_prehook(note(place)).remove)
        try:
            (grad,) = torch.autograd.grad(
                losses,
                [GradientEdge(first.node, first.number)],
                chosen,
                retain_graph=True,
                allow_unused=True,
            )
        except RuntimeError as error:  # it can be pulled back only as a whole, or only once
            raise NotChecked(f"the graph cannot be pulled back: {error}", usual=True) from None
    if grad is not None and first not in shares:
        note(first)([None] * first.number + [grad])
    return shares


def _samples_first(values: Tensor, count: int) -> bool:
    """Whether the samples lie in the first dimension; a sequence as long as the batch may come before them."""
    return len(values) == count and not (values.dim() == 3 and values.shape[1] == count)
