"""Training for a while, and leaving everything as it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cockpit.coverage.undisturbed import undisturbed


@contextmanager
def restored(model: nn.Module, optimizers: Sequence[Any]) -> Iterator[None]:
    """Put everything that a training step changes back at the end, to the last bit.

    That is: parameters (also those that only an optimizer knows), buffers, modes, the optimizers'
    states and settings, and the states of the random number generators of Python, NumPy and
    PyTorch. The gradients are put aside in the meantime. All tensors stay the objects that they are.

    Args:
        model: The model.
        optimizers: The optimizers, or what stands in for them.
    """
    modes = [(module, module.training) for module in model.modules()]
    parameters = _parameters(model, optimizers)
    gradients = [(parameter, parameter.grad) for parameter in parameters]
    values = [(parameter, parameter.detach().clone()) for parameter in parameters]
    contents = _Contents(
        _held_by(
            [(o.param_groups, getattr(o, "state", {}), vars(o)) for o in optimizers], parameters
        )
    )
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
    states = _held_by([getattr(optimizer, "state", {}) for optimizer in optimizers], parameters)
    tensors = [*parameters, *model.buffers(), *(t for t in states if isinstance(t, Tensor))]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _parameters(model: nn.Module, optimizers: Sequence[Any]) -> list[Tensor]:
    groups = (group["params"] for optimizer in optimizers for group in optimizer.param_groups)
    return list(dict.fromkeys([*model.parameters(), *(p for group in groups for p in group)]))


def _held_by(thing: Any, known: Iterable[Tensor]) -> list[Any]:
    """Return the dicts, lists and tensors that a thing consists of, each once, but those that are known."""
    seen = {id(tensor) for tensor in known}
    found, left = [], [thing]
    while left:
        one = left.pop()
        if id(one) in seen or not isinstance(one, dict | list | tuple | Tensor):
            continue
        if not isinstance(one, tuple):
            seen.add(id(one))
            found.append(one)
        if not isinstance(one, Tensor):
            left += one.values() if isinstance(one, dict) else one
    return found


def _copy_back(values: Iterable[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for tensor, value in values:
            tensor.copy_(value)


class _Contents:
    """What dicts, lists and tensors hold.

    Args:
        things: These.
    """

    def __init__(self, things: Iterable[Any]) -> None:
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._tensors: list[tuple[Tensor, Tensor]] = []
        for thing in things:
            if isinstance(thing, dict):
                self._dicts.append((thing, dict(thing)))
            elif isinstance(thing, list):
                self._lists.append((thing, list(thing)))
            else:
                self._tensors.append((thing, thing.detach().clone()))

    def put_back(self) -> None:
        """Let them hold what they held."""
        for mapping, before in self._dicts:
            mapping.clear()
            mapping.update(before)
        for sequence, elements in self._lists:
            sequence[:] = elements
        _copy_back(self._tensors)
