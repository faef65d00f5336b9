"""Collects what a backward pass delivers, until a parameter's individual gradients are complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from cockpit.errors import Unsupported
from cockpit.gradients.batch import Batch
from cockpit.gradients.handle import IndividualGradients, Sum, Zero
from cockpit.gradients.products import Products
from cockpit.gradients.rules import Call, find_rule, generic


class Collector:
    """Gathers the parts of each parameter's individual gradients in one backward pass.

    A module may be called several times, and a parameter shared by several modules: their parts add
        up. A part that no
    rule can serve makes the parameter as a whole *not tracked*, with a reason, and nothing else.

    Args:
        batch: The mini-batch, or a function that says at the first arrival what it is.
        on_complete: Called with each parameter and its handle, once, when no further part can
            arrive.
    """

    def __init__(
        self,
        batch: Callable[[Call], Batch],
        on_complete: Callable[[nn.Parameter, IndividualGradients], None],
    ) -> None:
        self._make_batch = batch
        self._batch: Batch | None = None
        self._on_complete = on_complete
        self._parts: dict[nn.Parameter, list[IndividualGradients]] = {}
        self._done: set[Tensor] = set()
        self._accumulated: set[Tensor] = set()
        self.refused: dict[Tensor, str] = {}

    def add(self, call: Call, grads: tuple[Tensor | None, ...]) -> None:
        """Take in the gradients that arrived at the output of a module."""
        module = call.module
        own = {n: p for n, p in module.named_parameters(recurse=False) if p.requires_grad}
        with plain_arithmetic(next(iter(own.values())).device):
            try:
                if self._batch is None:
                    self._batch = self._make_batch(call)
                if call.versions != call.current_versions():
                    raise Unsupported("its input was modified in place after the forward pass")
                handles = self._handles(call, grads, self._batch)
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
            # A rule may serve parameters of submodules, too, and what is frozen or no parameter of its own.
            parameter = module.get_parameter(name) if "." in name else own.get(name)
            if parameter is None or not parameter.requires_grad:
                continue
            if parameter in self._done:
                self._refuse([parameter], "it got gradients from more than one backward pass")
            handle.calls.append(call)
            self._parts.setdefault(parameter, []).append(handle)

    @staticmethod
    def _handles(
        call: Call, grads: tuple[Tensor | None, ...], batch: Batch
    ) -> Mapping[str, IndividualGradients]:
        rule = find_rule(call.module)
        return generic(call, grads, batch) if rule is None else rule(call, grads, batch)

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
