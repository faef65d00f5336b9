"""Histograms of the individual gradients' elements."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cockpit.engine.step import PerParameter, Step
from cockpit.errors import InvalidArgument
from cockpit.quantities.quantity import Outcome, Quantity
from cockpit.transforms import Histogram1d, Need, bin_edges

SAMPLES = 2**17
"""Values drawn unless told otherwise: a bin with a share of 1 % is known to 3 % of itself."""


@dataclass(frozen=True)
class GradHist1d(Quantity):
    r"""Histogram of the elements of all individual gradients, in total and by parameter.

    Formula: the counts of all :math:`g_{id}` in `bins` bins of equal width over `range`, closed on
    the left, the last one on both sides. Values outside of the range count in the outermost bins.
    NaN and infinities are in no bin and counted beside as ``nonfinite``.

    How to read it: a narrow peak at zero with thin tails is usual. Mass in the outermost bins
    points at inputs of the wrong scale; a layer whose values all sit in the bin of zero gets no
    gradient.

    Source: Schneider, Dangel & Hennig (2021), arXiv:2102.06604.

    Args:
        track_schedule: On which steps it is tracked.
        verbose: Whether to print the value.
        bins: Number of bins.
        range: Where the first bin begins and the last one ends.
        samples: Bound on the number of values that are looked at. With more, so many are drawn
            evenly over parameters and samples, and the counts scaled to the total; ``drawn`` says
            how many. ``None`` counts every value.
    """

    bins: int = 100
    range: tuple[float, float] = (-2.0, 2.0)
    samples: int | None = SAMPLES

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.bins < 1:
            raise InvalidArgument(f"GradHist1d needs at least 1 bin, got bins={self.bins!r}.")
        if not self.range[0] < self.range[1]:
            raise InvalidArgument(
                f"GradHist1d needs a range (low, high) with low < high, got range={self.range!r}."
            )
        if self.samples is not None and self.samples < 1:
            raise InvalidArgument(
                "GradHist1d needs samples of at least 1, or None for all, got "
                f"samples={self.samples!r}."
            )

    @property
    def counts(self) -> Histogram1d:
        """The transform of the individual gradients that counts."""
        return Histogram1d(self.bins, (self.range[0], self.range[1]), self.samples)

    def needs(self) -> tuple[Need, ...]:
        """Return the counting transform of these settings."""
        return (self.counts,)

    def compute(self, step: Step) -> Outcome:
        """Return hist int64 `[bins]` and edges `[bins + 1]`; by parameter in the details."""
        layers = step[self.counts]
        total = layers.total()
        value = {
            "hist": total.counts,
            "edges": bin_edges(self.range, self.bins, torch.float64, torch.device("cpu")),
        }
        details = {
            "nonfinite": total.nonfinite,
            "drawn": total.drawn,
            "hist": PerParameter((name, layer.counts) for name, layer in layers.items()),
        }
        return Outcome(value, details)
