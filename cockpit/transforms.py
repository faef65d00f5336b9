"""What can be asked of the individual gradients of a parameter, by name.

A transform is a value: equal ones are computed once, whoever asks. Each is a function of an
`IndividualGradients` handle, usable in a quantity, in ``BatchGradTransforms({...})``, or by itself.
Any other function of a handle does as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from cockpit.gradients import Histogram, IndividualGradients

__all__ = [
    "AbsMax",
    "Dense",
    "Dot",
    "DotMean",
    "Gram",
    "Histogram1d",
    "Histogram2d",
    "Mean",
    "MinMax",
    "Need",
    "SquareNorms",
    "SumOfSquares",
    "Transform",
    "bin_edges",
]


class Need:
    """Something a quantity asks for. Needs are values, and equal ones are met once."""


class Transform(Need):
    """A need that is met for each parameter, from the handle on its individual gradients."""

    def __call__(self, gradients: IndividualGradients) -> Any:
        """Return what to keep."""
        raise NotImplementedError


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
        edges = bin_edges(self.range, self.bins, gradients.dtype, gradients.device)
        quota = None if self.samples is None else gradients.batch.quota(self.samples)
        return gradients.histogram(edges, quota)


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

    def __call__(self, gradients: IndividualGradients) -> Histogram:
        """Return the counts, int64 `[bins_x, bins_y]`."""
        assert gradients.parameter is not None
        x_edges, y_edges = (
            bin_edges(limits, bins, gradients.dtype, gradients.device)
            for limits, bins in zip(self.range, self.bins, strict=True)
        )
        quota = None if self.samples is None else gradients.batch.quota(self.samples)
        return gradients.joint_histogram(gradients.parameter, (x_edges, y_edges), quota)


def bin_edges(
    limits: tuple[float, float], bins: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return the edges of `bins` bins of equal width over `limits`, `[bins + 1]`."""
    low, high = limits
    position = torch.arange(bins + 1, dtype=torch.float64)
    # Weighted ends, rather than steps from one of them, put the edge at zero of a symmetric range there exactly.
    return ((low * (bins - position) + high * position) / bins).to(device=device, dtype=dtype)
