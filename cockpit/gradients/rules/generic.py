"""The rule for every other module with parameters of its own: its vector-Jacobian product, mapped over the samples.

The module's `forward` is run again on its inputs, one sample at a time in the mind and all at once on the machine. This
needs a module whose output for a sample depends on that sample alone, and that draws no random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch
) -> dict[str, IndividualGradients]:
    """Serve any module whose inputs and outputs have the samples in the first dimension."""
    replay = Replay(call, grads, batch)
    own = replay.parameters
    dtype = next(iter(own.values())).dtype
    size = sum(parameter.numel() for parameter in own.values())
    if len(batch.pieces(2 * size * dtype.itemsize)) <= 1:
        dense = replay.gradients(slice(0, batch.size), tuple(own))
        return {name: Dense(batch, values) for name, values in dense.items()}
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

    def __init__(self, call: Call, grads: tuple[Tensor | None, ...], batch: Batch) -> None:
        module = call.module
        if module.training != call.training:
            raise Unsupported("it was switched between train and eval mode before the backward pass")
        self.batch = batch
        self.module = _Forward(module)
        self.arrived = [grad is not None for grad in grads]
        leaves, self.structure = pytree.tree_flatten((call.args, call.kwargs))
        dtype = working_dtype(*(p for p in module.parameters(recurse=False)))
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
        self.parameters = {
            name: _cast(parameter, dtype)
            for name, parameter in module.named_parameters(recurse=False)
            if parameter.requires_grad
        }
        own = {f"module.{name}" for name in self.parameters}
        rest = [*self.module.named_parameters(), *self.module.named_buffers()]
        self.rest = {name: _cast(value, dtype) for name, value in rest if name not in own}

    def gradients(self, samples: slice, names: tuple[str, ...]) -> Gradients:
        """Return the individual gradients of the parameters called `names` for some samples, each `[n, *shape]`."""
        inputs = [
            leaf[samples]
            for leaf, batched in zip(self.leaves, self.batched, strict=True)
            if batched
        ]
        grads = [grad[samples] for grad in self.grads]

        def one(sample: list[Tensor], grad: list[Tensor]) -> Gradients:
            return self._pull_back(names, sample, grad)

        with _unseen():
            try:
                return vmap(one)(inputs, grads)
            except (RuntimeError, ValueError) as error:
                if "randomness" in str(error):
                    raise Unsupported(_RANDOM) from error
            return _looped(one, inputs, grads)

    def _pull_back(self, names: tuple[str, ...], sample: list[Tensor], grad: list[Tensor]) -> Gradients:
        given = iter(sample)
        leaves = [
            next(given).unsqueeze(0) if batched else leaf
            for leaf, batched in zip(self.leaves, self.batched, strict=True)
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)

        def outputs(chosen: Gradients) -> list[Tensor]:
            values = {f"module.{name}": value for name, value in (self.parameters | chosen).items()}
            # Copies, so that a module that updates its buffers does not do so twice.
            rest = {name: value.clone() for name, value in self.rest.items()}
            result = functional_call(self.module, values | rest, args, kwargs)
            return [t for t, arrived in zip(tensors_in(result), self.arrived, strict=True) if arrived]

        _, pull = vjp(outputs, {name: self.parameters[name] for name in names})
        return pull([g.unsqueeze(0) for g in grad])[0]


class _Forward(nn.Module):
    """Calls a module's `forward`, which leaves out the hooks of the module itself."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.forward(*args, **kwargs)


_RANDOM = "it draws random numbers, so running it again gives other gradients"


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
    one: Callable[[list[Tensor], list[Tensor]], Gradients], inputs: list[Tensor], grads: list[Tensor]
) -> Gradients:
    """Do the same sample by sample, for modules that cannot be mapped."""
    before = torch.get_rng_state()
    results = []
    for i in range(len(grads[0])):
        results.append(one([value[i] for value in inputs], [grad[i] for grad in grads]))
        if not torch.equal(before, torch.get_rng_state()):
            torch.set_rng_state(before)
            raise Unsupported(_RANDOM)
    return {name: torch.stack([result[name] for result in results]) for name in results[0]}


@contextmanager
def _unseen() -> Iterator[None]:
    token = replaying.set(True)
    try:
        with torch.enable_grad(), backpack_disabled():
            yield
    finally:
        replaying.reset(token)
