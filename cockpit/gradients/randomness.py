"""The state of PyTorch's global random generators, to draw the same numbers once more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

WITH_GENERATOR = ("cuda", "xpu", "mps")
"""Types of accelerators with a random generator of their own."""


@dataclass(frozen=True, eq=False)
class RandomState:
    """State of the global random generators of the CPU and of some accelerators.

    Args:
        states: State of the generator, by device. It lies in the memory of the host.
    """

    states: Mapping[torch.device, Tensor]

    @classmethod
    def capture(cls, *devices: torch.device) -> RandomState:
        """Return the present state of the CPU's generator and of those of `devices`, without waiting for them."""
        return cls({device: _state(device) for device in _with_cpu(devices)})

    @classmethod
    def seeded(cls, seed: int, *devices: torch.device) -> RandomState:
        """Return the state that the generators of the CPU and of `devices` have after seeding them."""
        return cls(
            {
                device: torch.Generator(device).manual_seed(seed).get_state()
                for device in _with_cpu(devices)
            }
        )

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Draw as from this state; afterwards the generators go on as if nothing had been drawn."""
        now = RandomState.capture(*self.states)
        try:
            self._apply()
            yield
        finally:
            now._apply()

    @property
    def is_present(self) -> bool:
        """Whether the generators are in this state now."""
        return all(torch.equal(state, _state(device)) for device, state in self.states.items())

    def _apply(self) -> None:
        for device, state in self.states.items():
            if device.type == "cpu":
                torch.set_rng_state(state)
            elif device.type == "mps":
                torch.mps.set_rng_state(state)
            else:
                getattr(torch, device.type).set_rng_state(state, device)


def accelerators(tensors: Iterable[Tensor]) -> tuple[torch.device, ...]:
    """Return the devices of tensors that have a random generator of their own."""
    devices = dict.fromkeys(tensor.device for tensor in tensors)
    return tuple(device for device in devices if device.type in WITH_GENERATOR)


def _with_cpu(devices: tuple[torch.device, ...]) -> list[torch.device]:
    return list(dict.fromkeys([torch.device("cpu"), *devices]))


def _state(device: torch.device) -> Tensor:
    if device.type == "cpu":
        return torch.get_rng_state()
    if device.type == "mps":
        return torch.mps.get_rng_state()
    state: Tensor = getattr(torch, device.type).get_rng_state(device)
    return state
