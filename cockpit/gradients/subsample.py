"""Individual gradients of some of the samples of a batch, that stand for those of all.

Of k samples drawn without replacement from N, (N/k) Σ f(g_i) over the k estimates Σ f(g_i) over the N
without bias, whatever f is. The mini-batch gradient g, the mean over all N, is known all the same: it
is what the backward pass brings. So whatever can be written with the deviations from it is, such as
Σ_i g_i² = N g² + Σ_i (g_i − g)², of which only the last sum has to be estimated. What is estimated
without bias stays so, and what cannot be negative cannot become so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from cockpit.gradients.batch import Batch, Draw
from cockpit.gradients.handle import IndividualGradients, Sample
from cockpit.histograms import Bins, Drawn, Histogram, counted, scale_counts


class Subsampled(IndividualGradients):
    """The gradients of k samples of a batch of N, and the mean of all N.

    What has a value per sample has k of them (``[k]``, ``[k, k]``, ``[k, *shape]``), and extremes are
    those of the k samples. Sums over the samples and counts are estimates of those over all N.

    Args:
        batch: The N samples.
        few: The gradients of the k samples.
        gradient: Returns the gradient of the mean loss over all N samples, `[*shape]`.
    """

    def __init__(
        self, batch: Batch, few: IndividualGradients, gradient: Callable[[], Tensor]
    ) -> None:
        super().__init__(batch, few.shape, few.dtype, few.device)
        self.few = few
        self._gradient: Callable[[], Tensor] | None = gradient
        self._mean: Tensor | None = None

    @classmethod
    def of(
        cls, whole: IndividualGradients, draw: Draw, gradient: Callable[[], Tensor]
    ) -> Subsampled:
        """Take some of the samples; all of them are kept only as long as `gradient` keeps them."""
        taken = cls(whole.batch, whole.select(draw), gradient)
        taken.name, taken.parameter, taken.calls = whole.name, whole.parameter, whole.calls
        return taken

    @property
    def samples(self) -> int:
        """How many of the N samples there are gradients of, k."""
        return self.few.batch.size

    def piece(self, samples: slice) -> Tensor:
        """Return the gradients of some of the k samples, `[n, *shape]`."""
        return self.few.piece(samples)

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield the dense gradients of the k samples in pieces that respect the memory budget."""
        return self.few.chunks()

    @property
    def held(self) -> int:
        """Bytes of the dense gradients of the k samples that are kept until `release`."""
        return self.few.held

    def release(self) -> None:
        """Forget what can be computed again; the mean over all samples cannot."""
        super().release()
        self.few.release()

    # -- of all N samples -------------------------------------------------------------------------

    def mean(self) -> Tensor:
        """Return the gradient of the mean loss over all N samples, `[*shape]`."""
        if self._mean is None:
            assert self._gradient is not None
            self._mean, self._gradient = self._gradient(), None
        return self._mean

    def sum_of_squares(self) -> Tensor:
        """Return an estimate of Σ_i g_i² over all N samples, `[*shape]`: N g² + (N/k) Σ_k (g_i − g)²."""
        mean = self.mean()
        second = self.few.sum_of_squares() / self.samples
        return (second - 2 * mean * (self.few.mean() - mean)) * self.batch.size

    def slopes(self, direction: Tensor) -> Tensor:
        """Return the products g_i·d of the k samples, shifted so that their mean is that of all N, `[k]`."""
        products = self.few.dot(direction)
        along = direction.to(self.dtype).reshape(-1)
        return products + (torch.dot(self.mean().reshape(-1), along) - products.mean())

    def histogram(self, edges: Tensor | Bins, samples: int | None = None) -> Histogram:
        """Count the values of the k samples as `IndividualGradients.histogram`, scaled to all N."""
        bins = Bins.between(edges, self._empty(0))
        return counted([self.drawn(bins, samples)])[0]

    def drawn(self, bins: Bins, samples: int | None = None) -> Histogram | Drawn:
        """Return what `histogram` does, or the values of which it does, to be counted with others."""
        found = self.few.drawn(bins, samples)
        return (
            self._of_all(found)
            if isinstance(found, Histogram)
            else replace(found, total=self.total)
        )

    def joint_histogram(
        self,
        parameter: Tensor,
        edges: tuple[Tensor | Bins, Tensor | Bins],
        samples: int | None = None,
    ) -> Histogram:
        """Count the pairs of the k samples as `IndividualGradients.joint_histogram`, scaled to all N."""
        return self._of_all(self.few.joint_histogram(parameter, edges, samples))

    def _of_all(self, histogram: Histogram) -> Histogram:
        """Scale counts that sum to k·D to N·D."""
        counts = torch.cat([histogram.counts.reshape(-1), histogram.nonfinite.reshape(1)])
        scaled = scale_counts(counts, self.total, max(1, self.few.total))
        return Histogram(scaled[:-1].reshape(histogram.counts.shape), scaled[-1], histogram.drawn)

    # -- of the k samples -------------------------------------------------------------------------

    def deviation(self, samples: int | None = None) -> Tensor:
        """Return the mean of ‖g_i − g‖² over some of the k samples, and ‖g‖² of all N, `[2]`."""
        few = self.few
        if samples is not None and samples < self.samples and not few.has_cheap_norms:
            few = few.select(Draw.of(few.batch, samples))
        mean = self.mean()
        square = mean.square().sum()
        return torch.stack([(few.square_norms() - 2 * few.dot(mean)).mean() + square, square])

    def square_norms(self) -> Tensor:
        """Return ‖g_i‖² of the k samples, `[k]`."""
        return self.few.square_norms()

    def gram(self) -> Tensor:
        """Return the pairwise products g_i·g_j of the k samples, `[k, k]`."""
        return self.few.gram()

    def dot(self, direction: Tensor) -> Tensor:
        """Return the products g_i·d of the k samples, `[k]`."""
        return self.few.dot(direction)

    def dot_mean(self) -> Tensor:
        """Return the products g_i·g of the k samples with the gradient of all N, `[k]`.

        Their mean only estimates ‖g‖², which is known from `mean`.
        """
        return self.few.dot(self.mean())

    def abs_max(self) -> Tensor:
        """Return max |g_id| over the k samples, `[]`."""
        return self.few.abs_max()

    def min_max(self) -> Tensor:
        """Return the smallest and the largest g_id of the k samples, `[2]`."""
        return self.few.min_max()

    def quota(self, samples: int) -> int:
        """Return the share of this parameter in values drawn from those of the k samples."""
        return self.few.quota(samples)

    def sample(self, count: int) -> Sample:
        """Draw about `count` of the values of the k samples."""
        return self.few.sample(count)
