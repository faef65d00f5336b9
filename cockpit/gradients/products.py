"""Individual gradients that are products of a layer's input and the gradient of its output: Linear, convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cockpit.gradients.batch import Batch, Draw
from cockpit.gradients.handle import IndividualGradients, Sample


class Products(IndividualGradients):
    """Gradients g_i = Σ_t b_it a_itᵀ, one outer product per sample and position t.

    Positions are the time steps or tokens of a Linear layer and the pixels of a convolution's
    output. A layer with groups has one such matrix per group. Nothing of the size `[N, *shape]` is
    formed where there is one position.

    Args:
        batch: What all handles of the backward pass share.
        shape: Shape of the parameter, of G·O·I elements.
        a: Inputs of the layer, `[N, G, I, T]`.
        b: Individual gradients with respect to the output, `[N, G, O, T]`, in the scale of g_i.
    """

    def __init__(self, batch: Batch, shape: torch.Size, a: Tensor, b: Tensor) -> None:
        super().__init__(batch, shape, b.dtype, b.device)
        self._a = a
        self.b = b
        self.groups, self.outputs, self.positions = b.shape[1:]
        self.inputs = self.numel // max(1, self.groups * self.outputs)

    @classmethod
    def merged(cls, parts: Sequence[Products]) -> Products:
        """Join the parts of several calls of one layer: their positions stand side by side."""
        first = parts[0]
        a = torch.cat([part.a(slice(None)) for part in parts], dim=3)
        return Products(first.batch, first.shape, a, torch.cat([part.b for part in parts], dim=3))

    def select(self, draw: Draw) -> Products:
        """Return the products of some of the samples."""
        chosen: Products = self._with(draw.batch)
        index = draw.on(self.device)
        chosen._a, chosen.b = self._a.index_select(0, index), self.b.index_select(0, index)
        return chosen

    def a(self, samples: slice) -> Tensor:
        """Return the inputs of some samples, `[n, G, I, T]`."""
        return self._a[samples]

    # -- one position: closed forms ---------------------------------------------------------------

    @property
    def _single(self) -> bool:
        return self.positions == 1

    def _factors(self) -> tuple[Tensor, Tensor]:
        """Return a `[N, G, I]` and b `[N, G, O]` where there is one position."""
        return self.a(slice(None)).squeeze(3), self.b.squeeze(3)

    def piece(self, samples: slice) -> Tensor:
        """Multiply and sum over the positions of some samples, `[n, *shape]`."""
        a, b = self.a(samples), self.b[samples]
        n = len(b)
        if self._single:
            dense = b * a.transpose(2, 3)  # [n, G, O, 1] · [n, G, 1, I]
        else:
            flat_b = b.reshape(n * self.groups, self.outputs, self.positions)
            flat_a = a.reshape(n * self.groups, self.inputs, self.positions)
            dense = torch.bmm(flat_b, flat_a.transpose(1, 2))  # [n·G, O, I]
        return dense.reshape(n, *self.shape)

    @property
    def has_cheap_norms(self) -> bool:
        """Whether there is one position, or little altogether."""
        return self._single or super().has_cheap_norms

    def square_norms(self) -> Tensor:
        """Return ‖g_i‖²: |a_i|²|b_i|² for one position, position Gram matrices where those are cheaper, else dense."""
        if self._single:
            a, b = self._factors()
            return (torch.linalg.vecdot(a, a) * torch.linalg.vecdot(b, b)).sum(1)
        if self._whole is not None or not self._position_gram_pays():
            return super().square_norms()
        norms = self._empty(self.batch.size)
        for samples in self.batch.pieces(self._position_gram_bytes()):
            a, b = self.a(samples), self.b[samples]
            norms[samples] = ((a.mT @ a) * (b.mT @ b)).sum((1, 2, 3))  # [n, G, T, T]
        return norms

    def _position_gram_pays(self) -> bool:
        gram = self.positions**2 * (self.inputs + self.outputs)
        dense = self.positions * self.inputs * self.outputs
        return gram < dense

    def _position_gram_bytes(self) -> int:
        per_position = self.groups * (2 * self.positions + self.inputs) * self.dtype.itemsize
        return per_position * self.positions

    def sum_of_squares(self) -> Tensor:
        """Return Σ_i g_i²: (b²)ᵀ(a²) for one position."""
        if not self._single:
            return super().sum_of_squares()
        a, b = (factor.square().transpose(0, 1) for factor in self._factors())  # [G, N, ·]
        return (b.mT @ a).reshape(self.shape)

    def gram(self) -> Tensor:
        """Return g_i·g_j: aaᵀ ∘ bbᵀ for one position, position Gram matrices where those are cheaper, else dense."""
        n, t = self.batch.size, self.positions
        if self._single:
            a, b = (factor.transpose(0, 1) for factor in self._factors())  # [G, N, ·]
            return ((a @ a.mT) * (b @ b.mT)).sum(0)
        positions = n * n * t * t * (self.inputs + self.outputs)
        dense = n * t * self.inputs * self.outputs + n * n * self.inputs * self.outputs
        if self._whole is not None or dense <= positions:
            return super().gram()
        gram = self._empty(n, n)
        all_a, all_b = self.a(slice(None)), self.b
        for samples in self.batch.pieces(2 * n * t * t * self.dtype.itemsize):
            a, b = all_a[samples], all_b[samples]
            for group in range(self.groups):
                products = _pairs(a[:, group], all_a[:, group])  # [n, T, N, T]
                products *= _pairs(b[:, group], all_b[:, group])
                gram[samples] += products.sum((1, 3))
        return gram

    def dot(self, direction: Tensor) -> Tensor:
        """Return g_i·d = Σ_t b_it·(d a_it)."""
        if self._whole is not None:
            return super().dot(direction)
        matrix = direction.to(self.dtype).reshape(self.groups, self.outputs, self.inputs)
        if self._single:
            a, b = (factor.transpose(0, 1) for factor in self._factors())  # [G, N, ·]
            return torch.linalg.vecdot(b @ matrix, a).sum(0)
        products = self._empty(self.batch.size)
        per_sample = self.groups * (self.inputs + self.outputs) * self.positions
        for samples in self.batch.pieces(per_sample * self.dtype.itemsize):
            forward = matrix @ self.a(samples)  # [n, G, O, T]
            products[samples] = (forward * self.b[samples]).sum((1, 2, 3))
        return products

    def mean(self) -> Tensor:
        """Return g, by one product over samples and positions together."""
        if self._whole is not None:
            return super().mean()
        if self._single:
            a, b = (factor.transpose(0, 1) for factor in self._factors())  # [G, N, ·]
            return (b.mT @ a / self.batch.size).reshape(self.shape)
        total = self._empty(self.groups, self.outputs, self.inputs)
        for samples in self.batch.pieces(
            self.groups * self.inputs * self.positions * self.dtype.itemsize
        ):
            a, b = self.a(samples), self.b[samples]
            total += torch.einsum("ngot,ngit->goi", b, a)
        return (total / self.batch.size).reshape(self.shape)

    def dot_mean(self) -> Tensor:
        """Return g_i·g, from pairwise products where those are cheaper than g itself."""
        pairwise = self.batch.size * (self.inputs + self.outputs)
        matrix = self.inputs * self.outputs
        known, _ = self._accumulated()
        if self._single and pairwise < (2 * matrix if known is None else matrix):
            return self.gram().mean(1)
        # Dense gradients are as dear as g, and everything else is cheap afterwards. Where few positions
        # give the norms without them, writing and reading them takes longer than g and the products.
        if not self._single and self.fits and not self._position_gram_pays():
            self.dense()
        return super().dot_mean()

    def min_max(self) -> Tensor:
        """Return the extremes: those of the products of the factors' extremes where there is one position."""
        if not self._single or self.total == 0:
            return super().min_max()
        (a_min, a_max), (b_min, b_max) = (torch.aminmax(f, dim=2) for f in self._factors())
        corners = torch.stack([a_min * b_min, a_min * b_max, a_max * b_min, a_max * b_max])
        return torch.stack(torch.aminmax(corners))

    def abs_max(self) -> Tensor:
        """Return the largest magnitude: max_i |a_i|∞|b_i|∞ where there is one position."""
        if not self._single or self.total == 0:
            return super().abs_max()
        a, b = self._factors()
        return (a.abs().amax(2) * b.abs().amax(2)).max()

    def sample(self, count: int) -> Sample:
        """Draw values of all samples, from some rows and columns of the parameter's matrix.

        Rows and columns are drawn at random, the same for every sample, which makes every value as
        likely as any other, and costs a small matrix product per sample rather than the whole
        gradient.
        """
        if self._whole is not None:
            return super().sample(count)
        row, column = drawn_block(self, count // self.groups, self.outputs, self.inputs)

        def locate() -> Tensor:
            group = torch.arange(self.groups, device=self.device).reshape(-1, 1, 1)
            elements = (group * self.outputs + row.unsqueeze(1)) * self.inputs + column
            return elements.reshape(-1)  # [G · rows · columns]

        return Sample(self.block(row, column).reshape(self.batch.size, -1), locate)

    def block(self, row: Tensor, column: Tensor) -> Tensor:
        """Return the elements in some rows and columns of the parameter's matrix, `[N, G, rows, columns]`."""
        b = self.b.index_select(2, row).reshape(-1, len(row), self.positions)
        a = self.columns(column).reshape(-1, len(column), self.positions)
        pairs = b * a.mT if self._single else torch.bmm(b, a.mT)
        return pairs.reshape(self.batch.size, self.groups, len(row), len(column))

    def columns(self, index: Tensor) -> Tensor:
        """Return some of the inputs of every sample, `[N, G, len(index), T]`."""
        return self.a(slice(None)).index_select(2, index)


def drawn_block(
    handle: IndividualGradients, count: int, outputs: int, inputs: int
) -> tuple[Tensor, Tensor]:
    """Draw rows and columns of a parameter's matrix at random.

    Args:
        handle: The individual gradients.
        count: About how many values there are where they cross, of all samples together.
        outputs: Rows of the matrix.
        inputs: Columns of it.

    Returns:
        The rows and the columns.
    """
    each = max(1, count // handle.batch.size)
    ratio = (outputs / inputs) ** 0.5
    rows = min(outputs, max(1, round(each**0.5 * ratio)))
    columns = min(inputs, max(1, each // rows))
    rows = min(outputs, max(1, each // columns))
    generator = handle.batch.generator(handle.device)
    row = torch.randperm(outputs, generator=generator, device=handle.device)[:rows]
    column = torch.randperm(inputs, generator=generator, device=handle.device)[:columns]
    return row, column


def _pairs(first: Tensor, second: Tensor) -> Tensor:
    """Return the products of all columns of two stacks of matrices, `[n, T, N, T]`."""
    return torch.einsum("nit,mis->ntms", first, second)
