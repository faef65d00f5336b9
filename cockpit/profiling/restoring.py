"""Training for a while, and leaving everything as it was."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from cockpit.coverage.undisturbed import undisturbed
from cockpit.errors import Unsupported

CONTAINERS = dict | list | set | deque
"""What holds things, and can be given back what it held."""

VALUES = Tensor | torch.Generator
"""What has a value of its own that changes."""


@contextmanager
def restored(model: nn.Module, optimizers: Sequence[Any]) -> Iterator[None]:
    """Put everything that a training step changes back at the end, to the last bit.

    That is: parameters (also those that only an optimizer knows), buffers, modes, the optimizers'
    states and settings, and the states of the random number generators of Python, NumPy and
    PyTorch. The gradients are put aside in the meantime. All tensors stay the objects that they are.

    Optimizers may hold others, as SAM and Lookahead do, and objects with a state of their own: what is
    in the attributes of these is put back as well.

    Args:
        model: The model.
        optimizers: The optimizers, or what stands in for them.

    Raises:
        Unsupported: if an optimizer has a state that is not in attributes, and could not be put back.
    """
    modes = [(module, module.training) for module in model.modules()]
    parameters = _parameters(model, optimizers)
    gradients = [(parameter, parameter.grad) for parameter in parameters]
    values = [(parameter, parameter.detach().clone()) for parameter in parameters]
    contents = _Contents(_held_by([*optimizers, *_seen_through(optimizers)], parameters))
    with undisturbed(model):
        try:
            for parameter in parameters:
                parameter.grad = None
            yield
        finally:
            contents.put_back()
            _copy_back(values)
            for parameter, gradient in gradients:
                parameter.grad = gradient
            for module, mode in modes:
                module.training = mode


def resident(model: nn.Module, optimizers: Sequence[Any]) -> int:
    """Return the bytes of parameters, buffers and the states of the optimizers."""
    parameters = _parameters(model, optimizers)
    within = _optimizers_within(optimizers)
    states = _held_by([getattr(optimizer, "state", {}) for optimizer in within], parameters)
    tensors = [*parameters, *model.buffers(), *(t for t in states if isinstance(t, Tensor))]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _parameters(model: nn.Module, optimizers: Sequence[Any]) -> list[Tensor]:
    within = _optimizers_within(optimizers)
    groups = (group["params"] for optimizer in within for group in optimizer.param_groups)
    return list(dict.fromkeys([*model.parameters(), *(p for group in groups for p in group)]))


def _optimizers_within(optimizers: Sequence[Any]) -> list[Any]:
    """Return the optimizers, and those that they hold."""
    return [one for one in _walk([*optimizers], ()) if _is_optimizer(one)]


def _seen_through(optimizers: Sequence[Any]) -> list[Any]:
    """Return what wrappers pass on from elsewhere: groups and states that are no attributes of theirs."""
    within = _optimizers_within(optimizers)
    return [(one.param_groups, getattr(one, "state", {})) for one in within]


def _is_optimizer(thing: Any) -> bool:
    return hasattr(thing, "param_groups") and not isinstance(thing, type | nn.Module)


def _held_by(thing: Any, known: Iterable[Tensor]) -> list[Any]:
    """Return what of all that a thing consists of can be put back, but tensors that are known."""
    return [one for one in _walk(thing, known) if isinstance(one, CONTAINERS | VALUES)]


def _walk(thing: Any, known: Iterable[Tensor]) -> list[Any]:
    """Return all that a thing consists of and that can change, each once, but tensors that are known.

    Raises:
        Unsupported: if it has an optimizer without attributes.
    """
    seen = {id(tensor) for tensor in known}
    found, left = [], [thing]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict | list | tuple | set | deque):
            left += one.values() if isinstance(one, dict) else one
        elif _has_state(one):
            left.append(_attributes(one))
        elif not isinstance(one, VALUES):
            continue
        found.append(one)
    return found


def _has_state(thing: Any) -> bool:
    """Whether a thing is an optimizer, or another object with attributes that a step may change."""
    if isinstance(thing, Tensor | nn.Module | type | FunctionType | ModuleType):
        return False
    if _is_optimizer(thing) or hasattr(thing, "state_dict"):
        return True
    return any(isinstance(value, Tensor) for value in getattr(thing, "__dict__", {}).values())


def _attributes(thing: Any) -> dict[str, Any]:
    if hasattr(thing, "__dict__"):
        return vars(thing)
    raise Unsupported(
        f"{type(thing).__name__} keeps its state where it cannot be put back afterwards: it has __slots__, "
        "and no attributes. Profile with the optimizer that it stands for, or without one."
    )


def _copy_back(values: Iterable[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for tensor, value in values:
            tensor.copy_(value)


class _Contents:
    """What dicts, lists, sets, tensors and random number generators hold.

    Args:
        things: These.
    """

    def __init__(self, things: Iterable[Any]) -> None:
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._others: list[tuple[set[Any] | deque[Any], list[Any]]] = []
        self._generators: list[tuple[torch.Generator, Tensor]] = []
        self._tensors: list[tuple[Tensor, Tensor]] = []
        for thing in things:
            if isinstance(thing, dict):
                self._dicts.append((thing, dict(thing)))
            elif isinstance(thing, list):
                self._lists.append((thing, list(thing)))
            elif isinstance(thing, torch.Generator):
                self._generators.append((thing, thing.get_state()))
            elif isinstance(thing, set | deque):
                self._others.append((thing, list(thing)))
            else:
                self._tensors.append((thing, thing.detach().clone()))

    def put_back(self) -> None:
        """Let them hold what they held."""
        for mapping, before in self._dicts:
            mapping.clear()
            mapping.update(before)
        for sequence, elements in self._lists:
            sequence[:] = elements
        for other, elements in self._others:
            other.clear()
            if isinstance(other, set):
                other.update(elements)
            else:
                other.extend(elements)
        for generator, state in self._generators:
            generator.set_state(state)
        _copy_back(self._tensors)
