"""Hooks on a model that see each layer's input and the gradient that arrives at its output."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle, unserializable_hook

from cockpit.gradients.conditions import Conditions, state_before
from cockpit.gradients.graph import Graph, next_number
from cockpit.gradients.layout import knows_layout, samples_of
from cockpit.gradients.randomness import RandomState, accelerators
from cockpit.gradients.recomputation import Bare, Part, Recomputed, deliver, running_part
from cockpit.gradients.rules import Call
from cockpit.gradients.rules.parametrized import buffers_of
from cockpit.gradients.rules.registry import find_rule, may_draw, served_parameters
from cockpit.gradients.rules.rerun import replaying, tensors_in
from cockpit.gradients.rules.state import state_of
from cockpit.gradients.together import Output, outputs_of

Sink = Callable[[Call, "tuple[Tensor | None, ...]"], None]
Witness = Callable[[str, Call, Any], None]


class Forward(NamedTuple):
    """What was kept of the forward passes of a model.

    Args:
        inputs: Arguments of the last one.
        outputs: What it returned.
        state: State of the global random generators at the start of the first one.
    """

    inputs: tuple[Any, ...] = ()
    outputs: Any = None
    state: RandomState | None = None


class Recorder:
    """Records the calls of a model's modules, and reports those whose gradients arrive.

    A forward hook on every module with parameters of its own takes references to the inputs, which
    autograd holds anyway, and puts a tensor hook on the outputs. The references live in that hook,
    and so they go with the graph. Tensor hooks survive in-place operations on the output, which
    hooks on the module's backward do not.

    The forward pass comes before the number of the step is known, so the forward hook always runs.
    The tensor hook returns at once unless `sink` is set.

    While it is `asleep`, the forward hooks return at once as well: nothing of the forward pass is known
    afterwards.

    While `witness` is set, every call of a module with parameters is shown to it as it is made, with
    the module's name, the call and the output; after `watch_all_modules`, those of the other modules
    too.

    Args:
        model: The model. Its modules may be called in any order, any number of times.
        batch_dim: Dimension of the model's input in which the samples lie, where that is known.
    """

    def __init__(self, model: nn.Module, batch_dim: int | None = None) -> None:
        self._batch_dim = batch_dim
        # A compiled model runs the hooks as they are, rather than have them compiled as well.
        compiles = "torch._dynamo" in sys.modules
        self.take = torch.compiler.disable(_take) if compiles else _take
        self.sink: Sink | None = None
        self.witness: Witness | None = None
        self.on_pass: Callable[[], None] | None = None
        self.batch_size: int | None = None
        self.asleep = False
        self._counting = True  # whether the number of samples is seen
        self._woken = 0  # number of the first node that was made since it slept
        # Whether nothing tells in which dimension of the last input the samples lie.
        self.guesses_size = False
        self._last_dim = 0
        self.keeps_outputs = False
        self._inputs: tuple[Any, ...] = ()
        self._outputs: Any = None
        self._state: RandomState | None = None  # at the start of the forward pass under way
        self._recent: list[weakref.ref[_Pass]] = []  # in their order, since one was last taken
        self._keeps_states = False
        self._passes: weakref.WeakSet[_Pass] = weakref.WeakSet()
        self._calls: weakref.WeakSet[Call] = weakref.WeakSet()
        # Those of modules that know where the samples lie.
        self._telling: weakref.WeakSet[Call] = weakref.WeakSet()
        self._recomputed = Recomputed()
        self._recomputes: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # have a hook for that
        # Where the forwards under way of modules that may have to be run again compute, and the random
        # states at their start.
        self._starts: weakref.WeakKeyDictionary[nn.Module, tuple[RandomState, torch.device]] = (
            weakref.WeakKeyDictionary()
        )
        self._hooks: list[RemovableHandle] = []
        # The hooks hold no strong reference to this object: a recorder that is dropped does not
        # live on in the model.
        self._model, self._this = weakref.ref(model), (this := _Reference(self))
        self._watches_all = self._asks_modules = False
        for name, module in _taking_hooks(model):
            if _has_parameters(module):
                self._asks_modules |= knows_layout(module)
                kind = _Kind(name, find_rule(module) is not None, knows_layout(module))
                hook = partial(_record, this, kind)
                self._hooks.append(module.register_forward_hook(hook, with_kwargs=True))
                if may_draw(module):
                    note = partial(_note_conditions, this, kind)
                    self._hooks.append(module.register_forward_pre_hook(note))
        self._hooks.append(
            model.register_forward_hook(partial(_note_batch_size, this), with_kwargs=True)
        )

    def listen(self, sink: Sink) -> None:
        """Report to `sink` what arrives from now on, and see anew how many samples there are."""
        self.sink, self.batch_size = sink, None

    def stop(self) -> None:
        """Report nothing any more."""
        self.sink = None
        self._recomputed.forget()

    def report_recomputed(self) -> None:
        """Report the calls in checkpointed parts whose inputs have been computed again by now."""
        if self.sink is not None:
            self._recomputed.report(self.sink)

    def rest(self, asleep: bool, counting: bool = False) -> None:
        """Let the forward hooks rest from now on, or have them work again.

        Args:
            asleep: Whether they rest.
            counting: Whether the number of samples is to be seen all the same. Where it takes more than
                one hook to see it, none rests.
        """
        asleep = asleep and not (counting and self._asks_modules)
        if self.asleep and not asleep:
            self._woken = next_number()
        self.asleep, self._counting = asleep, counting or not asleep

    def slept_through(self, graph: Graph) -> bool:
        """Whether a part of a graph was made while the hooks rested, or before that."""
        return self.asleep or graph.oldest < self._woken

    def watch_all_modules(self) -> None:
        """Show the witness the modules without parameters too, and call `on_pass` when the model is called."""
        model = self._model()
        if self._watches_all or model is None:
            return
        self._watches_all = True
        for name, module in _taking_hooks(model):
            if not _has_parameters(module):
                hook = partial(_show, self._this, name)
                self._hooks.append(module.register_forward_hook(hook, with_kwargs=True))
        self._hooks.append(model.register_forward_pre_hook(partial(_begin_pass, self._this)))

    def keep_random_states(self) -> None:
        """Note the global random state at the start of every forward pass of the model from now on."""
        model = self._model()
        if self._keeps_states or model is None:
            return
        self._keeps_states = True
        hook = model.register_forward_pre_hook(partial(_note_state, self._this), prepend=True)
        self._hooks.append(hook)

    def take_forward(self) -> Forward:
        """Return what was kept of the forward passes since this was last called, and let go of it."""
        # A pass whose graph is gone has no part in the loss.
        passes = [forward for reference in self._recent if (forward := reference()) is not None]
        taken = Forward(self._inputs, self._outputs, passes[0].state if passes else None)
        self._inputs, self._outputs = (), None
        self._recent.clear()
        return taken

    def batch_sizes(self) -> set[int]:
        """Return the batch sizes of all forward passes of the model whose graphs are still there."""
        return {forward.batch_size for forward in self._passes if forward.batch_size}

    def lengths(self) -> set[int]:
        """Return how many samples there may be, if they may lie in any dimension of the model's input."""
        return {size for forward in self._passes for size in forward.sizes}

    def batch_dim(self, batch_size: int) -> int:
        """Return in which dimension of the model's input there are so many samples.

        Where several are as long, or none, it is the one that was last seen; 0 at first.
        """
        for forward in self._passes:
            if batch_size > 1 and forward.sizes.count(batch_size) == 1:
                self._last_dim = forward.sizes.index(batch_size)
        return self._last_dim

    def _told(self, sizes: tuple[int, ...]) -> int | None:
        """Return which of these is the number of samples, from modules that know where they lie."""
        told = {of_call[0] for call in self._telling if (of_call := samples_of(call)) is not None}
        fitting = told & set(sizes)
        return fitting.pop() if len(fitting) == 1 else None

    def tells_first(self, batch_size: int) -> bool:
        """Whether modules that know where the samples lie have them in the first dimension."""
        told = set(map(samples_of, self._telling)) - {None}
        return told == {(batch_size, False)}

    def calls(self) -> list[Call]:
        """Return the calls of modules with parameters of which the graph is still there."""
        return list(self._calls)

    def note_checkpointed(self, part: Part, call: Call) -> Bare:
        """Note a call in a checkpointed part, and see its inputs when it is made again."""
        if call.module not in self._recomputes:
            self._recomputes.add(call.module)
            hook = partial(_run_again, self._this)
            self._hooks.append(call.module.register_forward_pre_hook(hook, with_kwargs=True))
            # The last moment: when its gradient is accumulated, a parameter is taken for complete.
            for parameter in served_parameters(call.module).values():
                if parameter.requires_grad:
                    # Files of the model go without it, and without a warning of that.
                    report = unserializable_hook(partial(_report_recomputed, self._this))
                    self._hooks.append(parameter.register_hook(report))
        return self._recomputed.note(part, call)

    def close(self) -> None:
        """Remove all hooks from the model."""
        self.sink = self.witness = self.on_pass = None
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


