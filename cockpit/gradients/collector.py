"""Collects what a backward pass delivers, until a parameter's individual gradients are complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from cockpit.errors import Unsupported
from cockpit.gradients.batch import Batch
from cockpit.gradients.handle import IndividualGradients, Sum, Zero
from cockpit.gradients.layout import arranged
from cockpit.gradients.nodes import Direct, Use
from cockpit.gradients.products import Products
from cockpit.gradients.rules import Call, find_rule, serve
from cockpit.gradients.rules.registry import served_parameters
from cockpit.gradients.untrackable import untrackable

TWICE = (
    "it got gradients from more than one backward pass; run one in the with block, and where it is used "
    "in several checkpointed parts, checkpoint these with use_reentrant=False"
)


class Collector:
    """Gathers the parts of each parameter's individual gradients in one backward pass.

    A module may be called several times, and a parameter shared by several modules: their parts add
        up. A part that no
    rule can serve makes the parameter as a whole *not tracked*, with a reason, and nothing else.

    Args:
        batch: Says at the first arrival what the mini-batch is, given the call that reports, or None
            where it is no call of a module.
        on_complete: Called with each parameter and its handle, once, when no further part can
            arrive.
        trusts: Whether to take for granted where the samples of a parameter are if shapes leave a
            choice. What was taken for granted is noted in `guessed`; without this it is refused.
        direct: What is served at the nodes of the graph, and not by the rules of modules.
    """

    def __init__(
        self,
        batch: Callable[[Call | None], Batch],
        on_complete: Callable[[nn.Parameter, IndividualGradients], None],
        *,
        trusts: Callable[[nn.Parameter], bool] = lambda parameter: False,
        direct: Direct | None = None,
    ) -> None:
        self._make_batch = batch
        self._batch: Batch | None = None
        self._on_complete = on_complete
        self._parts: dict[nn.Parameter, list[IndividualGradients]] = {}
        self._done: set[Tensor] = set()
        self._accumulated: set[Tensor] = set()
        self._trusts, self._direct = trusts, direct or Direct()
        self.refused: dict[Tensor, str] = {}
        self.guessed: dict[Tensor, str] = {}

    def add(self, call: Call, grads: tuple[Tensor | None, ...]) -> None:
        """Take in the gradients that arrived at the output of a module."""
        module = call.module
        own = {n: p for n, p in served_parameters(module).items() if p.requires_grad}
        if find_rule(module) is None:
            own = {n: p for n, p in own.items() if p not in self._direct.uses}
        if not own or call in self._direct.apart:
            return
        self._refuse_untrackable(own.values())
        with plain_arithmetic(next(iter(own.values())).device):
            try:
                if call.lacking is not None:
                    raise Unsupported(call.lacking)
                if self._batch is None:
                    self._batch = self._make_batch(call)
                if call.versions != call.current_versions():
                    raise Unsupported("its input was modified in place after the forward pass")
                handles = self._handles(call, grads, self._batch, own.values())
                missing = [name for name in own if name not in handles]
                if missing:
                    raise Unsupported(
                        f"{type(module).__name__} has parameters that its rule misses"
                    )
            except Unsupported as error:
                self._refuse(own.values(), str(error))
                return
            except Exception as error:  # never let a fault of ours reach the user's backward pass
                self._refuse(own.values(), f"{type(error).__name__}: {error}")
                return
        for name, handle in handles.items():
            parameter = own.get(name)
            if parameter is None:  # frozen, or no parameter
                continue
            handle.calls.append(call)
            self._add_part(parameter, handle)

    def add_use(self, use: Use, grad: Tensor) -> None:
        """Take in the gradient that arrived where a parameter is used outside of layers."""
        parameter = use.parameter
        self._refuse_untrackable([parameter])
        if parameter in self.refused:
            return
        with plain_arithmetic(parameter.device):
            try:
                if self._batch is None:
                    self._batch = self._make_batch(None)
                self._guess([parameter], use.guess(self._batch))
                handle = use.gradients(grad, self._batch)
            except Exception as error:  # never let a fault of ours reach the user's backward pass
                self._refuse([parameter], f"{type(error).__name__}: {error}")
                return
        self._add_part(parameter, handle)

    def _add_part(self, parameter: nn.Parameter, handle: IndividualGradients) -> None:
        if parameter in self._done:
            self._refuse([parameter], TWICE)
        if parameter not in self.refused:
            self._parts.setdefault(parameter, []).append(handle)

    def _handles(
        self,
        call: Call,
        grads: tuple[Tensor | None, ...],
        batch: Batch,
        parameters: Iterable[nn.Parameter],
    ) -> Mapping[str, IndividualGradients]:
        there = arranged(call, grads, batch)
        self._guess(parameters, there.guess)
        handles = serve(there.call, there.grads, there.batch)
        return {name: there.of_samples(handle, batch) for name, handle in handles.items()}

    def _guess(self, parameters: Iterable[nn.Parameter], guess: str | None) -> None:
        """Note what is taken for granted, or refuse those for which nothing is."""
        for parameter in parameters if guess is not None else ():
            assert guess is not None
            if self._trusts(parameter):
                self.guessed.setdefault(parameter, guess)
            else:
                self._refuse([parameter], guess)

    def _refuse_untrackable(self, parameters: Iterable[nn.Parameter]) -> None:
        for parameter in parameters:
            reason = untrackable(parameter)
            if reason is not None:
                self._refuse([parameter], str(reason))

    def refuse(self, parameter: nn.Parameter, reason: str) -> None:
        """Refuse a parameter that turned out to be wrong."""
        self._refuse([parameter], reason)

    def _refuse(self, parameters: Iterable[nn.Parameter], reason: str) -> None:
        for parameter in parameters:
            self.refused.setdefault(parameter, reason)
            self._parts.pop(parameter, None)

    def complete(self, parameter: nn.Parameter) -> None:
        """Hand over the individual gradients of a parameter whose gradient has been accumulated."""
        self.note_accumulated(parameter)
        self._deliver(parameter)

    def note_accumulated(self, parameter: nn.Parameter) -> None:
        """Note that a parameter has got a gradient, of which parts may still arrive."""
        self._accumulated.add(parameter)

    def _deliver(self, parameter: nn.Parameter) -> None:
        parts = self._parts.pop(parameter, None)
        if parts and parameter not in self.refused:
            self._done.add(parameter)
            with plain_arithmetic(parameter.device):
                self._hand_over(parameter, joined(parts))

    def _hand_over(self, parameter: nn.Parameter, handle: IndividualGradients) -> None:
        handle.parameter = parameter
        self._on_complete(parameter, handle)

    def finish(self, parameters: Iterable[nn.Parameter], batch: Batch | None = None) -> None:
        """Hand over what is left; parameters that had no part in the backward pass have zero gradients."""
        batch = batch or self._batch
        parameters = list(parameters)
        self._refuse_untrackable(parameters)
        for parameter in dict.fromkeys([*self._parts, *parameters]):
            self._deliver(parameter)
            if parameter in self._done or parameter in self.refused:
                continue
            if parameter in self._accumulated:
                reason = (
                    "its gradient did not come through the output of the module that it belongs to: "
                    "it is used elsewhere, or the output is no tensor, tuple, list or dict"
                )
                self._refuse([parameter], reason)
                continue
            if batch is None:
                continue
            self._done.add(parameter)
            dtype = torch.promote_types(parameter.dtype, torch.float32)
            self._hand_over(parameter, Zero(batch, parameter.shape, dtype, parameter.device))

    @property
    def accumulated(self) -> bool:
        """Whether some parameter got a gradient."""
        return bool(self._accumulated)

    @property
    def batch(self) -> Batch | None:
        """The mini-batch, once something has arrived."""
        return self._batch


def joined(parts: list[IndividualGradients]) -> IndividualGradients:
    """Add up the parts of one parameter's individual gradients, in closed form where there is one."""
    if len(parts) == 1:
        return parts[0]
    products = [part for part in parts if type(part) is Products]
    mergeable = len(products) == len(parts) and len({(p.groups, p.outputs) for p in products}) == 1
    total = Products.merged(products) if mergeable else Sum(parts)
    total.calls = [call for part in parts for call in part.calls]
    return total


@contextmanager
def plain_arithmetic(device: torch.device) -> Iterator[None]:
    """Compute without a graph, and in the precision of the tensors even where the backward pass runs under autocast."""
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield
