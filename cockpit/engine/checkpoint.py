"""What is carried from step to step, as plain data that a checkpoint can hold.

``torch.load`` reads tensors, numbers, strings, lists and dictionaries without running code, and so
nothing else goes into a checkpoint: no classes, no pickled objects, no names to import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from cockpit.engine.step import Missing, PerModule, PerParameter
from cockpit.errors import InvalidArgument
from cockpit.gradients import Histogram
from cockpit.transforms import Need

_MAPPINGS = {kind.__name__: kind for kind in (PerParameter, PerModule, dict)}
_RECORDS = {kind.__name__: kind for kind in (Missing, Histogram)}


class NotPlain(Exception):
    """A value is of a kind that no checkpoint holds."""


def packed(value: Any) -> Any:
    """Return a value as plain data.

    Args:
        value: None, a number, a string, a tensor (which is copied), or lists, tuples, dictionaries
            with keys of the plain kinds, and values of needs made of these.

    Raises:
        NotPlain: if it is something else.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, list):
        return [packed(item) for item in value]
    if isinstance(value, tuple):
        return {"kind": "tuple", "items": [packed(item) for item in value]}
    kind = type(value).__name__
    if _MAPPINGS.get(kind) is type(value):
        return {"kind": kind, "items": [[packed(k), packed(v)] for k, v in value.items()]}
    if _RECORDS.get(kind) is type(value) and is_dataclass(value):
        parts = [packed(getattr(value, part.name)) for part in fields(value)]
        return {"kind": kind, "items": parts}
    raise NotPlain(f"a value of type {kind} cannot be kept in a checkpoint")


def unpacked(data: Any, put: Callable[[Tensor], Tensor]) -> Any:
    """Return the value that `packed` made plain data of.

    Args:
        data: The plain data.
        put: Brings a tensor to the device where it belongs.

    Raises:
        InvalidArgument: if the data are none that `packed` makes.
    """
    if isinstance(data, Tensor):
        return put(data)
    if isinstance(data, list):
        return [unpacked(item, put) for item in data]
    if not isinstance(data, dict):
        return data
    kind, items = data.get("kind"), data.get("items")
    if not isinstance(kind, str) or not isinstance(items, list):
        raise InvalidArgument("The state is not one that Cockpit.state_dict() has returned.")
    values = [unpacked(item, put) for item in items]
    if kind in _MAPPINGS:
        return _MAPPINGS[kind]((key, value) for key, value in values)
    if kind in _RECORDS:
        return _RECORDS[kind](*values)
    if kind == "tuple":
        return tuple(values)
    raise InvalidArgument(f"The state has a value of the unknown kind {kind!r}.")


def packed_values(needs: Sequence[Need], values: Mapping[Need, Any]) -> list[Any]:
    """Return the values of needs that have been met, as pairs of a need's place and the value."""
    kept = []
    for place, need in enumerate(needs):
        if need not in values:
            continue
        try:
            kept.append([place, packed(values[need])])
        except NotPlain as error:
            kept.append([place, packed(Missing(f"{need}: {error}"))])
    return kept


def packed_by_need(values: Mapping[Need, Any]) -> dict[str, Any]:
    """Return what needs have kept for themselves; what no checkpoint holds is left out."""
    kept = {}
    for need, value in values.items():
        try:
            kept[repr(need)] = packed(value)
        except NotPlain:
            continue
    return kept


def by_need(
    kept: Mapping[str, Any], needs: Iterable[Need], put: Callable[[Tensor], Tensor]
) -> dict[Need, Any]:
    """Return the same to those of `needs` that are still asked for."""
    named = {repr(need): need for need in needs}
    return {named[key]: unpacked(data, put) for key, data in kept.items() if key in named}
