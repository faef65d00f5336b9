"""The samples with the largest gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.step import Step
from cockpit.errors import InvalidArgument
from cockpit.quantities.quantity import Outcome, Quantity
from cockpit.transforms import SquareNorms

CONSISTENT = 1.4826
"""Turns the median absolute deviation of a normal distribution into its standard deviation."""


@dataclass(frozen=True)
class PerSampleOutliers(Quantity):
    r"""The samples of the mini-batch whose gradients are unusually large.

    Formula: the `k` samples with the largest robust z-score
    :math:`(\lVert g_i \rVert - \operatorname{median}) / (1.4826 \operatorname{MAD})`, with MAD the median of
    :math:`| \lVert g_i \rVert - \operatorname{median} |`. Where that is zero, the score is 0 at the median, and
    infinite elsewhere. A norm that is not finite has an infinite score and no part in the medians.

    How to read it: scores up to about 3 are usual. Samples far above are worth a look: they may be
    mislabelled, broken, or of the wrong scale.

    Source: Iglewicz & Hoaglin (1993), How to Detect and Handle Outliers; the formula of the z-score.

    With accumulation: the samples are numbered through the whole batch. With ``Cockpit(...,
    subsample=k)``: the largest of the k samples that were drawn, by their numbers in the batch, and
    medians of these; the details say how many ``samples`` there were.

    Args:
        track_schedule: On which steps it is tracked.
        verbose: Whether to print the value.
        k: How many samples are named.
    """

    k: int = 5

    square_norms = SquareNorms()

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.k < 1:
            raise InvalidArgument(f"PerSampleOutliers names at least 1 sample, got k={self.k!r}.")

    def compute(self, step: Step) -> dict[str, Tensor] | Outcome:
        """Return ``indices`` int64, ``norms`` and ``scores``, each `[k]`, the largest score first."""
        norms = step[self.square_norms].total().sqrt()
        finite = norms.isfinite()
        known = torch.where(finite, norms, math.nan)
        deviation = norms - known.nanquantile(0.5)
        spread = torch.where(finite, deviation, math.nan).abs().nanquantile(0.5)
        scores = torch.where(deviation == 0, 0.0, deviation / (CONSISTENT * spread))
        scores = torch.where(finite, scores, math.inf)
        indices = scores.sort(descending=True, stable=True).indices[: self.k]
        value = {"indices": indices, "norms": norms[indices], "scores": scores[indices]}
        if step.draw is None:
            return value
        value["indices"] = step.draw.on(indices.device)[indices]
        return Outcome(value, {"samples": len(norms)})
