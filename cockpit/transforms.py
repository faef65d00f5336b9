"""What can be asked of the individual gradients of a parameter, by name.

A transform is a value: equal ones are computed once, whoever asks. Each is a function of an
`IndividualGradients` handle, usable in a quantity, in ``BatchGradTransforms({...})``, or by itself.
Any other function of a handle does as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from cockpit.histograms import Bins, Drawn, Histogram, counted

if TYPE_CHECKING:
    from cockpit.gradients import IndividualGradients

__all__ = [
    "AbsMax",
    "Dense",
    "Deviation",
    "Dot",
    "DotMean",
    "Gram",
    "Histogram1d",
    "Histogram2d",
    "Mean",
    "MinMax",
    "Need",
    "SquareNormOfMean",
    "SquareNorms",
    "SumOfSquares",
    "Transform",
    "bin_edges",
]


class Need:
    """Something a quantity asks for. Needs are values, and equal ones are met once."""

    forward: ClassVar[bool] = True
    """Whether it has to be known what the model's layers did in the forward pass."""

    @property
    def effort(self) -> float:
        """About how many training steps it takes to meet it, until a budget has measured that."""
        return 0.05


class Transform(Need):
    """A need that is met for each parameter, from the handle on its individual gradients."""

    @property
    def effort(self) -> float:
        """Its part of the individual gradients, and a function of them."""
        return 0.2

    def __call__(self, gradients: IndividualGradients) -> Any:
        """Return what to keep."""
        raise NotImplementedError

    def take(self, gradients: IndividualGradients) -> Any:
        """Return what `finish` makes the value of; here the value itself."""
        return gradients.apply(self)

    def finish(self, taken: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values from what was taken of each parameter, all of them at a time.

        Overridden where that is cheaper than one parameter after the other.
        """
        return taken


@dataclass(frozen=True)
class SquareNorms(Transform):
    """‖g_i‖², `[N]` (Cockpit 1.0: ``batch_l2``)."""

    def __call__(self, gradients: IndividualGradients) -> Tensor:
        """Return ‖g_i‖²."""
        return gradients.square_norms()


@dataclass(frozen=True)
class SumOfSquares(Transform):
    """Σ_i g_i² for each element, `[*shape]` (Cockpit 1.0: ``sum_grad_squared``)."""

    def __call__(self, gradients: IndividualGradients) -> Tensor:
        """Return Σ_i g_i²."""
        return gradients.sum_of_squares()


@dataclass(frozen=True)
class Gram(Transform):
    """The pairwise products g_i·g_j, `[N, N]` (Cockpit 1.0: ``batch_dot``)."""

    def __call__(self, gradients: IndividualGradients) -> Tensor:
        """Return g_i·g_j."""
        return gradients.gram()


@dataclass(frozen=True)
class Mean(Transform):
    """The mini-batch gradient g, the mean of the individual ones, `[*shape]`."""

    def __call__(self, gradients: IndividualGradients) -> Tensor:
        """Return g."""
        return gradients.mean()


@dataclass(frozen=True)
class DotMean(Transform):
    """The products g_i·g with the mini-batch gradient, `[N]`. Their mean is ‖g‖²."""

    def __call__(self, gradients: IndividualGradients) -> Tensor:
        """Return g_i·g."""
        return gradients.dot_mean()


@dataclass(frozen=True)
class SquareNormOfMean(Transform):
    """‖g‖² of the mini-batch gradient, `[]`; of all samples, also where only some were drawn."""

    def __call__(self, gradients: IndividualGradients) -> Tensor:
        """Return ‖g‖², the mean of the products g_i·g where all samples have one."""
        if gradients.samples == gradients.batch.size:
            return gradients.apply(DotMean()).mean()
        return gradients.apply(Mean()).square().sum()


@dataclass(frozen=True)
class Deviation(Transform):
    """The mean of ‖g_i − g‖² and ‖g‖², `[2]`.

    Args:
        samples: How many samples the mean is estimated from, at most, where the norms of all take longer
            than the gradient itself; None for all.
    """

    samples: int | None = None

    def __call__(self, gradients: IndividualGradients) -> Tensor:
        """Return both."""
        return gradients.deviation(self.samples)


@dataclass(frozen=True, eq=False)
class Dot(Transform):
    """The products g_i·d with a direction, `[N]`.

    Args:
        direction: The direction of each parameter, by the parameter's name, each of its parameter's
            shape.
    """

    direction: Mapping[str, Tensor]

    def __call__(self, gradients: IndividualGradients) -> Tensor:
        """Return g_i·d."""
        return gradients.dot(self.direction[gradients.name])


@dataclass(frozen=True)
class AbsMax(Transform):
    """max |g_id| over samples and elements, `[]`."""

    def __call__(self, gradients: IndividualGradients) -> Tensor:
        """Return the largest magnitude."""
        return gradients.abs_max()


@dataclass(frozen=True)
class MinMax(Transform):
    """The smallest and the largest g_id, `[2]`."""

    def __call__(self, gradients: IndividualGradients) -> Tensor:
        """Return both extremes."""
        return gradients.min_max()


@dataclass(frozen=True)
class Dense(Transform):
    """All individual gradients, `[N, *shape]`, whatever memory that takes (BackPACK: ``grad_batch``)."""

    def __call__(self, gradients: IndividualGradients) -> Tensor:
        """Return g_i."""
        return gradients.dense()


@dataclass(frozen=True)
class Histogram1d(Transform):
    """Counts of the values g_id in bins of equal width.

    Args:
        bins: Number of bins.
        range: Where the first bin begins and the last one ends. Values outside of it count in these
            two.
        samples: Bound on the number of values that are looked at, over all parameters together;
            ``None`` for all.
    """

    bins: int = 100
    range: tuple[float, float] = (-2.0, 2.0)
    samples: int | None = None

    def __call__(self, gradients: IndividualGradients) -> Histogram:
        """Return the counts, int64 `[bins]`."""
        return gradients.histogram(self._bins(gradients), self._quota(gradients))

    def take(self, gradients: IndividualGradients) -> Histogram | Drawn:
        """Draw the values, where they are drawn."""
        return gradients.drawn(self._bins(gradients), self._quota(gradients))

    def finish(self, taken: Mapping[str, Histogram | Drawn]) -> Mapping[str, Histogram]:
        """Count what was drawn of all parameters together."""
        return dict(zip(taken, counted(list(taken.values())), strict=True))

    def _bins(self, gradients: IndividualGradients) -> Bins:
        return _bins(gradients, self.range, self.bins)

    def _quota(self, gradients: IndividualGradients) -> int | None:
        return None if self.samples is None else gradients.quota(self.samples)


@dataclass(frozen=True)
class Histogram2d(Transform):
    """Counts of the pairs (g_id, θ_d) of a gradient's and the parameter's values.

    Args:
        bins: Number of bins of the gradients and of the parameter.
        range: Where the first bins begin and the last ones end, of both.
        samples: Bound on the number of pairs that are looked at, over all parameters together;
            ``None`` for all.
    """

    bins: tuple[int, int] = (40, 50)
    range: tuple[tuple[float, float], tuple[float, float]] = ((-1.0, 1.0), (-2.0, 2.0))
    samples: int | None = None

    @property
    def effort(self) -> float:
        """It passes over every parameter and its gradients several times."""
        return 3.0

    def __call__(self, gradients: IndividualGradients) -> Histogram:
        """Return the counts, int64 `[bins_x, bins_y]`."""
        assert gradients.parameter is not None
        x, y = map(partial(_bins, gradients), self.range, self.bins)
        quota = None if self.samples is None else gradients.quota(self.samples)
        return gradients.joint_histogram(gradients.parameter, (x, y), quota)


def _bins(gradients: IndividualGradients, limits: tuple[float, float], count: int) -> Bins:
    """Return bins of equal width, made once for all parameters of a pass."""
    dtype, device = gradients.dtype, gradients.device

    def make() -> Bins:
        return Bins(bin_edges(limits, count, dtype, device), limits)

    return gradients.batch.once((limits, count, dtype, device), make)


def bin_edges(
    limits: tuple[float, float], bins: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return the edges of `bins` bins of equal width over `limits`, `[bins + 1]`."""
    low, high = limits
    position = torch.arange(bins + 1, dtype=torch.float64)
    # Weighted ends, rather than steps from one of them, put the edge at zero of a symmetric range there exactly.
    return ((low * (bins - position) + high * position) / bins).to(device=device, dtype=dtype)
