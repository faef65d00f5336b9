"""The rule for every other module: its vector-Jacobian product, mapped over the samples.

The module's `forward` is run again on its inputs, one sample at a time in the mind and all at once
on the machine. This needs a module whose output for a sample depends on that sample alone, and that
draws no random numbers. Neither is taken on trust: what the samples yield one by one is compared
with what they yield in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from backpack import disable as backpack_disabled
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.utils import _pytree as pytree

from cockpit.errors import Unsupported
from cockpit.gradients.batch import Batch, working_dtype
from cockpit.gradients.handle import Dense, IndividualGradients
from cockpit.gradients.rules.registry import Call

replaying: ContextVar[bool] = ContextVar("replaying", default=False)
"""Whether a module's forward is being run again: hooks that record calls must look away."""

Gradients = dict[str, Tensor]


def generic(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch, borrowed: tuple[str, ...] = ()
) -> dict[str, IndividualGradients]:
    """Serve any module whose inputs and outputs have the samples in the first dimension.

    Args:
        call: The call.
        grads: The gradients that arrived.
        batch: The batch.
        borrowed: Names of parameters of submodules that the module uses without calling these.
    """
    replay = Replay(call, grads, batch, borrowed)
    own = replay.parameters
    dtype = next(iter(own.values())).dtype
    size = sum(parameter.numel() for parameter in own.values())
    pieces = batch.pieces(2 * size * dtype.itemsize)
    first = replay.gradients(pieces[0], tuple(own))
    replay.confirm(pieces[0], first)
    if len(pieces) == 1:
        return {name: Dense(batch, values) for name, values in first.items()}
    return {name: Replayed(replay, name) for name in own}


class Replayed(IndividualGradients):
    """Individual gradients that are too large to be stored, computed anew for each piece."""

    def __init__(self, replay: Replay, name: str) -> None:
        parameter = replay.parameters[name]
        super().__init__(replay.batch, parameter.shape, parameter.dtype, parameter.device)
        self._replay, self._name = replay, name

    def piece(self, samples: slice) -> Tensor:
        """Run the module again on some samples."""
        return self._replay.gradients(samples, (self._name,))[self._name]


