"""Checks that the individual gradients of some samples' losses are those of these samples alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from functools import partial

import torch
from backpack import backpack
from torch import Tensor, nn

from cockpit.gradients import Collector, IndividualGradients, couples_samples
from cockpit.gradients.graph import Graph
from cockpit.gradients.layout import Arrangement
from cockpit.gradients.recorder import has_hooks_of_others
from cockpit.gradients.untrackable import untrackable

TRIALS = 3
"""How many audits may be made because of one and the same arrangement that they can say nothing of."""

ROUNDING = 0.1
"""Relative difference that may be rounding in half precision; in single precision it is less than 0.004."""

RAISED = 2.0**10
"""Factor on the losses, so that what they bring does not vanish in half precision."""

WRONG = (
    "that of one sample is not the gradient of that sample's loss: the samples lie elsewhere than they "
    "were taken to, or their losses depend on each other; if they lie in another dimension "
    "of the model's input than the first one, say so with Cockpit(..., batch_dim=), and to have what "
    "flows through each sample's slice of the layers all the same, Cockpit(..., audit=False)"
)

Key = tuple[str, frozenset[Arrangement]]
"""A parameter's name, and where its samples are taken to lie in all of its parts."""

Heard = Callable[[nn.Parameter, IndividualGradients], None]
Listen = Callable[[Heard, ExitStack], Collector]
"""Collects the individual gradients of a pass until the stack is closed, and hands them over one by one."""


