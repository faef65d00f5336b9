"""What the individual gradients of one backward pass have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

MEMORY_BUDGET = 64 * 2**20
"""Bytes that dense pieces of individual gradients, with their temporaries, may take unless told otherwise. Half
as many may be kept beside until the update."""


@dataclass(frozen=True)
class Batch:
    """The mini-batch of one backward pass.

    Args:
        size: Number of samples N.
        scale: What a sample's share of the gradient that arrives in the backward pass is multiplied
            with to give g_i: N / (factor on the loss · r), with r = 1 for a mean and r = N for a
            sum over the batch. A number, or a 0-dimensional tensor, so that nobody waits for the
            device.
        memory_budget: Bytes that dense pieces may take.
        seed: Where samples are drawn, they are drawn from this seed and never from the global
            random state.
        sizes: Number of scalars of each parameter that is tracked along, where that is known.
        dim: The dimension in which the samples lie, where a layer's input leaves a choice.
        stated: Whether the user says so.
        doubtful: Whether they may as well lie in another dimension that is as long.
        shared: What `once` keeps.
    """

    size: int
    scale: Tensor | float = 1.0
    memory_budget: int = MEMORY_BUDGET
    seed: int = 0
    sizes: Sequence[int] = ()
    dim: int = 0
    stated: bool = False
    doubtful: bool = False
    shared: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` returns, which is called once per key for all handles of the pass."""
        if key not in self.shared:
            self.shared[key] = make()
        found: T = self.shared[key]
        return found

    def pieces(self, bytes_per_sample: int) -> list[slice]:
        """Cut the samples into slices, each of which fits the memory budget (one sample at least)."""
        return self.blocks(self.size, bytes_per_sample)

    def blocks(self, number: int, bytes_each: int) -> list[slice]:
        """Cut a number of things into slices, each of which fits the memory budget (one thing at least)."""
        count = max(1, self.memory_budget // max(1, bytes_each))
        return [slice(i, min(i + count, number)) for i in range(0, number, count)]

    def quota(self, samples: int) -> int:
        """Share of one parameter in `samples` values drawn evenly over all tracked parameters.

        Parameters with fewer values than an even share are counted in full, and the others divide
        what is left.
        """
        return self.once(("quota", samples), lambda: self._quota(samples))

    def _quota(self, samples: int) -> int:
        left, share = samples, samples
        counts = sorted(self.size * size for size in self.sizes)
        for position, count in enumerate(counts):
            share = left // (len(counts) - position)
            if count > share:
                break
            left -= count
        return max(1, share)

    def generator(self, device: torch.device) -> torch.Generator:
        """Return a generator of random numbers of our own, in the same state at every call."""
        return torch.Generator(device=device).manual_seed(self.seed)


@dataclass(frozen=True, eq=False)
class Draw:
    """Some of the samples of a batch, in their order.

    Args:
        batch: What their handles share, with their number k.
        index: Which ones they are, int64 `[k]`, ascending, on the host.
    """

    batch: Batch
    index: Tensor

    @classmethod
    def of(cls, batch: Batch, count: int) -> Draw:
        """Draw `count` samples without replacement, the same ones for all handles of a pass."""

        def make() -> Draw:
            # Another stream than that of the values drawn within a handle.
            source = torch.Generator().manual_seed(batch.seed ^ STREAM)
            index = torch.randperm(batch.size, generator=source)[:count].sort().values
            return cls(replace(batch, size=len(index), shared={}), index)

        return batch.once(("draw", count), make)

    @classmethod
    def joined(cls, draws: Sequence[Draw], sizes: Sequence[int]) -> Draw:
        """Return what was drawn from several batches, as samples of all of these together.

        Args:
            draws: From each of them.
            sizes: Their numbers of samples N.
        """
        starts = [0, *accumulate(sizes)]
        index = torch.cat([d.index + start for d, start in zip(draws, starts, strict=False)])
        return cls(replace(draws[0].batch, size=len(index), shared={}), index)

    def on(self, device: torch.device) -> Tensor:
        """Return the index on a device."""
        return self.batch.once(("index", device), lambda: self.index.to(device))

    def of_entries(self, count: int) -> Draw:
        """Return the entries of these samples, where each has `count` that follow each other."""

        def make() -> Draw:
            index = (self.index.unsqueeze(1) * count + torch.arange(count)).reshape(-1)
            return Draw(replace(self.batch, size=len(index), shared={}), index)

        return self.batch.once(("entries", count), make)


STREAM = 0x5EED_5A3B1E
"""Tells the seed of the samples that are drawn from that of other random numbers."""


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """Return the precision to compute in: that of the tensors, but single precision at least."""
    dtype = torch.float32
    for tensor in tensors:
        if tensor.is_floating_point():
            dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype
