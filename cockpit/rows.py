"""From the values of quantities to rows of the run file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

from cockpit.engine import PerModule, PerParameter, to_host
from cockpit.errors import InvalidType
from cockpit.log import Row
from cockpit.quantities import Outcome

Leaf = tuple[str, str, Any, bool]  # key, parameter, value, detail


def rows_of(values: Sequence[tuple[str, Any]]) -> list[list[Row]]:
    """Flatten the values of quantities, by name, with one transfer to the host for all of them.

    Returns:
        The rows of each value.
    """
    leaves = [list(_leaves(value)) for _, value in values]
    tensors = [leaf[2] for of_value in leaves for leaf in of_value if isinstance(leaf[2], Tensor)]
    arrays = iter(to_host(tensors))
    names = (name for name, _ in values)
    return [_rows(name, of_value, arrays) for name, of_value in zip(names, leaves, strict=True)]


def _rows(name: str, leaves: Sequence[Leaf], arrays: Iterator[np.ndarray]) -> list[Row]:
    rows = []
    for key, parameter, value, detail in leaves:
        plain = next(arrays) if isinstance(value, Tensor) else value
        if isinstance(plain, list | tuple):
            plain = np.asarray(plain)
        if isinstance(plain, np.ndarray) and plain.ndim == 0:
            plain = plain.item()
        is_array = isinstance(plain, np.ndarray) and plain.dtype.kind not in "OUS"
        if not is_array and not isinstance(plain, Real | np.bool_):
            # Here, where it costs this value alone, and not the others of the step.
            raise InvalidType(
                f"the value is of type {type(plain).__name__}. Give a number or an array of numbers."
            )
        rows.append(Row(name, plain, key, parameter, detail))
    return rows


def _leaves(value: Any, key: str = "", detail: bool = False) -> Iterator[Leaf]:
    if isinstance(value, Outcome):
        yield from _leaves(value.value)
        for name, more in value.details.items():
            yield from _leaves(more, name, detail=True)
    elif isinstance(value, PerParameter | PerModule):
        for parameter, of_one in value.items():
            yield key, parameter, of_one, detail
    elif isinstance(value, Mapping):
        for name, more in value.items():
            yield from _leaves(more, f"{key}/{name}" if key else str(name), detail)
    elif isinstance(value, list | tuple) and any(isinstance(v, Tensor) for v in value):
        for position, more in enumerate(value):
            yield from _leaves(more, f"{key}/{position}" if key else str(position), detail)
    else:
        yield key, "", value, detail
