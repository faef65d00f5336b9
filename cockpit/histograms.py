"""Exact counting of values in bins."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BLOCK = 2**16
"""Values that are binned at a time: the temporaries stay in the processor's cache, where larger ones are got from
the system and given back each time."""

GROUP = 2**15
"""Values of several parameters that are counted at a time."""


def blocks(values: Tensor, size: int = BLOCK) -> Sequence[Tensor]:
    """Cut a tensor into flat blocks that suit its device: other ones than processors are best left whole."""
    flat = values.reshape(-1)
    return flat.split(size if flat.device.type == "cpu" else max(1, flat.numel()))


class Bins:
    """Intervals side by side, each closed on the left, the last one on both sides.

    Values beyond the first or the last edge belong to the outermost bins. Among bins of equal width
    the one of a value is computed rather than searched, which is ten times as fast, and then compared
    with the edge above it: the result is the same for every value.

    Args:
        edges: The edges, ascending, `[bins + 1]`.
        limits: The first and the last one, where all bins are equally wide but for rounding.
    """

    def __init__(self, edges: Tensor, limits: tuple[float, float] | None = None) -> None:
        self.edges, self.limits = edges, limits
        self.count = edges.numel() - 1
        self._inner = edges[1:-1].contiguous()
        self._line = None if limits is None else _line(limits, self.count, edges.dtype)
        # Nothing lies above the last bin, and nothing compares with NaN.
        self._upper = torch.cat([self._inner, edges.new_full((1,), math.nan)])

    @classmethod
    def between(cls, edges: Tensor | Bins, like: Tensor | None = None) -> Bins:
        """Return the bins between edges, in the precision and on the device of a tensor."""
        bins = edges if isinstance(edges, Bins) else cls(edges)
        if like is None or (bins.edges.dtype == like.dtype and bins.edges.device == like.device):
            return bins
        return cls(bins.edges.to(like), bins.limits)

    def index(self, values: Tensor) -> Tensor:
        """Return the bin of each value, int32 of the same shape; one past the last for non-finite values."""
        if values.device.type == "cpu" and math.isfinite(float(values.sum())):
            return self._of_finite(values)
        # x - x is 0 for finite numbers and NaN for all others, and cheaper than torch.isfinite.
        nonfinite = (values - values) != 0
        index = self._of_finite(values.masked_fill(nonfinite, 0))
        return index.masked_fill_(nonfinite, self.count)

    def _of_finite(self, values: Tensor) -> Tensor:
        if self._line is None:
            return torch.bucketize(values, self._inner, right=True, out_int32=True)
        slope, offset = self._line
        index = (values * slope).add_(offset).clamp_(0, self.count - 1).to(torch.int32)
        above = self._upper.index_select(0, index.reshape(-1)).reshape(index.shape)
        return index.add_(values >= above)

    def counts(self, values: Tensor) -> Tensor:
        """Count values per bin, int64 `[bins + 1]`; the last entry counts the non-finite values."""
        counts = torch.zeros(self.count + 1, dtype=torch.int64, device=values.device)
        for block in blocks(values):
            counts += torch.bincount(self.index(block), minlength=self.count + 1)
        return counts


def _line(
    limits: tuple[float, float], count: int, dtype: torch.dtype
) -> tuple[float, float] | None:
    """Return slope and offset of the line that gives the bin of a value, or the one below it.

    It lies lower than the exact one by more than what rounding can do, so that the bin is never one
    too high. None where rounding is as large as a bin.
    """
    low, high = limits
    width = (high - low) / count
    kind = torch.finfo(dtype)
    # Numbers below `tiny` are rounded more coarsely.
    if not kind.tiny / kind.eps < width < math.inf:
        return None
    farthest = max(abs(low), abs(high))
    rounding = 4 * kind.eps * (farthest / width + count)
    return (1 / width, -low / width - rounding) if rounding < 0.25 else None


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
    def of(cls, values: Tensor, edges: Tensor | Bins) -> Histogram:
        """Count `values` in the bins between `edges` (ascending, `[bins + 1]`).

        Bins are closed on the left, the last one on both sides.
        """
        binned = Bins.between(edges, values).counts(values)
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


@dataclass(frozen=True)
class Drawn:
    """Values of one parameter that are to be counted.

    Args:
        values: The values.
        bins: Where to count them.
        total: How many there are, of which these were drawn.
    """

    values: Tensor
    bins: Bins
    total: int


def counted(items: Sequence[Histogram | Drawn]) -> list[Histogram]:
    """Count what is not counted yet, all of it at a time.

    A model has many parameters of which few values are drawn: one by one, each would take as long
    as hundred times as many values.
    """
    done: list[Any] = list(items)
    alike: defaultdict[Bins, dict[int, Drawn]] = defaultdict(dict)
    for place, item in enumerate(items):
        if isinstance(item, Drawn):
            alike[item.bins][place] = item
    for bins, drawn in alike.items():
        histograms = _counted_together(list(drawn.values()), bins)
        for place, histogram in zip(drawn, histograms, strict=True):
            done[place] = histogram
    return done


def _counted_together(items: Sequence[Drawn], bins: Bins) -> Iterator[Histogram]:
    table = torch.cat([_table(group, bins) for group in _groups(items)])
    sizes = [item.values.numel() for item in items]
    totals, drawn = torch.tensor([[item.total for item in items], sizes], device=table.device)
    table = scale_counts(table, totals, drawn.clamp(min=1))  # of an empty parameter none are drawn
    for row, size in zip(table, sizes, strict=True):
        yield Histogram(row[:-1], row[-1], size)


def _groups(items: Sequence[Drawn]) -> Iterator[list[Drawn]]:
    """Put few values together, up to `GROUP` of them."""
    group: list[Drawn] = []
    size = 0
    for item in items:
        if group and size + item.values.numel() > GROUP:
            yield group
            group, size = [], 0
        group.append(item)
        size += item.values.numel()
    yield group


def _table(items: Sequence[Drawn], bins: Bins) -> Tensor:
    """Count the values of each, int64 `[items, bins + 1]`."""
    if len(items) == 1:
        return bins.counts(items[0].values).unsqueeze(0)
    width = bins.count + 1
    index = bins.index(torch.cat([item.values.reshape(-1) for item in items]))
    for row, part in enumerate(index.split([item.values.numel() for item in items])):
        part.add_(row * width)
    return torch.bincount(index, minlength=len(items) * width).reshape(-1, width)


def scale_counts(counts: Tensor, total: int | Tensor, drawn: int | Tensor) -> Tensor:
    """Scale integers that sum to `drawn` to integers that sum to `total`, along the last dimension.

    Each is within 1 of the exact ratio. The cumulated counts are rounded rather than the counts, so
    that the sum is exact.
    """
    exact = counts.cumsum(-1).to(torch.float64 if counts.device.type != "mps" else torch.float32)
    factor = torch.as_tensor(total, device=exact.device).to(exact).div(drawn).unsqueeze(-1)
    cumulated = (exact * factor).round().to(torch.int64)
    return torch.diff(cumulated, prepend=torch.zeros_like(cumulated[..., :1]))
