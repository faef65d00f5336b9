"""BackPACK's hooks on a model and its loss function, for as long as somebody needs them."""

from __future__ import annotations

from backpack import CTX, extend, memory_cleanup
from torch import nn

from cockpit.errors import InvalidArgument

FLAG = "_backpack_extend"
"""What BackPACK marks the modules with that have its hooks."""


class Extended:
    """Extends modules with BackPACK, and takes its hooks off again.

    Modules that were extended before stay so.

    Args:
        modules: The modules, with all that they contain.

    Raises:
        InvalidArgument: if one of them works in place, which its hooks make fail in the forward pass.
    """

    def __init__(self, *modules: nn.Module) -> None:
        for name, part in (named for module in modules for named in module.named_modules()):
            if getattr(part, "inplace", False):
                raise InvalidArgument(
                    f"BackPACK's hooks do not stand modules that work in place, and {name} is a "
                    f"{type(part).__name__} with inplace=True. Set {name}.inplace = False, or leave "
                    "out the quantities that need BackPACK: curvature='auto' needs nothing of it."
                )
        plain = [m for module in modules for m in module.modules() if not getattr(m, FLAG, False)]
        before = len(CTX.hook_handles)
        for module in modules:
            extend(module)
        self._handles = CTX.hook_handles[before:]
        self._modules = [module for module in plain if getattr(module, FLAG, False)]

    def close(self) -> None:
        """Take the hooks off, with what they have stored."""
        ours = {id(handle) for handle in self._handles}
        for handle in self._handles:
            handle.remove()
        CTX.hook_handles[:] = [handle for handle in CTX.hook_handles if id(handle) not in ours]
        for module in self._modules:
            memory_cleanup(module)
            delattr(module, FLAG)
        self._handles, self._modules = [], []