class Audit:
    """Pulls back the losses of a random half of the samples, and looks at what the others get.

    That the individual gradients add up to the gradient does not say that each belongs to its
    sample. Here, where the losses of the samples are a part of the graph, those of half of the
    samples are differentiated before anything else is done: the individual gradients have to be
    zero for all others, and add up to the gradient. What is wrong is refused from then on.

    This is done at the tracked steps 1, 2, 4, 8, ..., for a loop may couple its samples later on, and
    whenever samples are taken to lie where they did not before. The other steps cost nothing.

    There is no audit where the samples are coupled (BatchNorm), so that the others are not zero by
    right, and where a second backward pass could do harm: with autograd functions of the user's.

    Args:
        parameters: The tracked parameters by name.
        model: The model.
        enabled: Whether to do this at all.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], model: nn.Module | None, enabled: bool
    ) -> None:
        self._parameters, self._model, self.enabled = parameters, model, enabled
        self._steps = 0
        self._trials: Counter[Key] = Counter()
        self._asked: set[Key] = set()
        self._confirmed: set[Key] = set()
        self._wrong: set[Key] = set()

    def confirmed(self, key: Key) -> bool:
        """Whether the samples of a parameter were found to lie where they are taken to."""
        return key in self._confirmed

    def objection(self, key: Key) -> str | None:
        """Return why the individual gradients of a parameter are known to be wrong, None where they are not."""
        return WRONG if key in self._wrong else None

    def ask(self, key: Key) -> None:
        """Want to know more of an arrangement at the next step."""
        self._asked.add(key)

    def begin(self) -> None:
        """Note that a step begins."""
        self._steps += 1

    def due(self, expected: Collection[Key]) -> bool:
        """Whether there is to be an audit of this step.

        Args:
            expected: Where the samples will be taken to lie in it.
        """
        if not self.enabled:
            return False
        scheduled = self._steps & (self._steps - 1) == 0  # a power of two
        known = self._confirmed | self._wrong
        new = {k for k in {*expected, *self._asked} - known if self._trials[k] < TRIALS}
        self._trials.update(new)
        return scheduled or bool(new)

    def harmless(self, graph: Graph) -> bool:
        """Whether an audit can do no harm, and says something.

        Args:
            graph: The graph of the loss.
        """
        modules = () if self._model is None else self._model.modules()
        return not (
            any(True for _ in graph.custom())
            or any(couples_samples(module) for module in modules)
            or any(untrackable(parameter) for parameter in self._parameters.values())
        )

    def run(self, losses: Tensor, rounding: float, seed: int, listen: Listen) -> None:
        """Pull back the losses of half of the samples, and judge what they bring; waits for the device.

        Args:
            losses: The losses of the samples, `[N]`, in their graph, to which nobody listens yet.
            rounding: Relative error of the coarsest precision in the graph.
            seed: Of the choice of the samples.
            listen: Collects the individual gradients.
        """
        # Hooks of the user's on a parameter would be called by this as well.
        named = {
            n: p
            for n, p in self._parameters.items()
            if p.requires_grad and not has_hooks_of_others(p)
        }
        chosen = half(len(losses), seed)
        comparison = _Comparison(chosen, rounding)
        with ExitStack() as cleanup:
            collector = listen(comparison.take, cleanup)
            for name, parameter in named.items():
                arrived = partial(comparison.see, collector, name, parameter)
                cleanup.callback(parameter.register_hook(arrived).remove)
            cleanup.enter_context(backpack(retain_graph=True))  # or its hooks drop what is needed
            try:
                torch.autograd.grad(
                    losses,
                    list(named.values()),
                    chosen.to(losses) * RAISED,
                    retain_graph=True,
                    allow_unused=True,
                )
            except RuntimeError:  # a graph that can be pulled back only as a whole, or only once
                self.enabled = False
                return
        confirmed, wrong = comparison.verdict()
        self._wrong |= wrong
        self._confirmed = (self._confirmed | confirmed) - self._wrong
        self._asked -= self._confirmed | self._wrong


def half(size: int, seed: int) -> Tensor:
    """Draw about half of N samples, at least one and at most N - 1; Boolean, `[N]`.

    Of any two that mirror each other it is always one, for loops that mix samples mostly mix them
    with those of the flipped batch.
    """
    draws = torch.Generator().manual_seed(seed)
    chosen = torch.rand((size + 1) // 2, generator=draws) < 0.5
    return torch.cat([chosen, ~chosen[: size // 2].flip(0)])


class _Comparison:
    """Compares the samples' individual gradients with the gradient of some of them, parameter by parameter."""

    def __init__(self, chosen: Tensor, rounding: float) -> None:
        self._chosen, self._rounding = chosen, rounding
        self._handle: IndividualGradients | None = None
        self._rows: dict[Key, Tensor] = {}

    def take(self, parameter: nn.Parameter, handle: IndividualGradients) -> None:
        """Take the individual gradients of the parameter that is next."""
        self._handle = handle

    def see(self, collector: Collector, name: str, parameter: nn.Parameter, grad: Tensor) -> None:
        """Compare, now that the whole gradient has arrived and with it all parts of the individual ones."""
        self._handle = None
        collector.complete(parameter)
        handle, self._handle = self._handle, None
        if handle is None or grad.is_sparse:
            return
        with torch.no_grad():
            squares = handle.square_norms().double()
            chosen = self._chosen.to(squares.device)
            apart = handle.mean() * handle.batch.size - grad.to(handle.dtype)
            missed = torch.linalg.vector_norm(apart).double().square()
            values = [missed + squares[~chosen].sum(), squares[chosen].sum()]
            key = name, frozenset(collector.taken[parameter].arrangements)
            self._rows[key] = torch.stack(values).clamp(min=0).sqrt().cpu()
            handle.release()

    def verdict(self) -> tuple[set[Key], set[Key]]:
        """Return the arrangements that were confirmed, and those that are wrong."""
        if not self._rows:
            return set(), set()
        differences, norms = torch.stack(list(self._rows.values()), dim=1)
        # Some gradients are zero but for rounding, such as those of the keys' biases in attention.
        noise = 4 * self._rounding * torch.linalg.vector_norm(norms)
        finite = norms.isfinite() & differences.isfinite()
        wrong = differences > min(10 * self._rounding**0.5, ROUNDING) * norms + noise
        wrong &= finite
        known = finite & (norms > noise)
        keys = list(self._rows)
        return (
            {key for key, one in zip(keys, (known & ~wrong).tolist(), strict=True) if one},
            {key for key, one in zip(keys, wrong.tolist(), strict=True) if one},
        )