def has_hooks_of_others(parameter: Tensor) -> bool:
    """Whether somebody but recorders listens to the gradient of a parameter."""
    hooks = (parameter._backward_hooks or {}).values()
    return any(getattr(hook, "func", None) is not _report_recomputed for hook in hooks)


class _Reference:
    """A weak reference to a recorder, which copies of the model and files with it do not take along."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        self._recorder = None if recorder is None else weakref.ref(recorder)

    def __call__(self) -> Recorder | None:
        return None if self._recorder is None else self._recorder()

    def __reduce__(self) -> tuple[type[_Reference], tuple[()]]:
        return _Reference, ()


class _Kind(NamedTuple):
    """What does not change from call to call of a module.

    Args:
        name: Its name in the model.
        has_rule: Whether it is served by a rule, and not run again as a whole.
        tells: Whether it knows where the samples lie.
    """

    name: str
    has_rule: bool
    tells: bool


class _Pass:
    """One forward pass of the model. It lives in hooks on the output, and so it goes with the graph."""

    def __init__(self, batch_size: int, sizes: tuple[int, ...], state: RandomState | None) -> None:
        self.batch_size = batch_size  # 0 where it is not known
        self.sizes = sizes  # of the dimensions of the model's input in which the samples may lie
        self.state = state  # of the global random generators at its start


def _note_batch_size(
    this: _Reference, module: nn.Module, args: Any, kwargs: Any, output: Any
) -> None:
    recorder = this()
    if recorder is None or not recorder._counting:
        return
    if not torch.is_grad_enabled() or replaying.get():
        return
    dim = recorder._batch_dim or 0
    given = [
        value
        for value in (*args, *kwargs.values())
        if isinstance(value, Tensor) and value.dim() > dim
    ]
    outputs = [tensor for tensor in tensors_in(output) if tensor.grad_fn is not None]
    if recorder.keeps_outputs:
        recorder._inputs, recorder._outputs = (*args, *kwargs.values()), output
    state, recorder._state = recorder._state, None
    if (given or state is not None) and outputs:
        size, sizes = (given[0].shape[dim], _sample_dims(given[0])) if given else (0, ())
        if recorder._batch_dim is None:
            told = recorder._told(sizes) or _of_output(given, outputs[0])
            recorder.guesses_size, size = not told and len(sizes) > 1, told or size
        forward = _Pass(size, sizes, state)
        recorder._passes.add(forward)
        if state is not None:
            alive = [reference for reference in recorder._recent if reference() is not None]
            recorder._recent = [*alive, weakref.ref(forward)]
        for tensor in outputs:
            tensor.register_hook(partial(_passed, this, forward))


def _of_output(given: Sequence[Tensor], output: Tensor) -> int | None:
    """Return the length of the output, if it is that of an input after the first: offsets, say."""
    length = len(output) if output.dim() else 0
    first, *more = (len(value) if value.dim() else 0 for value in given) if given else (0,)
    return length if length != first and length in more else None


def _sample_dims(value: Tensor) -> tuple[int, ...]:
    """Return the sizes of the dimensions in which samples may lie: the first, and of sequences the second."""
    sequence = value.dim() == (3 if value.is_floating_point() else 2)
    return tuple(value.shape[: 2 if sequence else 1])


def _note_state(this: _Reference, module: nn.Module, args: Any) -> None:
    recorder = this()
    if (
        recorder is not None
        and not recorder.asleep
        and torch.is_grad_enabled()
        and not replaying.get()
    ):
        recorder._state = RandomState.capture(*accelerators(module.parameters()))


def _passed(this: _Reference, forward: _Pass, grad: Tensor) -> None:
    recorder = this()
    if recorder is not None and recorder.sink is not None:
        recorder.batch_size = forward.batch_size


def _taking_hooks(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules with their names, without those of TorchScript, and without those that compute weights.

    The parameters of the latter are served with the layer whose weight it is.
    """
    for name, module in model.named_modules():
        computes_weight = "parametrizations" in name.split(".")
        if not isinstance(module, torch.jit.ScriptModule) and not computes_weight:
            yield name, module


