"""Individual gradients of a table that is looked up and multiplied with: an embedding whose weight the head shares."""

from __future__ import annotations

import torch
from torch import Tensor

from cockpit.gradients.batch import Draw
from cockpit.gradients.handle import Sample, Sum
from cockpit.gradients.products import Products, drawn_block
from cockpit.gradients.rows import Rows


class Tied(Sum):
    """The sum of products and of a few rows, as language models have it; the table is never formed for a sample.

    Args:
        products: What comes from the multiplication, with one matrix `[V, E]`.
        rows: What comes from the look-up.
    """

    def __init__(self, products: Products, rows: Rows) -> None:
        super().__init__([products, rows])
        self.products, self.rows = products, rows

    def select(self, draw: Draw) -> Tied:
        """Return the sum of the parts of some of the samples."""
        return Tied(self.products.select(draw), self.rows.select(draw))

    @property
    def has_cheap_norms(self) -> bool:
        """Whether those of both parts are, and with them their product."""
        return self.products.has_cheap_norms and self.rows.has_cheap_norms

    def square_norms(self) -> Tensor:
        """Return ‖p_i + r_i‖² = ‖p_i‖² + 2 p_i·r_i + ‖r_i‖², `[N]`."""
        apart = self.products.square_norms() + self.rows.square_norms()
        # Where the parts cancel each other, rounding may leave less than nothing.
        return (apart + 2 * self._inner()).clamp_(min=0)

    def _inner(self) -> Tensor:
        """Return p_i·r_i, from the rows of the products that occur, `[N]`."""
        a, b = self.products.a(slice(None))[:, 0], self.products.b[:, 0]  # [N, E, T], [N, V, T]
        of_row = []
        per_row = 2 * a.shape[1] * a.shape[2] * self.dtype.itemsize
        for some in self.batch.blocks(len(self.rows.index), per_row):
            owner, index = self.rows.owner[some], self.rows.index[some]
            along = torch.bmm(self.rows.rows[some].unsqueeze(1), a[owner]).squeeze(1)  # [r, T]
            of_row.append(torch.linalg.vecdot(along, b[owner, index]))
        inner = self._empty(self.batch.size)
        return inner.index_add_(0, self.rows.owner, torch.cat(of_row)) if of_row else inner

    def sample(self, count: int) -> Sample:
        """Draw values of all samples, from some rows and columns of the table."""
        rows, columns = drawn_block(self, count, *self.shape)
        block = self.products.block(rows, columns)[:, 0]  # [N, rows, columns]
        block = block + self.rows.block(rows, columns)

        def locate() -> Tensor:
            return (rows.unsqueeze(1) * self.shape[1] + columns).reshape(-1)

        return Sample(block.reshape(self.batch.size, -1), locate)
