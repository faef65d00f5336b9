"""`BatchGradTransforms`: transformations of individual gradients, as an extension of BackPACK."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from backpack.extensions.backprop_extension import BackpropExtension
from torch import Tensor, nn

from cockpit.errors import InvalidArgument, InvalidType
from cockpit.gradients.batch import MEMORY_BUDGET, Batch
from cockpit.gradients.collector import Collector
from cockpit.gradients.handle import IndividualGradients
from cockpit.gradients.rules import Call

Transform = Callable[[IndividualGradients], Any]


class HandleFeed(BackpropExtension):
    """A BackPACK extension that hands on each layer's input and output gradient, and stores nothing."""

    def __init__(self, sink: Callable[[Call, tuple[Tensor | None, ...]], None]) -> None:
        super().__init__(savefield="grad_batch_transforms", module_exts={}, fail_mode="SILENT")
        self._sink = sink
        self._arrived: set[nn.Module] = set()

    def expects_backpropagation_quantities(self) -> bool:
        """Return False: gradients are all that is needed."""
        return False

    def __call__(
        self, module: nn.Module, g_inp: tuple[Tensor, ...], g_out: tuple[Tensor, ...]
    ) -> None:
        """Take in what BackPACK stored in the forward pass and what arrives now."""
        if any(p.requires_grad for p in module.parameters(recurse=False)):
            # BackPACK stores the input of a module's last call, which is the first one to arrive.
            inputs = () if module in self._arrived else _stored_inputs(module)
            self._arrived.add(module)
            call = Call.of(module, inputs, {})
            call.lacking = _lacking(module, inputs)
            self._sink(call, g_out)


class BatchGradTransforms(HandleFeed):
    """Apply functions to the individual gradients of every parameter, without storing these.

    ::

        with backpack(BatchGradTransforms({"batch_l2": SquareNorms(), "max": lambda g: g.abs_max()})):
            loss.backward()
        parameter.grad_batch_transforms["batch_l2"]   # [N]

    g_i is the gradient of the loss of sample i: the results do not depend on whether the loss is a
    mean or a sum. If the loss is a module that BackPACK has extended, its `reduction` and the factor
    on it are seen; otherwise it is taken to be as `reduction` says, and not scaled.

    Modules may share parameters, but each can be called only once: BackPACK remembers one input.

    Args:
        transforms: Functions by name. Each takes an `IndividualGradients` handle and returns what
            to keep.
        reduction: Whether the loss that is backpropagated is the ``"mean"`` or the ``"sum"`` over
            the samples.
        memory_budget: Bytes that dense pieces of individual gradients may take.

    Raises:
        InvalidType: if a name is no string or a transform cannot be called.
        InvalidArgument: if `reduction` is neither of the two.
    """

    def __init__(
        self,
        transforms: Mapping[str, Transform],
        *,
        reduction: str = "mean",
        memory_budget: int = MEMORY_BUDGET,
    ) -> None:
        super().__init__(self._receive)
        for name, transform in transforms.items():
            if not isinstance(name, str) or not callable(transform):
                raise InvalidType(
                    "BatchGradTransforms takes a dict from names to functions of an "
                    f"IndividualGradients handle, got {name!r}: {transform!r}."
                )
        if reduction not in ("mean", "sum"):
            raise InvalidArgument(f"reduction must be 'mean' or 'sum', got {reduction!r}.")
        self.transforms = dict(transforms)
        self._reduction = reduction
        self._memory_budget = memory_budget
        self._begin(-1)

    def _begin(self, backward_pass: int) -> None:
        """Start afresh: whatever an earlier pass has left, if it failed, must not mix with this one."""
        self._pass = backward_pass
        self._arrived.clear()
        self._collector: Collector | None = None
        self._parameters: dict[nn.Parameter, None] = {}
        self._loss: tuple[Tensor | float, str] | None = None

    def __call__(
        self, module: nn.Module, g_inp: tuple[Tensor, ...], g_out: tuple[Tensor, ...]
    ) -> None:
        """Take in a module's part, or how the loss module reduces."""
        backward_pass = torch._C._current_graph_task_id()
        if backward_pass != self._pass:
            self._begin(backward_pass)
        if not isinstance(module, nn.modules.loss._Loss):
            super().__call__(module, g_inp, g_out)
        elif g_out[0] is not None and g_out[0].dim() == 0:
            loss = g_out[0].detach(), module.reduction
            if self._loss is not None and self._loss != loss:
                raise InvalidArgument(
                    "BatchGradTransforms got gradients from two loss modules with different factors "
                    "or reductions, so the scale of the individual gradients is not known; use "
                    "functional losses, and give reduction='mean' or 'sum'."
                )
            self._loss = loss

    def _receive(self, call: Call, grads: tuple[Tensor | None, ...]) -> None:
        if self._collector is None:
            self._collector = Collector(self._batch, self._keep)
            # Parts of a shared parameter arrive one by one, and BackPACK does not say which one is
            # the last.
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        for parameter in call.module.parameters(recurse=False):
            if parameter.requires_grad:
                self._parameters[parameter] = None
        self._collector.add(call, grads)

    def _batch(self, call: Call | None) -> Batch:
        assert call is not None  # only uses of parameters outside of layers come without one
        size = len(call.input)
        factor, reduction = self._loss or (1.0, self._reduction)
        scale = size / factor if reduction == "mean" else 1.0 / factor
        return Batch(size, scale, self._memory_budget)

    def _keep(self, parameter: nn.Parameter, handle: IndividualGradients) -> None:
        results = {name: transform(handle) for name, transform in self.transforms.items()}
        setattr(parameter, self.savefield, results)

    def _finish(self) -> None:
        collector, parameters = self._collector, self._parameters
        self._begin(-1)
        assert collector is not None
        collector.finish(parameters)
        for parameter, reason in collector.refused.items():
            raise InvalidArgument(
                f"BatchGradTransforms has no individual gradients for a parameter of shape "
                f"{list(parameter.shape)}: {reason}."
            )


def _stored_inputs(module: nn.Module) -> tuple[Any, ...]:
    inputs: list[Any] = []
    while hasattr(module, f"input{len(inputs)}"):
        inputs.append(getattr(module, f"input{len(inputs)}"))
    return tuple(inputs)


def _lacking(module: nn.Module, inputs: tuple[Any, ...]) -> str | None:
    """Return why a call is not known as a whole, None where it is."""
    if not inputs:
        return "its input is not known; BackPACK remembers only that of a module's last call"
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    taken = [
        name
        for name, parameter in inspect.signature(module.forward).parameters.items()
        if parameter.kind in kinds and name != "output_size"  # which only says what shape came out
    ]
    if len(taken) > len(inputs):
        return (
            f"it may have been called with {taken[len(inputs)]}=, and BackPACK remembers no arguments "
            "given by keyword; give the model to the cockpit, Cockpit(model, ...)"
        )
    return None
