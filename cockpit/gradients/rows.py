"""Individual gradients that are zero but for a few rows: embeddings."""

from __future__ import annotations

import torch
from torch import Tensor

from cockpit.gradients.batch import Batch, Draw
from cockpit.gradients.handle import IndividualGradients
from cockpit.histograms import Bins, Histogram


class Rows(IndividualGradients):
    """Gradients of a table of V rows of which each sample uses few, held as the rows that occur.

    Args:
        batch: What all handles of the backward pass share.
        shape: Shape of the table, `[V, E]`.
        index: Rows that the samples look up, `[N, T]`.
        values: Gradient of each of these look-ups, `[N, T, E]`, in the scale of g_i.
    """

    def __init__(self, batch: Batch, shape: torch.Size, index: Tensor, values: Tensor) -> None:
        super().__init__(batch, shape, values.dtype, values.device)
        vocabulary, width = shape
        sample = torch.arange(batch.size, device=index.device).unsqueeze(1)
        key, position = torch.unique(sample * vocabulary + index, return_inverse=True)
        rows = values.new_zeros(len(key), width)
        rows.index_add_(0, position.reshape(-1), values.reshape(-1, width))
        self.rows = rows  # [R, E], one for each pair of sample and row that occurs
        self.owner = torch.div(key, vocabulary, rounding_mode="floor")  # [R], ascending
        self.index = key % vocabulary  # [R]

    def select(self, draw: Draw) -> Rows:
        """Return the rows of some of the samples."""
        chosen: Rows = self._with(draw.batch)
        index = draw.on(self.device)
        taken = torch.isin(self.owner, index).nonzero().squeeze(1)
        chosen.rows, chosen.index = self.rows[taken], self.index[taken]
        chosen.owner = torch.searchsorted(index, self.owner[taken])
        return chosen

    def piece(self, samples: slice) -> Tensor:
        """Write the rows into the tables of some samples, `[n, V, E]`."""
        start, stop, _ = samples.indices(self.batch.size)
        first, last = torch.searchsorted(
            self.owner, torch.tensor([start, stop], device=self.device)
        ).tolist()
        dense = self._empty(stop - start, *self.shape)
        dense[self.owner[first:last] - start, self.index[first:last]] = self.rows[first:last]
        return dense

    def _by_sample(self, values: Tensor) -> Tensor:
        return self._empty(self.batch.size).index_add_(0, self.owner, values)

    def _by_row(self, values: Tensor) -> Tensor:
        return self._empty(*self.shape).index_add_(0, self.index, values)

    def mean(self) -> Tensor:
        """Return g, `[V, E]`."""
        return self._by_row(self.rows) / self.batch.size

    def square_norms(self) -> Tensor:
        """Return ‖g_i‖², `[N]`."""
        return self._by_sample(self.rows.square().sum(1))

    def sum_of_squares(self) -> Tensor:
        """Return Σ_i g_i², `[V, E]`."""
        return self._by_row(self.rows.square())

    def dot(self, direction: Tensor) -> Tensor:
        """Return g_i·d, reading only the rows of d that occur, `[N]`."""
        return self._by_sample((self.rows * direction.to(self.dtype)[self.index]).sum(1))

    def dot_mean(self) -> Tensor:
        """Return g_i·g, with the rows of g that occur, `[N]`."""
        used, position = torch.unique(self.index, return_inverse=True)
        mean = self.rows.new_zeros(len(used), self.shape[1]).index_add_(0, position, self.rows)
        return self._by_sample((self.rows * mean[position]).sum(1)) / self.batch.size

    def gram(self) -> Tensor:
        """Return g_i·g_j from the rows that two samples have in common, `[N, N]`."""
        gram = self._empty(self.batch.size, self.batch.size)
        block = max(
            1, self.batch.memory_budget // (3 * self.dtype.itemsize * max(1, len(self.rows)))
        )
        for start in range(0, len(self.rows), block):
            some = slice(start, start + block)
            common = self.index[some].unsqueeze(1) == self.index  # [r, R]
            products = (self.rows[some] @ self.rows.T) * common
            by_sample = self._empty(len(products), self.batch.size)
            by_sample.index_add_(1, self.owner, products)
            gram.index_add_(0, self.owner[some], by_sample)
        return gram

    def block(self, row: Tensor, column: Tensor) -> Tensor:
        """Return the elements in some rows, each named once, and columns of the table, `[N, rows, columns]`."""
        place = torch.full((self.shape[0],), -1, device=self.device)
        place[row] = torch.arange(len(row), device=self.device)
        place = place[self.index]  # [R], -1 of those that are not asked for
        found = (place >= 0).nonzero().squeeze(1)
        values = self.rows[found].index_select(1, column)
        block = self._empty(self.batch.size, len(row), len(column))
        block[self.owner[found], place[found]] = values
        return block

    @property
    def _zeros(self) -> int:
        return self.total - self.rows.numel()

    def min_max(self) -> Tensor:
        """Return the extremes of the rows, and of 0 where some row does not occur, `[2]`."""
        values = self.rows.reshape(-1)
        if self._zeros:
            values = torch.cat([values, self._empty(1)])
        return torch.stack(torch.aminmax(values)) if values.numel() else self._empty(2)

    def histogram(self, edges: Tensor | Bins, samples: int | None = None) -> Histogram:
        """Count the values of the rows, and all others as the zeros that they are."""
        rows = self.rows.reshape(-1)
        if samples is not None and samples < rows.numel():
            generator = self.batch.generator(self.device)
            index = torch.randint(rows.numel(), (samples,), generator=generator, device=self.device)
            counted = Histogram.of(rows[index], edges).scaled_to(rows.numel())
        else:
            counted = Histogram.of(rows, edges)
        zero = Histogram.of(self._empty(1), edges)
        return Histogram(
            counted.counts + zero.counts * self._zeros,
            counted.nonfinite,
            counted.drawn + self._zeros,
        )

    def joint_histogram(
        self,
        parameter: Tensor,
        edges: tuple[Tensor | Bins, Tensor | Bins],
        samples: int | None = None,
    ) -> Histogram:
        """Pair the values of the rows with the parameters there, and all others with zeros."""
        x, y = (Bins.between(e, self._empty(0)) for e in edges)
        theta = parameter.detach().to(self.dtype)
        of_theta = y.index(theta)[self.index]  # [R, E]
        shape = x.count + 1, y.count + 1
        pairs = (x.index(self.rows) * shape[1] + of_theta).reshape(-1)
        table = torch.bincount(pairs, minlength=shape[0] * shape[1]).reshape(shape)
        zeros = y.counts(theta) * self.batch.size
        zeros -= torch.bincount(of_theta.reshape(-1), minlength=shape[1])
        table[x.index(self._empty())] += zeros
        return Histogram.joint(table, self.total, self.total)
