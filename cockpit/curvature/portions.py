"""Random numbers for a part of the samples that are those of the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Portion:
    """A generator that draws for a whole batch, of which the samples at hand are a part.

    Where a batch is spread over processes, each draws for all of it and takes its own part, so that
    the numbers are those that one process would draw.

    Args:
        generator: Where the numbers come from, in the same state on every process.
        start: Number of samples before those at hand.
        size: Number of samples at hand.
        total: Number of samples of the whole batch.
    """

    generator: torch.Generator
    start: int
    size: int
    total: int

    def rows(self, count: int) -> tuple[int, slice]:
        """Return how many rows the whole batch has, and which of them are these `count`."""
        first = count * self.start // self.size
        return count * self.total // self.size, slice(first, first + count)


Source = torch.Generator | Portion
"""Where random numbers for samples come from."""


def signs(like: Tensor, source: Source) -> Tensor:
    """Draw random signs, in the shape of a tensor whose first dimension belongs to the samples."""

    def draw(shape: torch.Size, generator: torch.Generator) -> Tensor:
        return torch.randint(2, shape, generator=generator, device=like.device)

    return (2 * _drawn(like, source, draw) - 1).to(like.dtype)


def normal(like: Tensor, source: Source) -> Tensor:
    """Draw independent normal numbers, in the shape of such a tensor."""

    def draw(shape: torch.Size, generator: torch.Generator) -> Tensor:
        return torch.randn(shape, generator=generator, device=like.device)

    return _drawn(like, source, draw).to(like)


def exponential(like: Tensor, source: Source) -> Tensor:
    """Draw independent exponential numbers, in the shape of such a tensor, in float32 at least."""
    dtype = torch.promote_types(like.dtype, torch.float32)

    def draw(shape: torch.Size, generator: torch.Generator) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=like.device).exponential_(generator=generator)

    return _drawn(like, source, draw)


def _drawn(
    like: Tensor, source: Source, draw: Callable[[torch.Size, torch.Generator], Tensor]
) -> Tensor:
    if isinstance(source, torch.Generator) or not like.dim():
        generator = source if isinstance(source, torch.Generator) else source.generator
        return draw(like.shape, generator)
    count, own = source.rows(len(like))
    return draw(torch.Size([count, *like.shape[1:]]), source.generator)[own]