def _has_parameters(module: nn.Module) -> bool:
    return bool(served_parameters(module))


def _note_conditions(this: _Reference, kind: _Kind, module: nn.Module, args: Any) -> None:
    recorder = this()
    if recorder is None or recorder.asleep or not module.training:
        return
    if kind.has_rule and not module.dropout:  # it draws for nothing else
        return
    if torch.is_grad_enabled() and not replaying.get() and _trains(module):
        device = _device(module)
        state = state_before(device)
        if state is not None:
            recorder._starts[module] = state, device


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
    this: _Reference, kind: _Kind, module: nn.Module, args: Any, kwargs: Any, output: Any
) -> None:
    recorder = this()
    if recorder is None or recorder.asleep:
        return
    if torch.is_grad_enabled() and not replaying.get():
        recorder.take(recorder, kind, module, args, kwargs, output)


def _take(
    recorder: Recorder, kind: _Kind, module: nn.Module, args: Any, kwargs: Any, output: Any
) -> None:
    part = running_part()
    if part is not None and part.run is not None:  # what is made again was recorded before
        return
    if recorder.witness is not None:
        recorder.witness(kind.name, Call.of(module, args, kwargs), output)
    start = recorder._starts.pop(module, None)
    if not _trains(module):
        return
    outputs = tensors_in(output)
    nodes = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    if not nodes:
        return
    call = Call.of(module, args, kwargs)
    if start is not None:
        call.conditions = Conditions.since(*start)
    call.buffers = buffers_of(module)
    if not kind.has_rule or "forward" in vars(module):
        call.state = state_of(module)
    call.ends = tuple(node._sequence_nr() for node in nodes)
    made = call if part is None else recorder.note_checkpointed(part, call)
    noted = made if isinstance(made, Call) else made.call
    recorder._calls.add(noted)
    if kind.tells:
        recorder._telling.add(noted)
    if len(outputs) == 1:
        outputs[0].register_hook(partial(_arrived_alone, recorder._this, made))
        return
    for tensor, place in outputs_of(outputs):
        tensor.register_hook(partial(_arrived, recorder._this, made, place))


