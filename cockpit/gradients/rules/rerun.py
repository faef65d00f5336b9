"""Runs a module's forward once more, on the inputs of a call, without anybody noticing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from backpack import disable as backpack_disabled
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.utils import _pytree as pytree

from cockpit.errors import Unsupported
from cockpit.gradients.rules.registry import Call
from cockpit.gradients.rules.state import (
    attributes_kept,
    changed,
    present_state,
    refuse_changes,
)

replaying: ContextVar[bool] = ContextVar("replaying", default=False)
"""Whether a module's forward is being run again: hooks that record calls must look away."""

Gradients = dict[str, Tensor]


class Rerun:
    """A call's module, ready to run its forward again.

    Args:
        call: The call.
        arrived: Which of the tensors in the output have got a gradient.
        parameters: Those to differentiate by, by their names in the module.
        dtype: Precision to compute in; None for what each tensor has.

    Raises:
        Unsupported: if the module has been switched to another mode since.
    """

    def __init__(
        self,
        call: Call,
        arrived: list[bool],
        parameters: dict[str, nn.Parameter],
        dtype: torch.dtype | None,
    ) -> None:
        if call.module.training != call.training:
            raise Unsupported(
                "it was switched between train and eval mode before the backward pass"
            )
        _refuse_power_iterations(call.module)
        self.call = call
        self.module = Forward(call.module)
        self.arrived = arrived
        leaves, self.structure = pytree.tree_flatten((call.args, call.kwargs))
        self.leaves = [_cast(leaf, dtype) for leaf in leaves]
        names: dict[Tensor, str] = {p: name for name, p in parameters.items() if p.requires_grad}
        self.parameters = {name: _cast(p, dtype).clone() for p, name in names.items()}
        # A parameter may stand in several places. Those in submodules are parts of their own.
        self.places: dict[str, str] = {}
        self.rest: dict[str, Tensor] = {}
        for place, value in _places(self.module):
            local = place.removeprefix("module.")
            if value in names and ("." not in local or local in parameters):
                self.places[place] = names[value]
            else:
                self.rest[place] = _cast(value, dtype)

    def differentiable(self) -> Gradients:
        """Return the parameters as leaves of a new graph."""
        return {name: value.clone().requires_grad_() for name, value in self.parameters.items()}

    def outputs(self, leaves: list[Any], parameters: Gradients) -> list[Tensor]:
        """Run forward; return the tensors in its output that have got a gradient.

        Args:
            leaves: The inputs, flattened.
            parameters: Values of the parameters that shall not be as they are.

        Raises:
            Unsupported: if the module modifies its inputs in place: it was given others then.
        """
        # Copies, because what the user's backward pass needs may not be modified in place.
        leaves = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        given = [(leaf, leaf._version) for leaf in leaves if isinstance(leaf, Tensor)]
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        result = self._call(self.module, args, kwargs, parameters)
        if any(leaf._version != version for leaf, version in given):
            raise Unsupported(IN_PLACE)
        return [t for t, arrived in zip(tensors_in(result), self.arrived, strict=True) if arrived]

    def twice(
        self, alike: Callable[[], AbstractContextManager[None]]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Run forward twice in a row, without putting buffers and attributes back; return what both yield.

        Args:
            alike: Makes the context to run it in.
        """
        args, kwargs = pytree.tree_unflatten(self.leaves, self.structure)
        runs = self._call(Twice(self.module.module, alike), args, kwargs, {})
        first, second = map(tensors_in, runs)
        return first, second

    def _call(self, module: Forward, args: Any, kwargs: Any, parameters: Gradients) -> Any:
        own = self.parameters | parameters
        values = {place: own[name] for place, name in self.places.items()}
        # Copies, so that a module that updates its buffers does not do so twice.
        rest = {name: value.clone() for name, value in self.rest.items()}
        with attributes_kept(module.module):
            return functional_call(module, values | rest, args, kwargs, tie_weights=False)


def _refuse_power_iterations(module: nn.Module) -> None:
    """Refuse a module with spectral norms inside that take a step whenever the module runs."""
    for part in module.modules():
        old = any(isinstance(hook, SpectralNorm) for hook in part._forward_pre_hooks.values())
        if part.training and part is not module and (old or isinstance(part, _SpectralNorm)):
            raise Unsupported(
                "it has to be run again, and layers with spectral norm in it take another step of their "
                "power iteration then; put its own parameters into a layer of their own"
            )


IN_PLACE = (
    "its forward modifies its input in place, so that what it was given is not there any more to run it "
    "again on; let it work on a new tensor, as x = x + 1 does where x += 1 does not"
)


class Forward(nn.Module):
    """Calls a module's `forward`, which leaves out the hooks of the module itself.

    Args:
        module: The module.

    Attributes:
        changes: Names of buffers and attributes that the forward has been seen to change.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.changes: set[str] = set()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module's `forward` returns."""
        before = present_state(self.module)
        result = self.module.forward(*args, **kwargs)
        self.changes |= changed(before, present_state(self.module))
        return result


class Twice(Forward):
    """Calls a module's `forward` twice, the second time with the buffers and attributes that the first one left.

    Args:
        module: The module.
        alike: Makes the context to call it in.
    """

    def __init__(
        self, module: nn.Module, alike: Callable[[], AbstractContextManager[None]]
    ) -> None:
        super().__init__(module)
        self._alike = alike

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Return what the module's `forward` returns the first and the second time."""
        with self._alike():
            first = self.module.forward(*args, **kwargs)
        with self._alike():
            return first, self.module.forward(*args, **kwargs)


def _places(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every name under which a parameter or buffer is held, once for each module object."""
    for prefix, part in module.named_modules():
        yield from part.named_parameters(prefix, recurse=False, remove_duplicate=False)
        yield from part.named_buffers(prefix, recurse=False, remove_duplicate=False)


def tensors_in(output: Any) -> list[Tensor]:
    """Return the differentiable tensors in the output of a module, in a fixed order."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, tuple | list):
        return [tensor for value in output for tensor in tensors_in(value)]
    return []


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    if not isinstance(value, Tensor):
        return value
    value = value.detach()
    return value.to(dtype) if dtype is not None and value.is_floating_point() else value


def external(outputs: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """Return the gradients that came to a module's outputs from outside of it.

    What arrives at an output also holds what comes through other outputs that the module computes from
    it, as an LSTM cell does its hidden state from its cell state. The products with the module's
    Jacobian would count that twice.

    Args:
        outputs: The outputs of the module, with the graph of all that is between them.
        grads: What arrived at them.
    """
    if len(outputs) < 2:
        return grads
    found: dict[int, Tensor] = {}
    # An output can only depend on those that were made before.
    for j in sorted(range(len(outputs)), key=lambda i: -_made(outputs[i])):
        found[j] = grads[j]
        later = [m for m in found if m != j and outputs[m].requires_grad]
        if later and outputs[j].requires_grad:
            (inside,) = torch.autograd.grad(
                [outputs[m] for m in later],
                [outputs[j]],
                [found[m].to(outputs[m].dtype) for m in later],
                retain_graph=True,
                allow_unused=True,
            )
            if inside is not None:
                found[j] = grads[j] - inside.to(grads[j].dtype)
    return [found[j] for j in range(len(outputs))]


def _made(output: Tensor) -> int:
    return -1 if output.grad_fn is None else output.grad_fn._sequence_nr()


@contextmanager
def unseen(*, mappable: bool = True) -> Iterator[None]:
    """Run a module again in this block, with a graph, and with hooks that record calls looking away.

    Args:
        mappable: Whether to choose the attention kernel that can be mapped over samples.
    """
    token = replaying.set(True)
    kernel = plain_attention() if mappable else nullcontext()
    try:
        with torch.enable_grad(), backpack_disabled(), kernel:
            yield
    finally:
        replaying.reset(token)


@contextmanager
def named_faults(call: Call) -> Iterator[None]:
    """Say what is the matter where running the module of a call again fails in this block.

    Raises:
        Unsupported: instead of what was raised, unless memory ran out.
    """
    try:
        yield
    except (Unsupported, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        refuse_changes(call)
        text = str(error)
        if "saved tensor hooks" in text:
            raise Unsupported(HOOKED) from error
        if "in-place" in text or "inplace" in text:
            raise Unsupported(OVERWRITING) from error
        raise Unsupported(
            f"its forward cannot be run again on its arguments alone, for then it raises "
            f"{type(error).__name__} ({text.partition(chr(10))[0]}); give all that it computes with as "
            "arguments of its forward"
        ) from error


HOOKED = (
    "it has to be run again, and there are saved tensor hooks in its forward, as checkpointing sets "
    "them; use the parameter in a layer of its own"
)
OVERWRITING = (
    "it has to be run again for each sample, and its forward works in place in a way that this does not "
    "allow; let it make new tensors"
)


def plain_attention() -> AbstractContextManager[None]:
    """Choose the attention kernel that can be mapped; the fused ones would run sample by sample."""
    if not hasattr(nn, "attention"):  # before torch 2.3
        return nullcontext()
    return nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH)
