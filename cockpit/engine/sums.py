"""Compares the individual gradients, added up, with the gradient that the backward pass has brought."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cockpit.gradients import IndividualGradients


@dataclass
class Sums:
    """The comparisons of one backward pass, judged together when it is over.

    Some gradients are zero but for rounding, such as those of the keys' biases in attention, and
    what their rounding comes to is seen from the gradients of all parameters only.

    Args:
        rounding: Relative error of the coarsest precision in the backward pass, where it is known
            to be coarser than that of the gradients.
    """

    rounding: float = 0.0
    _layers: dict[str, str] = field(default_factory=dict)
    _rows: list[Tensor] = field(default_factory=list)

    def compare(self, name: str, handle: IndividualGradients, arrived: Tensor) -> None:
        """Compare the mean of a parameter's individual gradients with the gradient that arrived."""
        if arrived.is_sparse or handle.batch.size == 0:
            return
        gradient = arrived.to(handle.dtype) * (handle.batch.scale / handle.batch.size)
        digits = torch.finfo(arrived.dtype).eps
        self.rounding = max(self.rounding, digits)
        norm = torch.linalg.vector_norm(gradient)
        difference = torch.linalg.vector_norm(handle.mean() - gradient)
        # Where the samples' gradients cancel, rounding is relative to these and not to their sum.
        typical = handle.square_norms().mean().sqrt()
        allowed = 10 * digits**0.5 * norm + 1e3 * digits * typical
        self._rows.append(torch.stack([difference, allowed, norm]).double().cpu())
        self._layers[name] = ", ".join(
            sorted({type(call.module).__name__ for call in handle.calls})
        )

    @property
    def names(self) -> set[str]:
        """The parameters whose gradients were compared."""
        return set(self._layers)

    def apart(self) -> Iterator[tuple[str, str, float]]:
        """Yield the parameters whose gradients do not add up.

        With each the kind of its layer, and the norm of the difference relative to the gradient's.
        """
        if not self._rows:
            return
        differences, allowed, norms = torch.stack(self._rows, dim=1)
        noise = 4 * self.rounding * torch.linalg.vector_norm(norms)
        wrong = differences > allowed + noise
        for place, (name, layer) in enumerate(self._layers.items()):
            if wrong[place]:
                yield name, layer, float(differences[place] / norms[place])