def _trains(module: nn.Module) -> bool:
    for parameter in module._parameters.values():  # the quick way, for it is gone at every call
        if parameter is not None and parameter.requires_grad:
            return True
    return bool(module._modules) and any(
        parameter.requires_grad for parameter in served_parameters(module).values()
    )


def _device(module: nn.Module) -> torch.device:
    own = (parameter for parameter in module._parameters.values() if parameter is not None)
    first = next(own, None)
    return (next(module.parameters()) if first is None else first).device


def _run_again(
    this: _Reference, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    recorder = this()
    if recorder is None or recorder.sink is None or replaying.get():
        return
    part = running_part()
    if part is not None and part.run is not None:
        recorder._recomputed.again(part, module, args, kwargs)


def _report_recomputed(this: _Reference, grad: Tensor) -> None:
    recorder = this()
    if recorder is not None:
        recorder.report_recomputed()


def _arrived_alone(this: _Reference, call: Call | Bare, grad: Tensor) -> None:
    recorder = this()
    if recorder is not None and recorder.sink is not None:
        _report(recorder, recorder.sink, call, (grad,))


def _arrived(this: _Reference, call: Call | Bare, output: Output, grad: Tensor | None) -> None:
    recorder = this()
    if recorder is not None and recorder.sink is not None:
        grads = output.take(grad)
        if grads is not None:
            _report(recorder, recorder.sink, call, grads)


def _report(
    recorder: Recorder, sink: Sink, call: Call | Bare, grads: tuple[Tensor | None, ...]
) -> None:
    recorder.report_recomputed()
    if isinstance(call, Bare):
        deliver(call, grads, sink)
    else:
        sink(call, grads)
