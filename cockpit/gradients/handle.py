"""Handles on the individual gradients of a parameter, which never exist as a whole.

`IndividualGradients` offers the reductions that quantities want. All of them work from one method,
`piece`, which gives the dense gradients of some of the samples; subclasses override what they know
a closed form for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from cockpit.gradients.batch import Batch, Draw
from cockpit.histograms import Bins, Drawn, Histogram

if TYPE_CHECKING:
    from cockpit.gradients.rules import Call
    from cockpit.transforms import Transform


FEW = 2**17
"""Values g_id that are so few that no time is lost with them."""


class Sample(NamedTuple):
    """Values g_id that were drawn.

    Args:
        values: The values, `[..., m]`.
        locate: Returns which elements d of the flattened parameter they belong to, `[m]`; few ask.
    """

    values: Tensor
    locate: Callable[[], Tensor]


class IndividualGradients:
    """The gradients g_i of the losses of N samples with respect to one parameter.

    Args:
        batch: What all handles of the backward pass share, with the number of samples N.
        shape: Shape of the parameter.
        dtype: Precision of what is computed.
        device: Where it is computed.
    """

    def __init__(
        self, batch: Batch, shape: torch.Size, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.batch = batch
        self.shape = torch.Size(shape)
        self.dtype = dtype
        self.device = device
        self._whole: Tensor | None = None
        self.name = ""  # of the parameter, where the names are known
        self.parameter: Tensor | None = None  # itself, once all its parts have arrived
        self._applied: dict[Transform, Any] = {}
        self.calls: list[Call] = []  # the calls of modules that this comes from
        self.accumulated = False  # whether the parameter's gradient is their sum, and nothing else

    @property
    def intact(self) -> bool:
        """Whether the inputs that this is computed from still are what they were in the forward pass."""
        return all(call.versions == call.current_versions() for call in self.calls)

    # -- what a subclass provides -----------------------------------------------------------------

    def piece(self, samples: slice) -> Tensor:
        """Return the gradients of some samples, `[n, *shape]`."""
        raise NotImplementedError

    def select(self, draw: Draw) -> IndividualGradients:
        """Return the gradients of some of the samples."""
        return Selected(self, draw)

    def _with(self, batch: Batch) -> Any:
        """Return a copy for another batch, without what was computed for this one."""
        other = copy(self)
        other.accumulated = False
        other.batch, other._whole, other._applied = batch, None, {}
        return other

    # -- dense pieces -----------------------------------------------------------------------------

    @property
    def samples(self) -> int:
        """How many of the N samples there are gradients of: all, unless only some were drawn."""
        return self.batch.size

    @property
    def numel(self) -> int:
        """Number of scalars of the parameter, D."""
        return self.shape.numel()

    @property
    def total(self) -> int:
        """Number of scalars of all individual gradients, N·D."""
        return self.batch.size * self.numel

    @property
    def fits(self) -> bool:
        """Whether all individual gradients together respect the memory budget."""
        return len(self._slices()) <= 1

    def _slices(self) -> list[slice]:
        # One half for the piece itself, the other one for what is computed from it.
        return self.batch.pieces(2 * self.numel * self.dtype.itemsize)

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield the dense gradients in pieces that respect the memory budget.

        A piece is a pair of the samples that it holds and a tensor `[n, *shape]`. Where they fit as
        a whole they are computed once and kept until `release`.
        """
        if self._whole is not None:
            yield slice(0, self.batch.size), self._whole
            return
        slices = self._slices()
        for samples in slices:
            piece = self.piece(samples)
            if len(slices) == 1:
                self._whole = piece
            yield samples, piece

    def _rows(self) -> Iterator[tuple[slice, Tensor]]:
        for samples, piece in self.chunks():
            yield samples, piece.reshape(len(piece), self.numel)  # [n, D]

    @property
    def held(self) -> int:
        """Bytes of the dense gradients that are kept until `release`."""
        return 0 if self._whole is None else self._whole.nbytes

    def release(self) -> None:
        """Forget what can be computed again."""
        self._whole = None
        self._applied.clear()

    def apply(self, transform: Transform) -> Any:
        """Return what a transform makes of this; equal transforms are computed once."""
        if transform not in self._applied:
            self._applied[transform] = transform(self)
        return self._applied[transform]

    def _empty(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    # -- reductions -------------------------------------------------------------------------------

    def dense(self) -> Tensor:
        """Return all individual gradients, `[N, *shape]`, whatever memory that takes."""
        pieces = [piece for _, piece in self.chunks()]
        if not pieces:
            return self._empty(0, *self.shape)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def mean(self) -> Tensor:
        """Return the gradient of the mean loss, g = (1/N) Σ_i g_i, `[*shape]`."""
        total = self._empty(self.numel)
        for _, rows in self._rows():
            total += rows.sum(0)
        return (total / self.batch.size).reshape(self.shape)

    @property
    def has_cheap_norms(self) -> bool:
        """Whether `square_norms` takes little beside the gradient itself, however many samples there are."""
        return self.total <= FEW

    def deviation(self, samples: int | None = None) -> Tensor:
        """Return the mean of ‖g_i − g‖² and ‖g‖², `[2]`.

        Args:
            samples: How many samples the mean is estimated from, at most, where the norms are not cheap;
                None for all. ‖g‖² is that of all in any case.
        """
        gradient, factor = self._accumulated()
        if gradient is not None:
            gradient = gradient.to(self.dtype)
        if samples is None or samples >= self.batch.size or self.has_cheap_norms:
            square = self.dot_mean().mean() if gradient is None else _square(gradient) * factor**2
            return torch.stack([self.square_norms().mean() - square, square])
        if gradient is None:
            gradient, factor = self.mean(), 1.0
        few = self.select(Draw.of(self.batch, samples))
        square = _square(gradient) * factor**2
        products = few.dot(gradient) * factor
        return torch.stack([(few.square_norms() - 2 * products).mean() + square, square])

    def _accumulated(self) -> tuple[Tensor | None, Tensor | float]:
        """Return the parameter's gradient and the factor that makes g of it, where that is known."""
        gradient = None if self.parameter is None else self.parameter.grad
        if not self.accumulated or gradient is None or gradient.is_sparse:
            return None, 1.0
        return gradient, self.batch.scale / self.batch.size

    def square_norms(self) -> Tensor:
        """Return ‖g_i‖², `[N]`."""
        norms = self._empty(self.batch.size)
        for samples, rows in self._rows():
            norms[samples] = torch.linalg.vector_norm(rows, dim=1).square()
        return norms

    def sum_of_squares(self) -> Tensor:
        """Return the elementwise sum Σ_i g_i², `[*shape]`."""
        total = self._empty(self.numel)
        for _, rows in self._rows():
            total += rows.square().sum(0)
        return total.reshape(self.shape)

    def gram(self) -> Tensor:
        """Return the pairwise products g_i·g_j, `[N, N]`."""
        gram = self._empty(self.batch.size, self.batch.size)
        for first, rows in self._rows():
            for second, columns in self._rows():
                if second.start < first.start:
                    continue
                block = rows @ columns.T
                gram[first, second] = block
                if second.start > first.start:
                    gram[second, first] = block.T
        return gram

    def dot(self, direction: Tensor) -> Tensor:
        """Return the products g_i·d with a direction d of the parameter's shape, `[N]`."""
        flat = direction.to(self.dtype).reshape(-1)
        products = self._empty(self.batch.size)
        for samples, rows in self._rows():
            products[samples] = rows @ flat
        return products

    def slopes(self, direction: Tensor) -> Tensor:
        """Return the products g_i·d as `dot` does, with the mean g·d of the mini-batch, `[N]`."""
        return self.dot(direction)

    def dot_mean(self) -> Tensor:
        """Return the products g_i·g with the mini-batch gradient g, `[N]`. Their mean is ‖g‖²."""
        gradient, factor = self._accumulated()
        if gradient is None or gradient.dtype != self.dtype:  # rounded more coarsely
            return self.dot(self.mean())
        return self.dot(gradient) * factor

    def abs_max(self) -> Tensor:
        """Return max |g_id| over samples and elements, `[]`; NaN if there is one."""
        return self.min_max().abs().max()

    def min_max(self) -> Tensor:
        """Return the smallest and the largest g_id, `[2]`; NaN if there is one."""
        extremes = [torch.stack(torch.aminmax(rows)) for _, rows in self._rows() if rows.numel()]
        if not extremes:
            return self._empty(2)
        stacked = torch.stack(extremes)  # [pieces, 2]
        return torch.stack([stacked[:, 0].amin(), stacked[:, 1].amax()])

    def histogram(self, edges: Tensor | Bins, samples: int | None = None) -> Histogram:
        """Count the values g_id in the bins between `edges`, `[bins + 1]`.

        Args:
            edges: Ascending, or the bins. They are closed on the left, the last one on both sides; values
                outside of the range count in the outermost bins.
            samples: At most about so many values are drawn, evenly over samples and elements, and
                the counts scaled to the total. ``None`` counts all.
        """
        bins = Bins.between(edges, self._empty(0))
        if samples is not None and samples < self.total:
            return Histogram.of(self.sample(samples).values, bins).scaled_to(self.total)
        counts = torch.zeros(bins.count + 1, dtype=torch.int64, device=self.device)
        for _, rows in self._rows():
            counts += bins.counts(rows)
        return Histogram(counts[:-1], counts[-1], self.total)

    def joint_histogram(
        self,
        parameter: Tensor,
        edges: tuple[Tensor | Bins, Tensor | Bins],
        samples: int | None = None,
    ) -> Histogram:
        """Count the pairs (g_id, θ_d), int64 `[bins_x, bins_y]`, in the bins between two sets of edges.

        Args:
            parameter: The values θ, `[*shape]`.
            edges: Those of the gradients and those of the parameter, as in `histogram`.
            samples: Bound on the number of pairs that are drawn, as in `histogram`.
        """
        x, y = (Bins.between(e, self._empty(0)) for e in edges)
        theta = parameter.detach().to(self.dtype).reshape(-1)
        shape = x.count + 1, y.count + 1
        counts = torch.zeros(shape[0] * shape[1], dtype=torch.int64, device=self.device)
        if samples is not None and samples < self.total:
            drawn = self.sample(samples)
            pairs = x.index(drawn.values) * shape[1] + y.index(theta[drawn.locate()])
            counts += torch.bincount(pairs.reshape(-1), minlength=counts.numel())
            return Histogram.joint(counts.reshape(shape), drawn.values.numel(), self.total)
        of_theta = y.index(theta)
        for _, rows in self._rows():
            for row in rows:
                pairs = x.index(row) * shape[1] + of_theta
                counts += torch.bincount(pairs, minlength=counts.numel())
        return Histogram.joint(counts.reshape(shape), self.total, self.total)

    def quota(self, samples: int) -> int:
        """Return the share of this parameter in `samples` values drawn over all tracked ones."""
        return self.batch.quota(samples)

    def drawn(self, bins: Bins, samples: int | None = None) -> Histogram | Drawn:
        """Return what `histogram` does, or the values of which it does, to be counted with others."""
        if type(self).histogram is not IndividualGradients.histogram or samples is None:
            return self.histogram(bins, samples)
        if samples < self.total:
            return Drawn(self.sample(samples).values, bins, self.total)
        return Drawn(self.dense(), bins, self.total)

    def sample(self, count: int) -> Sample:
        """Draw about `count` of the values g_id, each with the same probability.

        Here: elements at random, of all samples where those fit into memory and of a few at random
        otherwise.
        """
        generator = self.batch.generator(self.device)
        if self._whole is None and not self.fits:
            few = max(1, min(self.batch.size, -(-count // self.numel), 16))
            on_host = self.batch.generator(torch.device("cpu"))
            chosen = torch.randperm(self.batch.size, generator=on_host)[:few]
            rows = torch.cat([self.piece(slice(i, i + 1)) for i in chosen.tolist()]).reshape(-1)
        else:
            rows = self.dense().reshape(-1)
        index = torch.randint(
            rows.numel(), (min(count, rows.numel()),), generator=generator, device=self.device
        )
        return Sample(rows[index], lambda: index % self.numel)


def _square(gradient: Tensor) -> Tensor:
    flat = gradient.reshape(-1)
    return torch.dot(flat, flat)


class Selected(IndividualGradients):
    """The gradients of some of the samples, taken from those of all as they are asked for.

    Args:
        origin: The gradients of all samples.
        draw: The samples.
    """

    def __init__(self, origin: IndividualGradients, draw: Draw) -> None:
        super().__init__(draw.batch, origin.shape, origin.dtype, origin.device)
        self._origin, self._index = origin, draw.index

    def piece(self, samples: slice) -> Tensor:
        """Return the gradients of some of the samples, those that stand side by side at a time."""
        pieces = [self._origin.piece(run) for run in _runs(self._index[samples].tolist())]
        return torch.cat(pieces) if pieces else self._empty(0, *self.shape)

    def release(self) -> None:
        """Forget what can be computed again, here and in what it is taken from."""
        super().release()
        self._origin.release()


def _runs(index: list[int]) -> Iterator[slice]:
    """Yield slices that together are the numbers of an ascending list."""
    start = 0
    for place, number in enumerate(index):
        if place + 1 == len(index) or index[place + 1] != number + 1:
            yield slice(index[start], number + 1)
            start = place + 1


class Dense(IndividualGradients):
    """Individual gradients that are small enough to be stored, `[N, *shape]`: biases, norm layers."""

    def __init__(self, batch: Batch, values: Tensor) -> None:
        super().__init__(batch, values.shape[1:], values.dtype, values.device)
        self._whole = values

    def piece(self, samples: slice) -> Tensor:
        """Return the stored gradients of some samples."""
        assert self._whole is not None
        return self._whole[samples]

    def select(self, draw: Draw) -> Dense:
        """Return those of some of the samples."""
        assert self._whole is not None
        return Dense(draw.batch, self._whole.index_select(0, draw.on(self.device)))

    # A model has many small parameters, and what the base class does about pieces would take longer than
    # the arithmetic.

    @property
    def _matrix(self) -> Tensor:
        """The gradients as rows, `[N, D]`."""
        assert self._whole is not None
        return self._whole.reshape(self.batch.size, self.numel)

    def mean(self) -> Tensor:
        """Return g, `[*shape]`."""
        assert self._whole is not None
        return self._whole.sum(0) / self.batch.size

    def square_norms(self) -> Tensor:
        """Return ‖g_i‖², `[N]`."""
        return torch.linalg.vecdot(self._matrix, self._matrix)

    def dot(self, direction: Tensor) -> Tensor:
        """Return g_i·d, `[N]`."""
        return torch.mv(self._matrix, direction.to(self.dtype).reshape(-1))

    def sample(self, count: int) -> Sample:
        """Draw values of all samples, of some elements at random, the same for every sample."""
        if not self.batch.size <= count <= self.total:
            return super().sample(count)
        generator = self.batch.generator(self.device)
        elements = torch.randperm(self.numel, generator=generator, device=self.device)
        elements = elements[: count // self.batch.size]
        return Sample(self._matrix.index_select(1, elements), lambda: elements)

    @property
    def held(self) -> int:
        """None: they are kept as they are."""
        return 0

    def release(self) -> None:
        """Keep the values: they cannot be computed again."""
        self._applied.clear()


class Zero(IndividualGradients):
    """Individual gradients of a parameter that had no part in the loss: all zero."""

    def select(self, draw: Draw) -> Zero:
        """Return zeros of fewer samples."""
        return Zero(draw.batch, self.shape, self.dtype, self.device)

    def piece(self, samples: slice) -> Tensor:
        """Return zeros."""
        return self._empty(len(range(*samples.indices(self.batch.size))), *self.shape)

    def mean(self) -> Tensor:
        """Return zeros, `[*shape]`."""
        return self._empty(*self.shape)

    def square_norms(self) -> Tensor:
        """Return zeros, `[N]`."""
        return self._empty(self.batch.size)

    def sum_of_squares(self) -> Tensor:
        """Return zeros, `[*shape]`."""
        return self._empty(*self.shape)

    def gram(self) -> Tensor:
        """Return zeros, `[N, N]`."""
        return self._empty(self.batch.size, self.batch.size)

    def dot(self, direction: Tensor) -> Tensor:
        """Return zeros, `[N]`."""
        return self._empty(self.batch.size)

    def dot_mean(self) -> Tensor:
        """Return zeros, `[N]`."""
        return self._empty(self.batch.size)

    def min_max(self) -> Tensor:
        """Return two zeros."""
        return self._empty(2)

    def histogram(self, edges: Tensor | Bins, samples: int | None = None) -> Histogram:
        """Put all N·D zeros into the bin of 0."""
        one = Histogram.of(self._empty(1), edges)
        return Histogram(one.counts * self.total, one.nonfinite, self.total)

    def joint_histogram(
        self,
        parameter: Tensor,
        edges: tuple[Tensor | Bins, Tensor | Bins],
        samples: int | None = None,
    ) -> Histogram:
        """Pair every parameter with N zeros."""
        x, y = (Bins.between(e, self._empty(0)) for e in edges)
        table = torch.zeros(x.count + 1, y.count + 1, dtype=torch.int64, device=self.device)
        values = parameter.detach().to(self.dtype)
        table[x.index(self._empty())] = y.counts(values) * self.batch.size
        return Histogram.joint(table, self.total, self.total)


class Sum(IndividualGradients):
    """Individual gradients that arrive in several parts, from several calls of a module or several modules."""

    def __init__(self, parts: list[IndividualGradients]) -> None:
        first = parts[0]
        dtype = first.dtype
        for part in parts[1:]:
            dtype = torch.promote_types(dtype, part.dtype)
        super().__init__(first.batch, first.shape, dtype, first.device)
        self.parts = parts

    def select(self, draw: Draw) -> Sum:
        """Return the sum of the parts of some of the samples."""
        return Sum([part.select(draw) for part in self.parts])

    def piece(self, samples: slice) -> Tensor:
        """Add up the parts of some samples."""
        total = self.parts[0].piece(samples).to(self.dtype, copy=True)
        for part in self.parts[1:]:
            total += part.piece(samples)
        return total

    def mean(self) -> Tensor:
        """Add up the means of the parts."""
        return sum((part.mean() for part in self.parts), self._empty(*self.shape))

    def dot(self, direction: Tensor) -> Tensor:
        """Add up the products of the parts with a direction."""
        return sum((part.dot(direction) for part in self.parts), self._empty(self.batch.size))

    def release(self) -> None:
        """Forget what can be computed again, here and in the parts."""
        super().release()
        for part in self.parts:
            part.release()
