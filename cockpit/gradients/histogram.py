"""Exact counting of values in bins."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 2**17
"""Values that are binned at a time: the temporaries stay in the processor's cache, and counts far below 2**31."""


@dataclass(frozen=True)
class Histogram:
    """Counts of values in bins.

    Args:
        counts: Number of finite values in each bin, int64 `[bins]`. Values outside of the range
            count in the outermost bins.
        nonfinite: Number of values that are NaN or infinite, int64 `[]`. No bin holds them.
        drawn: How many values were looked at. Fewer than there are where they were sampled; the
            counts are then scaled to the total.
    """

    counts: Tensor
    nonfinite: Tensor
    drawn: int

    @classmethod
    def of(cls, values: Tensor, edges: Tensor) -> Histogram:
        """Count `values` in the bins between `edges` (ascending, `[bins + 1]`).

        Bins are closed on the left, the last one on both sides.
        """
        binned = bin_counts(values, edges)
        return cls(binned[:-1], binned[-1], values.numel())

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram(
            self.counts + other.counts, self.nonfinite + other.nonfinite, self.drawn + other.drawn
        )

    def scaled_to(self, total: int) -> Histogram:
        """Scale the counts so that they sum to `total` again; `drawn` stays."""
        if total == self.drawn or self.drawn == 0:
            return self
        binned = torch.cat([self.counts, self.nonfinite.reshape(1)])
        scaled = scale_counts(binned, total, self.drawn)
        return Histogram(scaled[:-1], scaled[-1], self.drawn)

    @classmethod
    def joint(cls, table: Tensor, drawn: int, total: int) -> Histogram:
        """Take the counts of pairs, `[bins_x + 1, bins_y + 1]`, whose last row and column are non-finite.

        They are scaled from the number of pairs that were drawn to their total.
        """
        if drawn not in (0, total):
            table = scale_counts(table.reshape(-1), total, drawn).reshape(table.shape)
        finite = table[:-1, :-1]
        return cls(finite.contiguous(), table.sum() - finite.sum(), drawn)


def bin_counts(values: Tensor, edges: Tensor) -> Tensor:
    """Count values per bin, int64 `[bins + 1]`; the last entry counts the non-finite values."""
    edges = edges.to(values)
    counts = torch.zeros(edges.numel(), dtype=torch.int64, device=values.device)
    for block in values.reshape(-1).split(BLOCK):
        counts += torch.bincount(bin_index(block, edges), minlength=edges.numel())
    return counts


def bin_index(values: Tensor, edges: Tensor) -> Tensor:
    """Return the bin of each value, int32 of the same shape; one past the last for non-finite values."""
    index = torch.bucketize(values, edges[1:-1].contiguous(), right=True, out_int32=True)
    # x - x is 0 for finite numbers and NaN for all others, and cheaper than torch.isfinite.
    return index.masked_fill_((values - values) != 0, edges.numel() - 1)


def scale_counts(counts: Tensor, total: int, drawn: int) -> Tensor:
    """Scale integers that sum to `drawn` to integers that sum to `total`.

    Each is within 1 of the exact ratio. The cumulated counts are rounded rather than the counts, so
    that the sum is exact.
    """
    exact = counts.cumsum(0).to(torch.float64 if counts.device.type != "mps" else torch.float32)
    cumulated = (exact * (total / drawn)).round().to(torch.int64)
    return torch.diff(cumulated, prepend=cumulated.new_zeros(1))
