"""Collects what a backward pass delivers, until a parameter's individual gradients are complete."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from cockpit.errors import Unsupported
from cockpit.gradients.batch import Batch
from cockpit.gradients.conditions import autocast_of
from cockpit.gradients.handle import IndividualGradients, Sum, Zero
from cockpit.gradients.layout import Place, Taken, arranged
from cockpit.gradients.nodes import Direct, Use
from cockpit.gradients.products import Products
from cockpit.gradients.rows import Rows
from cockpit.gradients.rules import Call, find_rule, serve
from cockpit.gradients.rules.registry import served_parameters
from cockpit.gradients.tied import Tied
from cockpit.gradients.untrackable import untrackable

TWICE = (
    "it got gradients from more than one backward pass; run one in the with block, and where it is used "
    "in several checkpointed parts, checkpoint these with use_reentrant=False"
)

Judge = Callable[[nn.Parameter, Taken], "str | None"]
Known = Callable[[nn.Parameter, str], "int | None"]


class Collector:
    """Gathers the parts of each parameter's individual gradients in one backward pass.

    A module may be called several times, and a parameter shared by several modules: their parts add
    up. A part that no rule can serve makes the parameter as a whole *not tracked*, with a reason, and nothing else.

    Args:
        batch: Says at the first arrival what the mini-batch is, given the call that reports, or None
            where it is no call of a module.
        on_complete: Called with each parameter and its handle, once, when no further part can
            arrive.
        judge: Returns why the individual gradients of a parameter are not to be used, None where they
            may be, given where its samples were taken to lie. Otherwise, what is not sure is refused.
        known: Returns the dimension in which the samples of a parameter lay in layers or operations
            of a kind whenever the shapes left no choice.
        direct: What is served at the nodes of the graph, and not by the rules of modules.
    """

    def __init__(
        self,
        batch: Callable[[Call | None], Batch],
        on_complete: Callable[[nn.Parameter, IndividualGradients], None],
        *,
        judge: Judge = lambda parameter, taken: taken.doubt(),
        known: Known = lambda parameter, where: None,
        direct: Direct | None = None,
    ) -> None:
        self._make_batch = batch
        self._batch: Batch | None = None
        self._on_complete = on_complete
        self._parts: dict[nn.Parameter, list[IndividualGradients]] = {}
        self._done: set[Tensor] = set()
        self._accumulated: set[Tensor] = set()
        self._judge, self._known, self._direct = judge, known, direct or Direct()
        self.refused: dict[Tensor, str] = {}
        self.taken: defaultdict[Tensor, Taken] = defaultdict(Taken)
        self.misfits: set[Tensor] = set()  # refused, for their samples fit nowhere

    def add(self, call: Call, grads: tuple[Tensor | None, ...]) -> None:
        """Take in the gradients that arrived at the output of a module."""
        module = call.module
        own = served_by(call, self._direct)
        if not own:
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
        known = self._known(use.parameter, use.kind)
        self.add_made(use, partial(use.gradients, grad), known)

    def add_made(
        self,
        use: Use,
        make: Callable[[Batch], IndividualGradients],
        known: int | None = None,
    ) -> None:
        """Take in what a use contributes, as a function of the batch.

        Args:
            use: The use.
            make: The function.
            known: The dimension in which the samples lay at other steps, if that is to be minded.
        """
        parameter = use.parameter
        self._refuse_untrackable([parameter])
        if parameter in self.refused:
            return
        with plain_arithmetic(parameter.device):
            try:
                if self._batch is None:
                    self._batch = self._make_batch(None)
                place = use.place(self._batch, known)
                self._take([parameter], place, self._batch)
                handle = make(place.of(self._batch))
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
        parameters = list(parameters)
        known = self._known(parameters[0], type(call.module).__name__)
        there = arranged(call, grads, batch, known)
        self._take(parameters, there.place, batch)
        handles = serve(there.call, there.grads, there.batch)
        return {name: there.of_samples(handle, batch) for name, handle in handles.items()}

    def _take(self, parameters: Iterable[nn.Parameter], place: Place, batch: Batch) -> None:
        """Note where the samples were taken to lie; a single one leaves no choice."""
        for parameter in parameters if batch.size > 1 else ():
            self.taken[parameter].add(place)
            if place.arrangement is None:
                self.misfits.add(parameter)

    def _refuse_untrackable(self, parameters: Iterable[nn.Parameter]) -> None:
        for parameter in parameters:
            reason = untrackable(parameter)
            if reason is not None:
                self._refuse([parameter], str(reason))

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
        if not parts or parameter in self.refused:
            return
        self._done.add(parameter)
        objection = self._judge(parameter, self.taken[parameter])
        if objection is not None:
            self._refuse([parameter], objection)
        else:
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


def served_by(call: Call, direct: Direct) -> dict[str, nn.Parameter]:
    """Return the trained parameters of a module that the rule of its kind serves, by their local names."""
    if call in direct.apart:
        return {}
    own = {n: p for n, p in served_parameters(call.module).items() if p.requires_grad}
    if find_rule(call.module) is None:
        own = {n: p for n, p in own.items() if p not in direct.uses}
    return own


def joined(parts: list[IndividualGradients]) -> IndividualGradients:
    """Add up the parts of one parameter's individual gradients, in closed form where there is one."""
    if len(parts) == 1:
        return parts[0]
    total = _sum(parts)
    total.calls = [call for part in parts for call in part.calls]
    return total


def _sum(parts: list[IndividualGradients]) -> IndividualGradients:
    products = [part for part in parts if type(part) is Products]
    rows = [part for part in parts if type(part) is Rows]
    if len(products) + len(rows) < len(parts) or len({(p.groups, p.outputs) for p in products}) > 1:
        return Sum(parts)
    if not rows:
        return Products.merged(products)
    of_one = len(rows) == 1 and len({part.dtype for part in parts}) == 1
    if not products or not of_one or products[0].outputs != rows[0].shape[0]:
        return Sum(parts)
    return Tied(Products.merged(products), rows[0])


@contextmanager
def plain_arithmetic(device: torch.device) -> Iterator[None]:
    """Compute without a graph, and in the precision of the tensors even where the backward pass runs under autocast."""
    # Usually a backward pass runs so already, and entering these contexts takes longer than looking.
    if not torch.is_grad_enabled() and autocast_of(device.type) is None:
        yield
        return
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield
