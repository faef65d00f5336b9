"""The curvature of the loss of several processes, from what each of them has in its graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cockpit.curvature import Curvature, FirstPossible, Kronecker, Portion
from cockpit.engine.distributed import Ranks
from cockpit.engine.step import PerParameter
from cockpit.errors import Unsupported


class Shares:
    """The loss of all processes as a weighted mean of theirs, while its graph is alive.

    The mean loss is the mean over the processes of their mean losses, as DistributedDataParallel has
    it. Where the losses are sums, it is the sum of these over the number of all samples.

    Args:
        ranks: The processes.
        sizes: Number of samples of each.
    """

    def __init__(self, ranks: Ranks, sizes: Sequence[int]) -> None:
        self._ranks, self._sizes = ranks, list(sizes)
        self._weight: float | None = None

    @property
    def size(self) -> int:
        """Number of samples of all processes, N."""
        return sum(self._sizes)

    @property
    def own_share(self) -> float:
        """Share of this process in the samples."""
        return self._sizes[self._ranks.rank] / self.size

    def weight(self, reduction: Tensor | float) -> float:
        """Return what the mean loss of this process is multiplied with in that of all.

        Args:
            reduction: r of this process.
        """
        if self._weight is None:
            is_sum = any(self._ranks.objects(float(reduction) != 1))
            self._weight = self.own_share if is_sum else 1 / len(self._sizes)
        return self._weight

    def matrix(self, local: FirstPossible, reduction: Tensor | float) -> JoinedCurvature:
        """Return a curvature of the joined mean loss, given that of this process."""
        return JoinedCurvature(local, self._ranks, self.weight(reduction))

    def number(self, value: Tensor | float, reduction: Tensor | float) -> Tensor:
        """Return a loss of all processes, `[]`, up to a factor that is always the same."""
        own = torch.as_tensor(value, dtype=torch.float64).cpu() / float(reduction)
        return self._ranks.sum(own * self.weight(reduction))

    def diagonals(self, own: PerParameter, reduction: Tensor | float) -> PerParameter:
        """Return the diagonals of the joined mean loss's curvature, per parameter `[*shape]`."""
        weight = self.weight(reduction)
        return self._by_parameter(own, lambda value: self._ranks.sum(value * weight))

    def kroneckers(self, own: PerParameter, reduction: Tensor | float) -> PerParameter:
        """Return the Kronecker factors of the joined mean loss's curvature, per parameter."""
        weight = self.weight(reduction)

        def joined(product: Kronecker) -> Kronecker:
            first, *inputs = product.factors
            averages = [self._ranks.sum(factor * self.own_share) for factor in inputs]
            return Kronecker(self._ranks.sum(first * weight), *averages)

        return self._by_parameter(own, joined)

    def _by_parameter(self, own: PerParameter, join: Callable[[Any], Any]) -> PerParameter:
        known = self._ranks.objects(list(own))
        return PerParameter(
            (name, join(value))
            for name, value in own.items()
            if all(name in of_one for of_one in known)
        )

    def portion(self, generator: torch.Generator) -> Portion:
        """Return where the random numbers of this process's samples come from."""
        rank = self._ranks.rank
        if not all(self._sizes):
            raise Unsupported(
                "the number of samples of every process is needed; give it as info={'batch_size': ...}"
            )
        return Portion(generator, sum(self._sizes[:rank]), self._sizes[rank], self.size)


class JoinedCurvature(Curvature):
    """The weighted sum of the curvatures of all processes.

    Args:
        local: That of this process.
        ranks: The processes.
        weight: Weight of this one.
    """

    def __init__(self, local: FirstPossible, ranks: Ranks, weight: float) -> None:
        super().__init__(local.parameters)
        self._local, self._ranks, self._weight = local, ranks, weight

    @property
    def way(self) -> str:
        """The way in which it was had on this process."""
        return self._local.way

    def gradient(self) -> list[Tensor]:
        """Return the gradient of the joined mean loss, in the parameters' shapes."""
        return self._summed(self._local.gradient())

    def times(self, vectors: Sequence[Tensor | None]) -> list[Tensor]:
        """Return the product with a vector, which is the same on all processes."""
        return self._summed(self._local.times(vectors))

    def _summed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return self.shaped(self._ranks.sum(self.flat(tensors) * self._weight))
