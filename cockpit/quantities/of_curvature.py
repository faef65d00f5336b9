"""What the quantities of curvature have in common that can look at a part of the mini-batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cockpit.engine.live import MATRICES, Basis
from cockpit.errors import InvalidArgument
from cockpit.quantities.quantity import Outcome, Quantity


@dataclass(frozen=True)
class OfCurvature(Quantity):
    """A quantity of the curvature of the whole mini-batch, or of its first samples.

    Args:
        track_schedule: On which steps it is tracked.
        verbose: Whether to print the value.
        max_samples: Number of samples that it is restricted to, which makes it cheaper; None for
            all. Of larger mini-batches, the first so many are taken, with the help of
            ``info["closure"]``, a function that takes a slice of the mini-batch:
            ``def closure(samples=slice(None)): return loss_fn(model(x[samples]), y[samples])``.
    """

    max_samples: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.max_samples is not None and self.max_samples < 1:
            raise InvalidArgument(
                f"{self.name} needs max_samples of at least 1, or None for all samples of the "
                f"mini-batch, got {self.max_samples!r}."
            )

    def _check_matrix(self, matrix: str) -> None:
        if matrix not in MATRICES:
            raise InvalidArgument(
                f"{self.name} has no matrix {matrix!r}. Choose from "
                f"{', '.join(map(repr, MATRICES))}."
            )


def outcome(value: Any, basis: Basis, details: Mapping[str, Any] | None = None) -> Outcome:
    """Return a value with what it was computed from, and the number of ``samples`` among its details."""
    return Outcome(value, {**(details or {}), "samples": basis.samples}, str(basis))
