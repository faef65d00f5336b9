"""Individual gradients of a batch whose samples are spread over several processes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from cockpit.gradients.batch import Batch
from cockpit.gradients.handle import IndividualGradients, Sample
from cockpit.gradients.products import Products
from cockpit.histograms import Bins, Histogram

Layout = tuple[str, tuple[int, ...]]
"""What two handles have to have in common for their factors to stand side by side."""


class Exchange(Protocol):
    """What processes do together: every one of them makes the same calls in the same order."""

    rank: int
    """Number of this process."""

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over the processes, the same to the last bit on each of them."""

    def rows(self, tensor: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the rows of all processes, in their order.

        Args:
            tensor: Those of this process, `[sizes[rank], ...]`.
            sizes: How many each process has.
        """


class Spread(IndividualGradients):
    """The individual gradients of all processes, side by side in the order of the processes.

    No process sees the gradients of another as a whole: they exchange what a reduction makes of
    them. Every reduction is to be called by all processes, and gives all of them the same.

    Args:
        batch: The batch as a whole.
        local: The gradients of this process's samples, in the scale of the whole.
        sizes: Number of samples of each process.
        exchange: Between the processes.
        closed: Whether the factors of `local` have the same layout on every process; see `layout`.
    """

    def __init__(
        self,
        batch: Batch,
        local: IndividualGradients,
        sizes: Sequence[int],
        exchange: Exchange,
        closed: bool,
    ) -> None:
        super().__init__(batch, local.shape, local.dtype, local.device)
        self.local, self.sizes, self._exchange, self._closed = local, list(sizes), exchange, closed
        self._starts = [0, *accumulate(sizes)][:-1]
        self._mean: Tensor | None = None
        self.name, self.parameter, self.calls = local.name, local.parameter, local.calls

    @property
    def intact(self) -> bool:
        """Whether the inputs on this process still are what they were in the forward pass."""
        return self.local.intact

    def _rows_of(self, values: Tensor) -> Tensor:
        """Return a value per sample of all processes, `[N, ...]`."""
        return self._exchange.rows(values, self.sizes)

    def _each(self, value: Tensor) -> Tensor:
        """Return one value of every process, `[processes, ...]`."""
        return self._exchange.rows(value.unsqueeze(0), [1] * len(self.sizes))

    def piece(self, samples: slice) -> Tensor:
        """Return the gradients of some samples, from the processes that hold them."""
        start, stop, _ = samples.indices(self.batch.size)
        bounds = [
            (min(max(start - offset, 0), size), min(max(stop - offset, 0), size))
            for offset, size in zip(self._starts, self.sizes, strict=True)
        ]
        low, high = bounds[self._exchange.rank]
        own = self.local.piece(slice(low, high)) if low < high else self._empty(0, *self.shape)
        return self._exchange.rows(own, [high - low for low, high in bounds])

    def mean(self) -> Tensor:
        """Return g, the weighted mean of the processes'."""
        if self._mean is None:
            share = self.local.batch.size / self.batch.size
            self._mean = self._exchange.sum(self.local.mean() * share)
        return self._mean

    @property
    def has_cheap_norms(self) -> bool:
        """As good as: to draw samples from all processes is dearer than to look at all of them."""
        return True

    def square_norms(self) -> Tensor:
        """Return ‖g_i‖² of all samples, `[N]`."""
        return self._rows_of(self.local.square_norms())

    def sum_of_squares(self) -> Tensor:
        """Return Σ_i g_i² over all samples, `[*shape]`."""
        return self._exchange.sum(self.local.sum_of_squares())

    def dot(self, direction: Tensor) -> Tensor:
        """Return g_i·d of all samples, `[N]`."""
        return self._rows_of(self.local.dot(direction))

    def gram(self) -> Tensor:
        """Return g_i·g_j: from factors that are put together, or from dense pieces that go round."""
        if self._closed:
            return self._joined().gram()
        block = self._empty(self.local.batch.size, self.batch.size)
        for columns in self._slices():
            others = self.piece(columns).flatten(1)
            for rows, piece in self.local.chunks():
                block[rows, columns] = piece.flatten(1) @ others.T
        return self._rows_of(block)

    def _joined(self) -> Products:
        """Put the factors of all processes together."""
        assert isinstance(self.local, Products)
        a, b = self._rows_of(self.local.a(slice(None))), self._rows_of(self.local.b)
        return Products(self.batch, self.shape, a, b)

    def min_max(self) -> Tensor:
        """Return the extremes over all processes, `[2]`; NaN if there is one."""
        return torch.stack(torch.aminmax(self._each(self.local.min_max())))

    def abs_max(self) -> Tensor:
        """Return the largest magnitude over all processes, `[]`; NaN if there is one."""
        return self._each(self.local.abs_max()).max()

    def histogram(self, edges: Tensor | Bins, samples: int | None = None) -> Histogram:
        """Add up the counts of all processes, each of which draws its share where they are drawn."""
        return self._added(self.local.histogram(edges, self._share(samples)), samples)

    def joint_histogram(
        self,
        parameter: Tensor,
        edges: tuple[Tensor | Bins, Tensor | Bins],
        samples: int | None = None,
    ) -> Histogram:
        """Add up the counts of all processes, each of which draws its share where they are drawn."""
        counted = self.local.joint_histogram(parameter, edges, self._share(samples))
        return self._added(counted, samples)

    def _share(self, samples: int | None) -> int | None:
        """Return how many of the values are to be drawn here."""
        if samples is None or samples >= self.total:
            return None
        return max(1, samples * self.local.batch.size // self.batch.size)

    def _added(self, own: Histogram, samples: int | None) -> Histogram:
        drawn = own.nonfinite.new_tensor(own.drawn)
        packed = torch.cat([own.counts.reshape(-1), torch.stack([own.nonfinite, drawn])])
        added = self._exchange.sum(packed)
        counts, (nonfinite, all_drawn) = added[:-2].reshape(own.counts.shape), added[-2:]
        # Without sampling it is known beforehand, and nobody waits for the device.
        sampled = self._share(samples) is not None
        return Histogram(counts, nonfinite, int(all_drawn) if sampled else self.total)

    def sample(self, count: int) -> Sample:
        """Draw about `count` values, from every process its share."""
        own = self.local.sample(max(1, count * self.local.batch.size // self.batch.size))
        values = own.values.reshape(-1)
        own_elements = own.locate().expand(own.values.shape).reshape(-1)
        sizes = self._each(torch.tensor(len(values), device=self.device)).tolist()
        elements = self._exchange.rows(own_elements, sizes)  # at once: all processes take part
        return Sample(self._exchange.rows(values, sizes), lambda: elements)

    def release(self) -> None:
        """Forget what can be computed again."""
        super().release()
        self._mean = None
        self.local.release()


def layout(handle: IndividualGradients) -> Layout | None:
    """Return the layout of a handle's factors; None where it has none that are smaller than the gradients."""
    if type(handle) is not Products:
        return None
    groups, inputs, outputs, positions = (
        handle.groups,
        handle.inputs,
        handle.outputs,
        handle.positions,
    )
    if positions * (inputs + outputs) >= inputs * outputs and positions > 1:
        return None
    return str(handle.dtype), (groups, inputs, outputs, positions)
