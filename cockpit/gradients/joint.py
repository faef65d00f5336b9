"""Individual gradients of a batch whose samples came in several backward passes (gradient accumulation)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cockpit.gradients.batch import Batch
from cockpit.gradients.handle import Dense, IndividualGradients, Zero
from cockpit.gradients.products import Products
from cockpit.gradients.subsample import Subsampled

Factor = Tensor | float


class Joint(IndividualGradients):
    """The individual gradients of several batches, side by side.

    Args:
        batch: The batch as a whole.
        parts: The gradients of each part, in the order of the samples.
        factors: What each part is multiplied with to be in the scale of the whole.
    """

    def __init__(
        self, batch: Batch, parts: Sequence[IndividualGradients], factors: Sequence[Factor]
    ) -> None:
        first = parts[0]
        super().__init__(batch, first.shape, first.dtype, first.device)
        self.parts, self.factors = list(parts), list(factors)

    def piece(self, samples: slice) -> Tensor:
        """Return the gradients of some samples, from the parts that hold them."""
        start, stop, _ = samples.indices(self.batch.size)
        pieces, offset = [], 0
        for part, factor in zip(self.parts, self.factors, strict=True):
            size = part.batch.size
            low, high = max(start - offset, 0), min(stop - offset, size)
            if low < high:
                pieces.append(part.piece(slice(low, high)) * factor)
            offset += size
        return torch.cat(pieces) if pieces else self._empty(0, *self.shape)

    def _side_by_side(self, values: Sequence[Tensor], power: int = 1) -> Tensor:
        return torch.cat([v * f**power for v, f in zip(values, self.factors, strict=True)])

    def mean(self) -> Tensor:
        """Return g, the weighted mean of the parts'."""
        total = self._empty(*self.shape)
        for part, factor in zip(self.parts, self.factors, strict=True):
            total += part.mean() * (factor * part.batch.size / self.batch.size)
        return total

    def square_norms(self) -> Tensor:
        """Return ‖g_i‖² of all samples, `[N]`."""
        return self._side_by_side([part.square_norms() for part in self.parts], power=2)

    def sum_of_squares(self) -> Tensor:
        """Return Σ_i g_i² over all samples, `[*shape]`."""
        total = self._empty(*self.shape)
        for part, factor in zip(self.parts, self.factors, strict=True):
            total += part.sum_of_squares() * factor**2
        return total

    def dot(self, direction: Tensor) -> Tensor:
        """Return g_i·d of all samples, `[N]`."""
        return self._side_by_side([part.dot(direction) for part in self.parts])

    def min_max(self) -> Tensor:
        """Return the extremes over all parts, `[2]`."""
        parts = zip(self.parts, self.factors, strict=True)
        return torch.stack(torch.aminmax(torch.cat([p.min_max() * f for p, f in parts])))

    def release(self) -> None:
        """Forget what can be computed again, here and in the parts."""
        super().release()
        for part in self.parts:
            part.release()


def joint(
    batch: Batch, parts: Sequence[IndividualGradients], factors: Sequence[Factor]
) -> IndividualGradients:
    """Put the individual gradients of several batches side by side, in closed form where there is one."""
    whole: IndividualGradients
    subsampled = [part for part in parts if isinstance(part, Subsampled)]
    plain = [part for part in parts if type(part) is Products]
    if subsampled:
        whole = _joint_subsampled(batch, subsampled, factors)
    elif len(plain) == len(parts) and len({part.positions for part in plain}) == 1:
        a = torch.cat([part.a(slice(None)) for part in plain])
        b = torch.cat([part.b * factor for part, factor in zip(plain, factors, strict=True)])
        whole = Products(batch, parts[0].shape, a, b)
    elif all(isinstance(part, Dense) for part in parts):
        dense = [part.dense() * factor for part, factor in zip(parts, factors, strict=True)]
        whole = Dense(batch, torch.cat(dense))
    elif all(isinstance(part, Zero) for part in parts):
        whole = Zero(batch, parts[0].shape, parts[0].dtype, parts[0].device)
    else:
        whole = Joint(batch, parts, factors)
    whole.name, whole.parameter = parts[0].name, parts[0].parameter
    whole.calls = [call for part in parts for call in part.calls]
    return whole


def _joint_subsampled(
    batch: Batch, parts: Sequence[Subsampled], factors: Sequence[Factor]
) -> Subsampled:
    """Put the samples that were drawn from several batches side by side, of each an equal share."""

    def gradient() -> Tensor:
        means = [part.mean() * (factor * part.batch.size) for part, factor in pairs]
        return torch.stack(means).sum(0) / batch.size

    pairs = list(zip(parts, factors, strict=True))
    drawn = batch.once("drawn", lambda: replace(batch, size=_samples(parts), shared={}))
    return Subsampled(batch, joint(drawn, [part.few for part in parts], factors), gradient)


def _samples(parts: Sequence[Subsampled]) -> int:
    return sum(part.samples for part in parts)
