"""Hooks on a model that see each layer's input and the gradient that arrives at its output."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from cockpit.gradients.rules import Call
from cockpit.gradients.rules.generic import replaying, tensors_in

Sink = Callable[[Call, "tuple[Tensor | None, ...]"], None]
Witness = Callable[[str, Call, Any], None]


class Recorder:
    """Records the calls of a model's modules, and reports those whose gradients arrive.

    A forward hook on every module with parameters of its own takes references to the inputs, which
    autograd holds anyway, and puts a tensor hook on the outputs. The references live in that hook,
    and so they go with the graph. Tensor hooks survive in-place operations on the output, which
    hooks on the module's backward do not.

    The forward pass comes before the number of the step is known, so the forward hook always runs.
    The tensor hook returns at once unless `sink` is set.

    While `witness` is set, every call of a module with parameters is shown to it as it is made, with
    the module's name, the call and the output; after `watch_all_modules`, those of the other modules
    too.

    Args:
        model: The model. Its modules may be called in any order, any number of times.
    """

    def __init__(self, model: nn.Module) -> None:
        self.sink: Sink | None = None
        self.witness: Witness | None = None
        self.on_pass: Callable[[], None] | None = None
        self.batch_size: int | None = None
        self.keeps_outputs = False
        self._outputs: Any = None
        self._passes: weakref.WeakSet[_Pass] = weakref.WeakSet()
        self._hooks: list[RemovableHandle] = []
        # The hooks hold no strong reference to this object: a recorder that is dropped does not
        # live on in the model.
        self._model, self._this = weakref.ref(model), (this := _Reference(self))
        self._watches_all = False
        for name, module in model.named_modules():
            if _has_parameters(module):
                hook = partial(_record, this, name)
                self._hooks.append(module.register_forward_hook(hook, with_kwargs=True))
        self._hooks.append(
            model.register_forward_hook(partial(_note_batch_size, this), with_kwargs=True)
        )

    def listen(self, sink: Sink) -> None:
        """Report to `sink` what arrives from now on, and see anew how many samples there are."""
        self.sink, self.batch_size = sink, None

    def stop(self) -> None:
        """Report nothing any more."""
        self.sink = None

    def watch_all_modules(self) -> None:
        """Show the witness the modules without parameters too, and call `on_pass` when the model is called."""
        model = self._model()
        if self._watches_all or model is None:
            return
        self._watches_all = True
        for name, module in model.named_modules():
            if not _has_parameters(module):
                hook = partial(_show, self._this, name)
                self._hooks.append(module.register_forward_hook(hook, with_kwargs=True))
        self._hooks.append(model.register_forward_pre_hook(partial(_begin_pass, self._this)))

    def take_outputs(self) -> Any:
        """Return what the model returned in its last forward pass, if it was kept, and let go of it."""
        outputs, self._outputs = self._outputs, None
        return outputs

    def batch_sizes(self) -> set[int]:
        """Return the batch sizes of all forward passes of the model whose graphs are still there."""
        return {forward.batch_size for forward in self._passes}

    def close(self) -> None:
        """Remove all hooks from the model."""
        self.sink = self.witness = self.on_pass = None
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


class _Reference:
    """A weak reference to a recorder, which copies of the model and files with it do not take along."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        self._recorder = None if recorder is None else weakref.ref(recorder)

    def __call__(self) -> Recorder | None:
        return None if self._recorder is None else self._recorder()

    def __reduce__(self) -> tuple[type[_Reference], tuple[()]]:
        return _Reference, ()


class _Pass:
    """One forward pass of the model. It lives in hooks on the output, and so it goes with the graph."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size


def _note_batch_size(
    this: _Reference, module: nn.Module, args: Any, kwargs: Any, output: Any
) -> None:
    recorder = this()
    if recorder is None or not torch.is_grad_enabled() or replaying.get():
        return
    sizes = [
        len(value)
        for value in (*args, *kwargs.values())
        if isinstance(value, Tensor) and value.dim() > 0
    ]
    outputs = [tensor for tensor in tensors_in(output) if tensor.grad_fn is not None]
    if recorder.keeps_outputs:
        recorder._outputs = output
    if sizes and outputs:
        forward = _Pass(sizes[0])
        recorder._passes.add(forward)
        for tensor in outputs:
            tensor.register_hook(partial(_passed, this, forward))


def _passed(this: _Reference, forward: _Pass, grad: Tensor) -> None:
    recorder = this()
    if recorder is not None and recorder.sink is not None:
        recorder.batch_size = forward.batch_size


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))


def _begin_pass(this: _Reference, module: nn.Module, args: Any) -> None:
    recorder = this()
    if recorder is None or not torch.is_grad_enabled() or replaying.get():
        return
    if recorder.on_pass is not None:
        recorder.on_pass()


def _show(
    this: _Reference, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any
) -> None:
    recorder = this()
    if recorder is None or recorder.witness is None:
        return
    if torch.is_grad_enabled() and not replaying.get():
        recorder.witness(name, Call.of(module, args, kwargs), output)


def _record(
    this: _Reference, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any
) -> None:
    recorder = this()
    if recorder is None or not torch.is_grad_enabled() or replaying.get():
        return
    if recorder.witness is not None:
        recorder.witness(name, Call.of(module, args, kwargs), output)
    if not any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
        return
    outputs = tensors_in(output)
    # A hook on a leaf (a parameter that is returned as it is) would outlive the graph, and hooks on
    # two mentions of one tensor would count it twice.
    differentiable = [
        tensor.grad_fn is not None and all(tensor is not other for other in outputs[:i])
        for i, tensor in enumerate(outputs)
    ]
    if not any(differentiable):
        return
    call = Call.of(module, args, kwargs)
    if len(outputs) == 1:
        outputs[0].register_hook(partial(_arrived_alone, this, call))
    else:
        torch.autograd.graph.register_multi_grad_hook(
            tuple(tensor for tensor, known in zip(outputs, differentiable, strict=True) if known),
            partial(_arrived, this, call, differentiable),
        )


def _arrived_alone(this: _Reference, call: Call, grad: Tensor) -> None:
    recorder = this()
    if recorder is not None and recorder.sink is not None:
        recorder.sink(call, (grad,))


def _arrived(
    this: _Reference,
    call: Call,
    differentiable: list[bool],
    grads: Sequence[Tensor | None],
) -> None:
    recorder = this()
    if recorder is not None and recorder.sink is not None:
        arrived = iter(grads)
        recorder.sink(call, tuple(next(arrived) if known else None for known in differentiable))