class Replay:
    """Runs a call's module again and pulls the gradients of its output back to its parameters, sample by sample."""

    def __init__(
        self,
        call: Call,
        grads: tuple[Tensor | None, ...],
        batch: Batch,
        borrowed: tuple[str, ...] = (),
    ) -> None:
        module = call.module
        if module.training != call.training:
            raise Unsupported(
                "it was switched between train and eval mode before the backward pass"
            )
        self.batch = batch
        self.module = _Forward(module)
        self.arrived = [grad is not None for grad in grads]
        leaves, self.structure = pytree.tree_flatten((call.args, call.kwargs))
        own = dict(module.named_parameters(recurse=False))
        own |= {name: module.get_parameter(name) for name in borrowed}
        dtype = working_dtype(*own.values())
        self.leaves = [_cast(leaf, dtype) for leaf in leaves]
        self.batched = [
            isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == batch.size
            for leaf in leaves
        ]
        self.grads = [_cast(grad, dtype) * batch.scale for grad in grads if grad is not None]
        if not any(self.batched) or any(
            grad.dim() == 0 or len(grad) != batch.size for grad in self.grads
        ):
            raise Unsupported(
                f"its inputs and outputs do not have the {batch.size} samples in their first "
                "dimension"
            )
        names: dict[Tensor, str] = {p: name for name, p in own.items() if p.requires_grad}
        self.parameters = {name: _cast(parameter, dtype) for parameter, name in names.items()}
        # A parameter may stand in several places. Those in submodules are parts of their own.
        self.places: dict[str, str] = {}
        self.rest: dict[str, Tensor] = {}
        for place, value in _places(self.module):
            local = place.removeprefix("module.")
            if value in names and ("." not in local or local in borrowed):
                self.places[place] = names[value]
            else:
                self.rest[place] = _cast(value, dtype)

    def gradients(self, samples: slice, names: tuple[str, ...]) -> Gradients:
        """Return the individual gradients of the parameters called `names` for some samples, each `[n, *shape]`."""
        inputs = [
            leaf[samples]
            for leaf, batched in zip(self.leaves, self.batched, strict=True)
            if batched
        ]
        grads = [grad[samples] for grad in self.grads]

        def one(sample: list[Tensor], grad: list[Tensor]) -> Gradients:
            given = iter(sample)
            leaves = [
                next(given).unsqueeze(0) if batched else leaf
                for leaf, batched in zip(self.leaves, self.batched, strict=True)
            ]
            return self._pull_back(names, leaves, [g.unsqueeze(0) for g in grad])

        with _unseen():
            try:
                return vmap(one)(inputs, grads)
            except (RuntimeError, ValueError, Warning) as error:
                if "randomness" in str(error):
                    raise Unsupported(_RANDOM) from error
            return _looped(one, inputs, grads)

    def confirm(self, samples: slice, found: Gradients) -> None:
        """Refuse a module whose samples do not yield, in the batch, what they yield one by one.

        Such a module couples the samples, or they are not in the first dimension, which then is as
        long as the batch by chance.
        """
        if self.batch.size == 1:
            return
        masked = [torch.zeros_like(grad) for grad in self.grads]
        for mask, grad in zip(masked, self.grads, strict=True):
            mask[samples] = grad[samples]
        with _unseen():
            together = self._pull_back(tuple(found), self.leaves, masked)
        errors = [(found[name].sum(0) - together[name]).square().sum() for name in found]
        sizes = [values.square().sum() for values in found.values()]
        if torch.stack(errors).sum() > ROUNDING**2 * torch.stack(sizes).sum():
            raise Unsupported(
                "its output for a sample does not depend on that sample alone, or the samples are not "
                "in the first dimension"
            )

    def _pull_back(
        self, names: tuple[str, ...], leaves: list[Any], grads: list[Tensor]
    ) -> Gradients:
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)

        def outputs(chosen: Gradients) -> list[Tensor]:
            own = self.parameters | chosen
            values = {place: own[name] for place, name in self.places.items()}
            # Copies, so that a module that updates its buffers does not do so twice.
            rest = {name: value.clone() for name, value in self.rest.items()}
            result = functional_call(self.module, values | rest, args, kwargs, tie_weights=False)
            return [
                t for t, arrived in zip(tensors_in(result), self.arrived, strict=True) if arrived
            ]

        pull = vjp(outputs, {name: self.parameters[name] for name in names})[1]
        return pull(grads)[0]


class _Forward(nn.Module):
    """Calls a module's `forward`, which leaves out the hooks of the module itself."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.forward(*args, **kwargs)


_RANDOM = "it draws random numbers, so running it again gives other gradients"

ROUNDING = 1e-2
"""Relative difference that may be rounding (TF32 has ten bits); coupled samples differ by much more."""


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


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().to(dtype) if value.is_floating_point() else value.detach()


def _looped(
    one: Callable[[list[Tensor], list[Tensor]], Gradients],
    inputs: list[Tensor],
    grads: list[Tensor],
) -> Gradients:
    """Do the same sample by sample, for modules that cannot be mapped."""
    with _no_random_numbers(grads[0].device):
        results = [
            one([value[i] for value in inputs], [grad[i] for grad in grads])
            for i in range(len(grads[0]))
        ]
    return {name: torch.stack([result[name] for result in results]) for name in results[0]}


@contextmanager
def _no_random_numbers(device: torch.device) -> Iterator[None]:
    """Refuse what moves the global random state, and put that back."""
    sources = [torch] if device.type == "cpu" else [torch, getattr(torch, device.type)]
    before = [source.get_rng_state() for source in sources]
    moved = False
    try:
        yield
    finally:
        for source, state in zip(sources, before, strict=True):
            if not torch.equal(state, source.get_rng_state()):
                source.set_rng_state(state)
                moved = True
    if moved:
        raise Unsupported(_RANDOM)


@contextmanager
def _unseen() -> Iterator[None]:
    token = replaying.set(True)
    try:
        with torch.enable_grad(), backpack_disabled(), _plain_attention():
            yield
    finally:
        replaying.reset(token)


def _plain_attention() -> AbstractContextManager[None]:
    """Choose the attention kernel that can be mapped; the fused ones would run sample by sample."""
    if not hasattr(nn, "attention"):  # before torch 2.3
        return nullcontext()
    return nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH)
