"""Individual gradients of samples that have several entries each in the batch of a layer."""

from __future__ import annotations

import torch
from torch import Tensor

from cockpit.gradients.batch import Batch, Draw
from cockpit.gradients.handle import IndividualGradients


class Folded(IndividualGradients):
    """Gradients g_i = Σ_k h_ik of samples whose K entries follow each other in a layer's first dimension.

    So the frames of a video go through a convolution, or the windows of an image through a layer of
    attention.

    Args:
        batch: The N samples.
        entries: The gradients h of the N·K entries, each in the scale of g_i.
        count: Number of entries K of a sample.
    """

    def __init__(self, batch: Batch, entries: IndividualGradients, count: int) -> None:
        super().__init__(batch, entries.shape, entries.dtype, entries.device)
        self._entries, self._count = entries, count

    def select(self, draw: Draw) -> Folded:
        """Return those of some of the samples, from their entries."""
        entries = self._entries.select(draw.of_entries(self._count))
        return Folded(draw.batch, entries, self._count)

    def piece(self, samples: slice) -> Tensor:
        """Add up the entries of some samples, `[n, *shape]`, one sample at a time where memory asks for it."""
        start, stop, _ = samples.indices(self.batch.size)
        count = self._count
        if (stop - start) * count * self.numel * self.dtype.itemsize <= self.batch.memory_budget:
            entries = self._entries.piece(slice(start * count, stop * count))
            return entries.unflatten(0, (stop - start, count)).sum(1)
        sums = [self._sum(i) for i in range(start, stop)]
        return torch.stack(sums) if sums else self._empty(0, *self.shape)

    def _sum(self, sample: int) -> Tensor:
        total = self._empty(*self.shape)
        bytes_per_entry = self.numel * self.dtype.itemsize
        step = max(1, self.batch.memory_budget // max(1, bytes_per_entry))
        end = (sample + 1) * self._count
        for first in range(sample * self._count, end, step):
            total += self._entries.piece(slice(first, min(first + step, end))).sum(0)
        return total

    def mean(self) -> Tensor:
        """Return g: the mean over the entries, K times."""
        return self._entries.mean() * self._count

    def dot(self, direction: Tensor) -> Tensor:
        """Return g_i·d, `[N]`."""
        return self._entries.dot(direction).unflatten(0, (self.batch.size, -1)).sum(1)

    def release(self) -> None:
        """Forget what can be computed again."""
        super().release()
        self._entries.release()
