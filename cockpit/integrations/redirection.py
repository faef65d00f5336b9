"""Looks away where a wrapper calls a Lightning module in place of one of its methods."""

from __future__ import annotations

from contextvars import Token
from typing import Any

from torch import nn

from cockpit.gradients.rules.rerun import replaying


class Redirection:
    """Hides the calls of a module that stand for its `training_step`.

    Where the module is wrapped (`DistributedDataParallel`), Lightning calls the wrapper with the batch,
    the wrapper calls the module, and this call runs `training_step` in place of `forward`; the module's
    own forward pass is a call within it. Taken as it stands, the module would have returned the loss. The
    hooks of the cockpit that come after the outer call therefore look away: they see what they see on
    a single device.

    Args:
        wrapper: What Lightning calls.
        module: What is in it.
    """

    def __init__(self, wrapper: nn.Module, module: nn.Module) -> None:
        self._depth = 0  # of the calls of the module within the wrapper's
        self._redirects = False
        self._away: Token[bool] | None = None
        self._hooks = [
            wrapper.register_forward_pre_hook(self._begin),
            module.register_forward_pre_hook(self._enter),
            module.register_forward_hook(self._leave, prepend=True),
            wrapper.register_forward_hook(self._end, always_call=True),
        ]

    def _begin(self, *call: Any) -> None:
        self._depth, self._redirects = 0, True

    def _enter(self, *call: Any) -> None:
        self._depth += 1

    def _leave(self, *call: Any) -> None:
        self._depth -= 1
        if self._redirects and self._depth == 0:
            self._away = replaying.set(True)

    def _end(self, *call: Any) -> None:
        self._redirects = False
        if self._away is not None:
            replaying.reset(self._away)
            self._away = None

    def close(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()
