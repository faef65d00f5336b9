"""Layers in checkpointed parts of a model, whose inputs are thrown away and computed again in the backward pass.

Of `torch.utils.checkpoint`, the reentrant kind runs the part without a graph at first, and with one
in the backward pass: nothing is recorded but then. The other kind makes the graph at once, without
the tensors in it. There the call is noted without its inputs, and these are seen when the part runs
again, which may be before or after the gradient has arrived at the output. While a part runs again,
every tensor that autograd saves is taken for one of the part's: no rule may run a module then.
"""

from __future__ import annotations

import inspect
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cockpit.gradients.graph import last_number
from cockpit.gradients.rules import Call

Grads = tuple["Tensor | None", ...]
Sink = Callable[[Call, Grads], None]


class Part(NamedTuple):
    """A checkpointed part of a model that is running.

    Args:
        frame: What stands for it.
        run: Which run this is: None for the first one, and else a name of the backward pass.
    """

    frame: Any
    run: Any


@dataclass(eq=False)
class Bare:
    """A call without its inputs.

    Args:
        call: The call.
        whole: The call with its inputs, from their computation until the gradient arrives.
        waiting: What has arrived, until the inputs are computed.
    """

    call: Call
    whole: Call | None = None
    waiting: Grads | None = None


class Recomputed:
    """Brings the calls of checkpointed parts together with the inputs that are computed later."""

    def __init__(self) -> None:
        self._calls: weakref.WeakKeyDictionary[Any, dict[nn.Module, list[weakref.ref[Bare]]]] = (
            weakref.WeakKeyDictionary()
        )
        self._counts: weakref.WeakKeyDictionary[Any, tuple[Any, Counter[nn.Module]]] = (
            weakref.WeakKeyDictionary()
        )

        self._ready: list[Bare] = []  # gradients and inputs are there, and nothing is reported yet

    def note(self, part: Part, call: Call) -> Bare:
        """Note a call of the first run."""
        last = last_number((call.args, call.kwargs))
        bare = Bare(replace(call, args=(), kwargs={}, after=last))
        self._calls.setdefault(part.frame, {}).setdefault(call.module, []).append(weakref.ref(bare))
        return bare

    def again(
        self, part: Part, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Take in the inputs of a call that is made again."""
        run, counts = self._counts.get(part.frame, (None, Counter()))
        if run != part.run:
            counts = Counter()
        self._counts[part.frame] = part.run, counts
        calls = self._calls.get(part.frame, {}).get(module, [])
        counts[module] += 1
        bare = calls[counts[module] - 1]() if counts[module] <= len(calls) else None
        if bare is None:
            return
        now = Call.of(module, args, kwargs)
        # It is run with the buffers and attributes of now, as it is in the backward pass itself.
        bare.whole = replace(bare.call, args=args, kwargs=kwargs, versions=now.versions, state={})
        if bare.waiting is not None:
            self._ready.append(bare)

    def report(self, sink: Sink) -> None:
        """Report the calls that have become whole, once their part has run."""
        if not self._ready or running_part() is not None:
            return
        ready, self._ready = self._ready, []
        for bare in ready:
            if bare.waiting is not None:
                deliver(bare, bare.waiting, sink)

    def forget(self) -> None:
        """Let go of what has not been reported, as where a backward pass broke off."""
        self._ready.clear()


def deliver(bare: Bare, grads: Grads, sink: Sink) -> None:
    """Report a call whose gradients have arrived, as soon as its inputs are there."""
    bare.waiting = grads
    if bare.whole is not None:
        whole, bare.whole, bare.waiting = bare.whole, None, None
        sink(whole, grads)


def running_part() -> Part | None:
    """Return the checkpointed part that is running, if that is of the kind that is not reentrant.

    It is known by the hooks on saved tensors that `torch.utils.checkpoint` puts up. Where torch does
    not tell (before 2.4), the inputs are kept like those of other calls.
    """
    if torch.compiler.is_compiling():  # the hooks are Python's
        return None
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    hooks = None if top is None else top(True)
    if hooks is None:
        return None
    pack = inspect.unwrap(hooks[0])
    kind = getattr(pack, "__qualname__", "").partition(".")[0]
    if kind not in ("_checkpoint_hook", "_recomputation_hook"):
        return None
    cells = zip(pack.__code__.co_freevars, pack.__closure__ or (), strict=True)
    known = {name: cell.cell_contents for name, cell in cells}
    if kind == "_checkpoint_hook":
        return Part(known["frame"], None) if "frame" in known else None
    if "target_frame_ref" not in known:
        return None
    return Part(known["target_frame_ref"](), known.get("gid", ...))
