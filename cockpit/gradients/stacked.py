"""Individual gradients of a parameter whose rows are served in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add

import torch
from torch import Tensor

from cockpit.gradients.batch import Draw
from cockpit.gradients.handle import IndividualGradients
from cockpit.histograms import Bins, Histogram


class Stacked(IndividualGradients):
    """Gradients of blocks of rows that lie one below the other, as those of an attention layer's three projections.

    Args:
        blocks: The gradients of the blocks, in the order of the rows.
    """

    def __init__(self, blocks: list[IndividualGradients]) -> None:
        first = blocks[0]
        rows = sum(block.shape[0] for block in blocks)
        super().__init__(
            first.batch, torch.Size([rows, *first.shape[1:]]), first.dtype, first.device
        )
        self.blocks = blocks

    def select(self, draw: Draw) -> Stacked:
        """Return the blocks of some of the samples."""
        return Stacked([block.select(draw) for block in self.blocks])

    def piece(self, samples: slice) -> Tensor:
        """Put the blocks of some samples below each other."""
        return torch.cat([block.piece(samples) for block in self.blocks], dim=1)

    def _pairs(self, values: Tensor) -> Iterator[tuple[IndividualGradients, Tensor]]:
        """Yield each block with the rows of a tensor `[*shape]` that belong to it."""
        sizes = [block.shape[0] for block in self.blocks]
        return zip(self.blocks, values.split(sizes), strict=True)

    def mean(self) -> Tensor:
        """Return g, `[*shape]`."""
        return torch.cat([block.mean() for block in self.blocks])

    @property
    def has_cheap_norms(self) -> bool:
        """Whether those of all blocks are."""
        return all(block.has_cheap_norms for block in self.blocks)

    def square_norms(self) -> Tensor:
        """Return ‖g_i‖², the sum over the blocks, `[N]`."""
        norms = [block.square_norms() for block in self.blocks]
        return torch.stack(norms).sum(0)

    def sum_of_squares(self) -> Tensor:
        """Return Σ_i g_i², `[*shape]`."""
        return torch.cat([block.sum_of_squares() for block in self.blocks])

    def gram(self) -> Tensor:
        """Return g_i·g_j, the sum over the blocks, `[N, N]`."""
        return torch.stack([block.gram() for block in self.blocks]).sum(0)

    def dot(self, direction: Tensor) -> Tensor:
        """Return g_i·d, the sum over the blocks, `[N]`."""
        products = [block.dot(rows) for block, rows in self._pairs(direction)]
        return torch.stack(products).sum(0)

    def dot_mean(self) -> Tensor:
        """Return g_i·g, the sum over the blocks, `[N]`."""
        return torch.stack([block.dot_mean() for block in self.blocks]).sum(0)

    def min_max(self) -> Tensor:
        """Return the extremes over all blocks, `[2]`."""
        extremes = [block.min_max() for block in self.blocks]
        return torch.stack(torch.aminmax(torch.cat(extremes)))

    def histogram(self, edges: Tensor | Bins, samples: int | None = None) -> Histogram:
        """Count the values of the blocks one after the other."""
        counted = [block.histogram(edges, self._share(block, samples)) for block in self.blocks]
        return reduce(add, counted)

    def joint_histogram(
        self,
        parameter: Tensor,
        edges: tuple[Tensor | Bins, Tensor | Bins],
        samples: int | None = None,
    ) -> Histogram:
        """Count the pairs of the blocks one after the other."""
        counted = [
            block.joint_histogram(rows, edges, self._share(block, samples))
            for block, rows in self._pairs(parameter)
        ]
        return reduce(add, counted)

    def _share(self, block: IndividualGradients, samples: int | None) -> int | None:
        """Return how many values are drawn from a block, in proportion to its size."""
        return None if samples is None else max(1, samples * block.numel // self.numel)

    def release(self) -> None:
        """Forget what can be computed again, here and in the blocks."""
        super().release()
        for block in self.blocks:
            block.release()
