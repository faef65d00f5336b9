"""What a module's forward may read besides its arguments and parameters: its buffers and its attributes."""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from cockpit.errors import Unsupported
from cockpit.gradients.rules.registry import Call, find_entry, version_of

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def state_of(module: nn.Module) -> dict[str, Any]:
    """Return the buffers and plain attributes that a module's forward may read, if it may be run again as a whole.

    These are the buffers of its submodules too. Of a tensor it says which one that is, and how often
    it has been modified in place. It is not held: it may be an output of the module, whose graph
    holds what is noted here.
    """
    if not (module._parameters or "parametrizations" in module._modules) or find_entry(module):
        return {}
    found = {
        f"{prefix}.{name}" if prefix else name: buffer
        for prefix, part in module.named_modules()
        if part._buffers and "parametrizations" not in prefix
        for name, buffer in part._buffers.items()
    }
    found |= {name: value for name, value in vars(module).items() if name not in _OF_EVERY_MODULE}
    return {
        name: (weakref.ref(value), version_of(value)) if isinstance(value, Tensor) else value
        for name, value in found.items()
        if value is None or isinstance(value, Tensor | bool | int | float | complex | str)
    }


def refuse_changes(call: Call, but: Container[str] = ()) -> None:
    """Refuse a call whose module would read something else by now than in its forward.

    Args:
        call: The call.
        but: Buffers and attributes that are known not to matter.
    """
    now = state_of(call.module) if call.state else {}
    for name, value in now.items():
        if name in call.state and name not in but and not _same(call.state[name], value):
            raise Unsupported(
                f"it has to be run again, and its {name} was changed after its forward; give what "
                "differs between its calls as an argument of its forward"
            )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return one[0]() is other[0]() and one[1] == other[1]
    return one is other or bool(type(one) is type(other) and one == other)


@contextmanager
def attributes_kept(module: nn.Module) -> Iterator[None]:
    """Put the attributes of a module and its submodules back after this block."""
    kept = [(part, dict(vars(part))) for part in module.modules()]
    try:
        yield
    finally:
        for part, attributes in kept:
            vars(part).clear()
            vars(part).update(attributes)


State = dict[str, "tuple[Any, int]"]


def present_state(module: nn.Module) -> State:
    """Return the buffers and attributes of a module and its submodules, and the versions of tensors."""
    found: dict[str, Any] = {}
    for prefix, part in module.named_modules():
        own = {n: value for n, value in vars(part).items() if n not in _OF_EVERY_MODULE}
        for name, value in (own | part._buffers).items():
            found[f"{prefix}.{name}" if prefix else name] = value
    return {n: (v, version_of(v) if isinstance(v, Tensor) else 0) for n, v in found.items()}


def changed(before: State, after: State) -> set[str]:
    """Return the names of buffers and attributes that have been replaced, modified in place, or made."""
    return {
        name
        for name, (value, version) in after.items()
        if name not in before or before[name][0] is not value or before[name][1] != version
    }
