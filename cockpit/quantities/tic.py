"""The Takeuchi information criterion: gradient noise relative to curvature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cockpit.engine.curvature import DIAGONALS, diagonal
from cockpit.engine.step import Step
from cockpit.errors import InvalidArgument
from cockpit.histograms import blocks
from cockpit.quantities.of_curvature import outcome
from cockpit.quantities.quantity import Outcome, Quantity
from cockpit.transforms import Need, SumOfSquares


@dataclass(frozen=True)
class _TIC(Quantity):
    curvature: str = "auto"
    epsilon: float = 1e-7
    squares: ClassVar[SumOfSquares] = SumOfSquares()

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.curvature not in DIAGONALS:
            raise InvalidArgument(
                f"{self.name} has no curvature {self.curvature!r}. Choose from "
                f"{', '.join(map(repr, DIAGONALS))}."
            )
        if self.epsilon < 0:
            raise InvalidArgument(f"{self.name} needs epsilon >= 0, got {self.epsilon!r}.")

    def needs(self) -> tuple[Need, ...]:
        """Return the second moment of the individual gradients, and the diagonal."""
        return (self.squares, diagonal(self.curvature))

    def compute(self, step: Step) -> Outcome:
        """Return the criterion, `[]`."""
        need = diagonal(self.curvature)
        squares, curvature = step[self.squares], step[need]
        pairs = [(squares[name], curvature[name]) for name in squares if name in curvature]
        return outcome(self._criterion(pairs) / step.batch_size, step.bases[need])

    def _criterion(self, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return N times the criterion from Σ_i g_i² and the curvature's diagonal, each `[*shape]`."""
        raise NotImplementedError


@dataclass(frozen=True)
class TICDiag(_TIC):
    r"""Takeuchi information criterion, with the diagonal of the curvature.

    Formula: :math:`\sum_d \frac{\frac{1}{N} \sum_i g_{id}^2}{C_{dd} + \epsilon}`, with the curvature C
    of `HessTrace`: the sampled GGN (``"auto"``, ``"diag_ggn_mc"``), or BackPACK's ``"diag_h"`` and
    ``"diag_ggn_exact"``. Parameters whose individual gradients are not tracked are left out.

    How to read it: an estimate of the gap between training and test loss, up to a factor; growth
    means overfitting. Where both curvature and gradients vanish, :math:`\epsilon` decides.

    Source: Takeuchi (1976); Thomas et al. (2020), arXiv:1906.07774, section 3.

    With accumulation: the individual gradients of the whole batch, and the curvature of the first
    micro-batch.

    Args:
        track_schedule: On which steps it is tracked.
        verbose: Whether to print the value.
        curvature: See above.
        epsilon: Added to the curvature.
    """

    def _criterion(self, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
        pieces = (
            piece
            for moment, diagonal in pairs
            for piece in zip(blocks(moment), blocks(diagonal), strict=True)
        )
        return torch.stack([(m / (c + self.epsilon)).sum() for m, c in pieces]).sum()


@dataclass(frozen=True)
class TICTrace(_TIC):
    r"""Takeuchi information criterion, with the traces of gradient noise and curvature.

    Formula: :math:`\frac{\frac{1}{N} \sum_i \sum_d g_{id}^2}{\sum_d C_{dd} + \epsilon}`, with the
    curvature C of `HessTrace`: the sampled GGN (``"auto"``, ``"diag_ggn_mc"``), or BackPACK's
    ``"diag_h"`` and ``"diag_ggn_exact"``. Parameters whose individual gradients are not tracked are
    left out.

    How to read it: as `TICDiag`, of which it is a cruder and more robust version.

    Source: Takeuchi (1976); Thomas et al. (2020), arXiv:1906.07774, section 3.

    With accumulation: the individual gradients of the whole batch, and the curvature of the first
    micro-batch.

    Args:
        track_schedule: On which steps it is tracked.
        verbose: Whether to print the value.
        curvature: See above.
        epsilon: Added to the curvature.
    """

    def _criterion(self, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
        moment = torch.stack([m.sum() for m, _ in pairs]).sum()
        return moment / (torch.stack([c.sum() for _, c in pairs]).sum() + self.epsilon)
