"""Observes the update of the parameters, whatever makes it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from cockpit.engine.step import PerParameter

LOOKED_AT = 4096
"""Elements of a parameter that tell whether it has been changed."""


class UpdateWatch:
    """Compares the parameters before and after an update.

    The update is observed, never predicted: momentum, weight decay, clipping and the like need no
    rule of their own. It is over when each known optimizer that holds one of the parameters has
    stepped, and at the latest when the next step begins. A known optimizer may step during the
    backward pass already, as those do that are called from hooks on the gradients.

    Args:
        parameters: The parameters by name.
        on_update: Called with the update d = θ_{t+1} − θ_t, once for each call of `begin`, and with
            whether it is observed right after an optimizer's step.

    Attributes:
        around: Makes what is put around the observation of an update.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        on_update: Callable[[PerParameter, bool], None],
    ) -> None:
        self._parameters = parameters
        self._names: dict[Tensor, str] = {p: name for name, p in parameters.items()}
        self._on_update = on_update
        self.around: Callable[[], AbstractContextManager[None]] = nullcontext
        self._before: PerParameter | None = None
        self._hooks: dict[int, tuple[weakref.ref[Optimizer], list[RemovableHandle]]] = {}
        self._outstanding: set[int] = set()
        self._stepping: set[int] = set()
        self._early: dict[str, Tensor] | None = None  # as they were, of those updated in the pass
        self._stepped: set[int] = set()  # the optimizers that updated them
        self._versions: list[int] = []
        self._end: Tensor | None = None

    def add(self, optimizers: Iterable[Any]) -> None:
        """Get to know optimizers; those already known and those without hooks are passed over."""
        for optimizer in optimizers:
            register = getattr(optimizer, "register_step_post_hook", None)
            known, _ = self._hooks.get(id(optimizer), (None, None))  # or another's that is gone
            if register is not None and (known is None or known() is not optimizer):
                this = weakref.ref(self)
                hooks = [
                    optimizer.register_step_pre_hook(_calling(this, UpdateWatch._step_begins)),
                    register(_calling(this, UpdateWatch._step_ends)),
                ]
                self._hooks[id(optimizer)] = weakref.ref(optimizer), hooks

    def _step_begins(self, optimizer: Optimizer) -> None:
        self._stepping.add(id(optimizer))
        if self._early is None:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = self._names.get(parameter)
                if name is not None and name not in self._early:
                    self._early[name] = parameter.detach().clone()

    def _step_ends(self, optimizer: Optimizer) -> None:
        self._stepping.discard(id(optimizer))
        if self._early is not None:
            self._stepped.add(id(optimizer))
        if self._before is not None:
            self._outstanding.discard(id(optimizer))
            if not self._outstanding:
                self.settle(at_optimizer_step=True)

    @property
    def stepping(self) -> bool:
        """Whether a known optimizer is in the middle of its step, as when it calls a closure."""
        return bool(self._stepping)

    def anticipate(self) -> None:
        """Look out for updates in the backward pass that begins; `begin` or `forget` ends that."""
        self._early, self._stepped = {}, set()
        self._versions = [parameter._version for parameter in self._parameters.values()]

    def forget(self) -> None:
        """Look out no more: the pass has failed."""
        self._early, self._stepped = None, set()

    def begin(self, spare: Mapping[str, Tensor] | None = None) -> str | None:
        """Take the parameters as they are before the update.

        Args:
            spare: An earlier update that nobody needs any more. The parameters are copied to where
                it lies: new memory takes as long to get as the copy itself.

        Returns:
            Why the update will not be known, if so: something that is not known has updated the
            parameters during the backward pass.
        """
        early, stepped = self._early or {}, self._stepped
        self.forget()
        versions = zip(self._parameters.items(), self._versions, strict=True)
        moved = [name for (name, p), v in versions if p._version != v and name not in early]
        if moved:
            return (
                f"{moved[0]} was changed during the backward pass, so the update is not known; give "
                "all optimizers that step there to the cockpit, Cockpit(..., optimizer=[...])"
            )
        spare = spare or {}
        self._before = PerParameter(
            (n, early[n] if n in early else _copied(p.detach(), spare.get(n)))
            for n, p in self._parameters.items()
        )
        self._outstanding = {id(o) for o in self.optimizers if self._holds(o)} - stepped
        if stepped and not self._outstanding:
            self.settle(at_optimizer_step=True)
        return None

    def _holds(self, optimizer: Optimizer) -> bool:
        return any(p in self._names for group in optimizer.param_groups for p in group["params"])

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
        with self.around():
            with torch.no_grad():
                for name, before in update.items():
                    _subtract(self._parameters[name].detach(), before)
            self._end = None
            self._on_update(update, at_optimizer_step)

    def remember_end(self) -> None:
        """Remember the parameters as they are now, after the update."""
        self._end = self._norms()

    def moved_since(self) -> bool:
        """Whether the parameters have changed since `remember_end`. This waits for the device."""
        end, self._end = self._end, None
        if end is None:
            return False
        now = self._norms()
        if (now.dtype, now.device) != (end.dtype, end.device):  # they were moved indeed
            return True
        return not torch.allclose(end, now, rtol=0, atol=0, equal_nan=True)

    def _norms(self) -> Tensor:
        """Return the norms of some elements of each parameter: equal ones will do as a sign that all are the same.

        What changes parameters between two steps, an average or a bound, changes more than one in
        thousand of their elements, or a whole row.
        """
        norms = torch._foreach_norm([_some_of(p.detach()) for p in self._parameters.values()])
        return torch.stack([norm.to(norms[0]) for norm in norms])

    def close(self) -> None:
        """Forget what is pending, and take the hooks off."""
        self._before = self._early = None
        for _, hooks in self._hooks.values():
            for hook in hooks:
                hook.remove()
        self._hooks.clear()


def _some_of(parameter: Tensor) -> Tensor:
    """Return up to about `LOOKED_AT` elements of a parameter, evenly spaced."""
    flat = parameter.reshape(-1)
    return flat[:: max(1, flat.numel() // LOOKED_AT)]


def _subtract(now: Tensor, before: Tensor) -> None:
    """Write now − before over `before`; NaN where a parameter has been replaced by one of another shape."""
    if now.shape != before.shape:
        before.fill_(torch.nan)
    else:
        torch.sub(now.to(before), before, out=before)


def _copied(parameter: Tensor, spare: Tensor | None) -> Tensor:
    """Copy a parameter, to where a tensor of its kind lies if there is one."""
    if spare is None or _kind(spare) != _kind(parameter):
        return parameter.clone()
    return spare.copy_(parameter)


def _kind(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _calling(
    this: weakref.ref[UpdateWatch], method: Callable[[UpdateWatch, Optimizer], None]
) -> Callable[..., None]:
    """Return a hook that keeps nobody alive."""

    def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        watch = this()
        if watch is not None:
            method(watch, optimizer)

    return hook
