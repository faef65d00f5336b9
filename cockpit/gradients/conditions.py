"""What a forward pass depended on besides the module and its inputs, to run it once more alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from cockpit.errors import Unsupported
from cockpit.gradients.randomness import WITH_GENERATOR, RandomState


@dataclass(frozen=True, eq=False)
class Conditions:
    """The surroundings of one call of a module.

    Args:
        device: Where the module computes.
        before: State of the global random generators when its forward began.
        after: Their state when it was over.
        autocast: Precision that autocast chose for it, or None if autocast was off.
    """

    device: torch.device
    before: RandomState
    after: RandomState
    autocast: torch.dtype | None

    @classmethod
    def since(cls, before: RandomState, device: torch.device) -> Conditions:
        """Note the surroundings of a forward that began in the state `before` and is over now."""
        return cls(device, before, _state(device), autocast_of(device.type))

    @property
    def drew(self) -> bool:
        """Whether the forward drew numbers from the global generators."""
        return not _equal(self.before, self.after)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Run a forward once more in this block, drawing the same numbers in the same precision.

        Raises:
            Unsupported: at the end of the block, if other numbers were drawn than the first time.
        """
        enabled = self.autocast is not None
        with (
            self.before.restored(),
            torch.autocast(self.device.type, self.autocast, enabled, cache_enabled=False),
        ):
            yield
            alike = _equal(_state(self.device), self.after)
        if not alike:
            raise Unsupported(
                "running it again does not draw the random numbers that its forward drew: it has a "
                "source of its own, computes on several devices, or draws more or less for other inputs; "
                "put what draws them into modules without parameters, such as nn.Dropout"
            )


def state_before(device: torch.device) -> RandomState | None:
    """Return the state of the generators before a forward; None where it cannot be had without disturbing that."""
    if torch.compiler.is_compiling():
        return None
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return None
    return _state(device)


def _state(device: torch.device) -> RandomState:
    if device.type in WITH_GENERATOR:
        return RandomState.capture(device)
    return RandomState({_CPU: torch.get_rng_state()})  # the quick way, for it is gone at every call


_CPU = torch.device("cpu")


def _equal(first: RandomState, second: RandomState) -> bool:
    return all(torch.equal(state, second.states[device]) for device, state in first.states.items())


def autocast_of(kind: str) -> torch.dtype | None:
    """Return the precision of autocast on a kind of device, or None if it is off."""
    if hasattr(torch, "get_autocast_dtype"):  # since torch 2.4
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    if kind == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
