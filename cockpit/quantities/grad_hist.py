"""Histograms of the individual gradients' elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.step import PerParameter, Step
from cockpit.errors import InvalidArgument
from cockpit.quantities.bin_adaptation import NoAdaptation, Range
from cockpit.quantities.quantity import Outcome, Quantity
from cockpit.transforms import Histogram1d, Histogram2d, Need, bin_edges

SAMPLES = 2**16
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

    With accumulation: the counts are those of the whole batch.

    Args:
        track_schedule: On which steps it is tracked.
        verbose: Whether to print the value.
        bins: Number of bins.
        range: Where the first bin begins and the last one ends.
        adapt: How the range follows the values; see `cockpit.quantities.bin_adaptation`.
        samples: Bound on the number of values that are looked at. With more, so many are drawn
            evenly over parameters and samples, and the counts scaled to the total; ``drawn`` says
            how many. ``None`` counts every value.
    """

    bins: int = 100
    range: tuple[float, float] = (-2.0, 2.0)
    adapt: NoAdaptation | None = None
    samples: int | None = SAMPLES

    def __post_init__(self) -> None:
        """Check the settings."""
        check_bins(self, (self.bins,), (self.range,), (self.adapt,), self.samples)

    def counts(self, memory: Range | None) -> Histogram1d:
        """Return the transform that counts, given the range that is remembered."""
        low, high = memory or self.range
        return Histogram1d(self.bins, (low, high), self.samples)

    def needs(self) -> tuple[Need, ...]:
        """Return the counting transform of the range that it begins with."""
        return (self.counts(None),)

    def needs_at(self, global_step: int, memory: Range | None) -> tuple[Need, ...]:
        """Return the counting transform, and the extremes when the range is to adapt."""
        return (self.counts(memory), *(self.adapt or NoAdaptation()).needs(global_step))

    def remember(self, step: Step) -> Range:
        """Return the range of the next histogram."""
        return (self.adapt or NoAdaptation()).adapted(step, step.memory or self.range)

    def compute(self, step: Step) -> Outcome:
        """Return hist int64 `[bins]` and edges `[bins + 1]`; by parameter in the details."""
        need = self.counts(step.memory)
        layers = step[need]
        total = layers.total()
        value = {"hist": total.counts, "edges": _edges(need.range, need.bins)}
        details = {
            "nonfinite": total.nonfinite,
            "drawn": total.drawn,
            "hist": PerParameter((name, layer.counts) for name, layer in layers.items()),
        }
        return Outcome(value, details)


@dataclass(frozen=True)
class GradHist2d(Quantity):
    r"""Joint histogram of the elements of all individual gradients and of the parameters.

    Formula: the counts of all pairs :math:`(g_{id}, \theta_d)`, x the gradient and y the parameter, in
    `bins` bins of equal width over `range`, clipped as in `GradHist1d`. A pair with a number that is
    not finite is in no bin and counted beside as ``nonfinite``.

    How to read it: a cross is usual: large parameters get small gradients and the other way round.
    Parameters that pile up at a value point at a bad initialisation or at saturation.

    Source: Schneider, Dangel & Hennig (2021), arXiv:2102.06604.

    With accumulation: the counts are those of the whole batch.

    Args:
        track_schedule: On which steps it is tracked.
        verbose: Whether to print the value.
        bins: Numbers of bins, of the gradients and of the parameters.
        range: Where the first bins begin and the last ones end, of both.
        adapt: How the ranges follow the values, of both; see `cockpit.quantities.bin_adaptation`.
        keep_individual: Whether to keep the histogram of every parameter beside the total.
        samples: Bound on the number of pairs that are looked at, as in `GradHist1d`.
    """

    bins: tuple[int, int] = (40, 50)
    range: tuple[Range, Range] = ((-1.0, 1.0), (-2.0, 2.0))
    adapt: tuple[NoAdaptation | None, NoAdaptation | None] = (None, None)
    keep_individual: bool = False
    samples: int | None = SAMPLES

    def __post_init__(self) -> None:
        """Check the settings."""
        check_bins(self, self.bins, self.range, self.adapt, self.samples)

    def counts(self, memory: tuple[Range, Range] | None) -> Histogram2d:
        """Return the transform that counts, given the ranges that are remembered."""
        (x_low, x_high), (y_low, y_high) = memory or self.range
        limits = (x_low, x_high), (y_low, y_high)
        return Histogram2d((self.bins[0], self.bins[1]), limits, self.samples)

    def needs(self) -> tuple[Need, ...]:
        """Return the counting transform of the ranges that it begins with."""
        return (self.counts(None),)

    def needs_at(self, global_step: int, memory: tuple[Range, Range] | None) -> tuple[Need, ...]:
        """Return the counting transform, and the extremes when a range is to adapt."""
        extremes = [n for a in self.adapt for n in (a or NoAdaptation()).needs(global_step)]
        return (self.counts(memory), *extremes)

    def remember(self, step: Step) -> tuple[Range, Range]:
        """Return the ranges of the next histogram."""
        before = step.memory or self.range
        x, y = (
            (adapt or NoAdaptation()).adapted(step, limits)
            for adapt, limits in zip(self.adapt, before, strict=True)
        )
        return x, y

    def compute(self, step: Step) -> Outcome:
        """Return hist int64 `[bins_x, bins_y]` and both edges; by parameter in the details."""
        need = self.counts(step.memory)
        layers = step[need]
        total = layers.total()
        edges = [_edges(limits, bins) for limits, bins in zip(need.range, need.bins, strict=True)]
        details = {"nonfinite": total.nonfinite, "drawn": total.drawn}
        if self.keep_individual:
            details["hist"] = PerParameter((name, layer.counts) for name, layer in layers.items())
        return Outcome({"hist": total.counts, "edges": edges}, details)


def _edges(limits: Range, bins: int) -> Tensor:
    return bin_edges(limits, bins, torch.float64, torch.device("cpu"))


def check_bins(
    quantity: GradHist1d | GradHist2d,
    bins: Sequence[int],
    limits: Sequence[Range],
    adaptations: Sequence[NoAdaptation | None],
    samples: int | None,
) -> None:
    """Check the settings of a histogram.

    Raises:
        InvalidArgument: if one of them cannot be used.
    """
    name = quantity.name
    if min(bins) < 1:
        raise InvalidArgument(f"{name} needs at least 1 bin, got bins={quantity.bins!r}.")
    if any(not low < high for low, high in limits):
        raise InvalidArgument(
            f"{name} needs a range (low, high) with low < high, got range={quantity.range!r}."
        )
    if any(not isinstance(a, NoAdaptation | None) for a in adaptations):
        raise InvalidArgument(
            f"{name} adapts its range by an adaptation of cockpit.quantities.bin_adaptation, such as "
            f"GradAbsMax(), or not at all with None, got adapt={quantity.adapt!r}."
        )
    if samples is not None and samples < 1:
        raise InvalidArgument(
            f"{name} needs samples of at least 1, or None for all, got samples={samples!r}."
        )
