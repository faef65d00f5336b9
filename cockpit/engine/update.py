"""Observes the update of the parameters, whatever makes it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from cockpit.engine.step import PerParameter


class UpdateWatch:
    """Compares the parameters before and after an update.

    The update is observed, never predicted: momentum, weight decay, clipping and the like need no
        rule of their own. It
    is over when each known optimizer that holds one of the parameters has stepped, and at the
    latest when the next step begins.

    Args:
        parameters: The parameters by name.
        on_update: Called with the update d = θ_{t+1} − θ_t, once for each call of `begin`, and with
            whether it is observed right after an optimizer's step.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        on_update: Callable[[PerParameter, bool], None],
    ) -> None:
        self._parameters = parameters
        self._on_update = on_update
        self._before: PerParameter | None = None
        self._hooks: dict[int, tuple[weakref.ref[Optimizer], RemovableHandle]] = {}
        self._outstanding: set[int] = set()

    def add(self, optimizers: Iterable[Any]) -> None:
        """Get to know optimizers; those already known and those without hooks are passed over."""
        for optimizer in optimizers:
            register = getattr(optimizer, "register_step_post_hook", None)
            if register is not None and id(optimizer) not in self._hooks:
                reference = weakref.ref(optimizer)
                self._hooks[id(optimizer)] = (reference, register(self._hook(weakref.ref(self))))

    @staticmethod
    def _hook(this: weakref.ref[UpdateWatch]) -> Callable[..., None]:
        def stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            watch = this()
            if watch is not None and watch._before is not None:
                watch._outstanding.discard(id(optimizer))
                if not watch._outstanding:
                    watch.settle(at_optimizer_step=True)

        return stepped

    def begin(self) -> None:
        """Take the parameters as they are before the update."""
        self._before = PerParameter((n, p.detach().clone()) for n, p in self._parameters.items())
        tracked = {id(parameter) for parameter in self._parameters.values()}
        self._outstanding = {
            key
            for key, (reference, _) in self._hooks.items()
            if (optimizer := reference()) is not None
            and any(id(p) in tracked for group in optimizer.param_groups for p in group["params"])
        }

    @property
    def pending(self) -> bool:
        """Whether an update has begun and not been observed yet."""
        return self._before is not None

    @property
    def optimizers(self) -> list[Optimizer]:
        """The known optimizers that are still there."""
        found = (reference() for reference, _ in self._hooks.values())
        return [optimizer for optimizer in found if optimizer is not None]

    def settle(self, at_optimizer_step: bool = False) -> None:
        """Observe the update now, if one is pending."""
        if self._before is None:
            return
        update, self._before = self._before, None
        with torch.no_grad():
            torch._foreach_neg_(list(update.values()))
            torch._foreach_add_(list(update.values()), [self._parameters[name] for name in update])
        self._on_update(update, at_optimizer_step)

    def close(self) -> None:
        """Forget what is pending, and take the hooks off."""
        self._before = None
        for _, hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()
