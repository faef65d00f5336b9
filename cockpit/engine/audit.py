"""Checks, once, that the individual gradients of one sample's loss are those of that sample alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

import torch
from backpack import backpack
from torch import Tensor, nn

from cockpit.gradients import Collector, IndividualGradients, couples_samples
from cockpit.gradients.graph import Graph
from cockpit.gradients.untrackable import untrackable

TRIALS = 3
"""How many steps may be audited until something is known of what was taken for granted."""

ROUNDING = 0.1
"""Relative difference that may be rounding in half precision; in single precision it is less than 0.004."""

RAISED = 2.0**10
"""Factor on the loss of the sample, so that what it brings does not vanish in half precision."""

WRONG = (
    "that of one sample is not the gradient of that sample's loss: the samples lie elsewhere than they "
    "were taken to, or their losses depend on each other; if they lie in another dimension "
    "of the model's input than the first one, say so with Cockpit(..., batch_dim=), and to have what "
    "flows through each sample's slice of the layers all the same, Cockpit(..., audit=False)"
)

Judge = Callable[[nn.Parameter, IndividualGradients], None]
Listen = Callable[[Judge, ExitStack], Collector]
"""Collects the individual gradients of a pass until the stack is closed, and hands them over one by one."""


class Audit:
    """Pulls back the loss of one sample alone, and compares what that sample gets with the whole gradient.

    That the individual gradients add up to the gradient does not say that each belongs to its
    sample. Here, where the losses of the samples are a part of the graph, one of them is
    differentiated before anything else is done at the first tracked step: its individual gradients
    have to be zero but for its own. What is wrong is refused from then on. Later steps cost
    nothing, unless what was taken for granted could not be confirmed because the gradients were
    zero.

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
        self._parameters, self._model = parameters, model
        self._trials = TRIALS if enabled else 0
        self._first = True
        self._open: set[str] = set()  # taken for granted, and not confirmed
        self._confirmed: set[str] = set()
        self._wrong: set[str] = set()

    def trusts(self, name: str) -> bool:
        """Whether what shapes do not say of a parameter's samples has been confirmed."""
        return name in self._confirmed

    def objection(self, name: str, guess: str | None) -> str | None:
        """Return why the individual gradients of a parameter are not to be used, None where they may be.

        Args:
            name: Of the parameter.
            guess: What was taken for granted.
        """
        if name in self._wrong:
            return WRONG
        if guess is not None and name not in self._confirmed:
            self._open.add(name)
            return guess
        return None

    def due(self, graph: Graph, losses: Tensor | None) -> bool:
        """Whether there is to be an audit of this step, and it can do no harm.

        Args:
            graph: The graph of the loss.
            losses: The losses of the samples, `[N]`.
        """
        if self._trials == 0 or not (self._first or self._open):
            return False
        self._first = False
        self._trials -= 1
        if losses is None or len(losses) < 2 or losses.grad_fn not in graph.above:
            return False
        modules = () if self._model is None else self._model.modules()
        return not (
            any(True for _ in graph.custom())
            or any(couples_samples(module) for module in modules)
            or any(untrackable(parameter) for parameter in self._parameters.values())
        )

    def run(self, losses: Tensor, rounding: float, listen: Listen) -> None:
        """Pull back the loss of one sample, and judge what it brings; waits for the device.

        Args:
            losses: The losses of the samples, `[N]`, in their graph, to which nobody listens yet.
            rounding: Relative error of the coarsest precision in the graph.
            listen: Collects the individual gradients.
        """
        place = len(losses) // 2
        # Hooks of the user's on a parameter would be called by this as well.
        named = {
            n: p for n, p in self._parameters.items() if p.requires_grad and not p._backward_hooks
        }
        comparison = _Comparison(place, rounding)
        with ExitStack() as cleanup:
            collector = listen(comparison.take, cleanup)
            for name, parameter in named.items():
                arrived = partial(comparison.see, collector, name, parameter)
                cleanup.callback(parameter.register_hook(arrived).remove)
            cleanup.enter_context(backpack(retain_graph=True))  # or its hooks drop what is needed
            try:
                torch.autograd.grad(
                    losses[place] * RAISED,
                    list(named.values()),
                    retain_graph=True,
                    allow_unused=True,
                )
            except RuntimeError:  # a graph that can be pulled back only as a whole, or only once
                self._trials = 0
                return
        confirmed, wrong = comparison.verdict()
        self._confirmed |= confirmed
        self._wrong |= wrong
        self._open -= confirmed | wrong


class _Comparison:
    """Compares the sample's individual gradients with the whole gradient, parameter by parameter."""

    def __init__(self, place: int, rounding: float) -> None:
        self._place, self._rounding = place, rounding
        self._handle: IndividualGradients | None = None
        self._rows: dict[str, Tensor] = {}

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
            whole = grad.to(handle.dtype)
            own = handle.piece(slice(self._place, self._place + 1))[0]
            norms = [torch.linalg.vector_norm(value) for value in (own - whole, whole)]
            self._rows[name] = torch.stack(norms).double().cpu()

    def verdict(self) -> tuple[set[str], set[str]]:
        """Return the parameters that were confirmed, and those that are wrong."""
        if not self._rows:
            return set(), set()
        differences, norms = torch.stack(list(self._rows.values()), dim=1)
        # Some gradients are zero but for rounding, such as those of the keys' biases in attention.
        noise = 4 * self._rounding * torch.linalg.vector_norm(norms)
        wrong = differences > min(10 * self._rounding**0.5, ROUNDING) * norms + noise
        wrong &= norms.isfinite()
        known = norms.isfinite() & (norms > noise)
        names = list(self._rows)
        return (
            {name for name, one in zip(names, (known & ~wrong).tolist(), strict=True) if one},
            {name for name, one in zip(names, wrong.tolist(), strict=True) if one},
        )
