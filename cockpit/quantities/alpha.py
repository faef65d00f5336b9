"""The normalised step length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.needs import (
    DotPreviousUpdate,
    DotUpdate,
    MeanLoss,
    Next,
    SampleLosses,
    UpdateNorms,
)
from cockpit.engine.step import NotChecked, PerParameter, Step
from cockpit.quantities.quantity import Outcome, Quantity

NO_VARIANCE = 1e-10
"""Variance that stands for none: without noise the observation is simply trusted most."""


@dataclass(frozen=True)
class Alpha(Quantity):
    r"""Normalised step length: where on a local quadratic model of the loss the update ended.

    Formula: along the update d of length :math:`\tau`, the model :math:`f(s) = w_0 + w_1 s + w_2
    s^2` is fitted to the loss and its slope :math:`\frac{1}{N} \sum_i g_i \cdot d / \tau` at
    :math:`s = 0` (step t) and :math:`s = \tau` (step t + 1, on the next mini-batch), by least
    squares weighted with their variances over the samples. Then :math:`\alpha = 2 \tau / (-w_1 /
    w_2) - 1`. Stored under t. :math:`\alpha = -1` without an update and where the model is not
    convex; not checked for a batch of one sample, which has no variance.

    How to read it: −1 is no move, 0 a step into the minimum of the model, 1 a step to its mirror
    point at the same height. Below 0 undershoots, above 0 overshoots; above 1 the loss rises. A
    slightly positive median is usual for good learning rates.

    Source: Mutschler & Zell (2020), arXiv:1903.11991; Schneider, Dangel & Hennig (2021),
    arXiv:2102.06604, section 3.

    With accumulation: both points are those of whole batches.
    """

    start_loss = MeanLoss()
    start_losses = SampleLosses()
    start_slopes = DotUpdate()
    update = UpdateNorms()
    end_loss = Next(MeanLoss())
    end_losses = Next(SampleLosses())
    end_slopes = Next(DotPreviousUpdate())

    def compute(self, step: Step) -> Outcome:
        """Return alpha, `[]`, with the fit and the observations."""
        tau = torch.linalg.vector_norm(
            torch.stack([_precise(n) for n in step[self.update].values()])
        )
        for need in (self.start_slopes, self.end_slopes):
            _require_all(step[self.update], step[need])
        f0, f1 = _precise(step[self.start_loss]), _precise(step[self.end_loss])
        var_f0, var_f1 = (_variance(step[need]) for need in (self.start_losses, self.end_losses))
        slopes = [_precise(step[need].total()) for need in (self.start_slopes, self.end_slopes)]
        fewest = min(len(step[self.start_losses]), len(step[self.end_losses]))
        if fewest < 2 and tau != 0:
            raise NotChecked("a batch of one sample has no variance")
        # In the coordinate u = s/τ the fit is well scaled: slopes are g_i·d, and the end lies at u
        # = 1.
        p0, p1 = (products.mean() for products in slopes)
        var_p0, var_p1 = (_variance(products, tau.square()) for products in slopes)
        v0, v1, v2 = fit_parabola((f0, f1, p0, p1), (var_f0, var_f1, var_p0, var_p1))
        alpha = torch.where(v2 <= 0, -1.0, -2 * v2 / v1 - 1)
        alpha = torch.where(tau == 0, -1.0, alpha)
        details = {
            "w0": v0,
            "w1": v1 / tau,
            "w2": v2 / tau.square(),
            "tau": tau,
            "f0": f0,
            "f1": f1,
            "df0": p0 / tau,
            "df1": p1 / tau,
            "var_f0": var_f0,
            "var_f1": var_f1,
            "var_df0": var_p0 / tau.square(),
            "var_df1": var_p1 / tau.square(),
        }
        return Outcome(alpha, details)


def _require_all(update: PerParameter, slopes: PerParameter) -> None:
    """Refuse a slope that lacks the part of a parameter that has been updated."""
    for name in update.keys() - slopes.keys():
        if update[name] != 0:
            raise NotChecked(
                f"{name} has no individual gradients, and the slope along the update needs those of "
                "all parameters that are updated"
            )


def fit_parabola(
    values: tuple[Tensor, Tensor, Tensor, Tensor], variances: tuple[Tensor, Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Fit v0 + v1 u + v2 u² to values and slopes at u = 0 and u = 1 by weighted least squares.

    Every parabola fulfils f(1) − f(0) = (f′(0) + f′(1)) / 2. The fit of least squares spreads what
    the observations violate this with over them, in proportion to their variances; what is left
    determines the parabola.

    Args:
        values: f(0), f(1), f′(0), f′(1), each `[]`.
        variances: Their variances, positive.

    Returns:
        v0, v1, v2.
    """
    f0, f1, p0, p1 = values
    var_f0, var_f1, var_p0, var_p1 = variances
    violation = f1 - f0 - (p0 + p1) / 2
    share = violation / (var_f0 + var_f1 + (var_p0 + var_p1) / 4)
    v0 = f0 + var_f0 * share
    slope0 = p0 + var_p0 / 2 * share
    slope1 = p1 + var_p1 / 2 * share
    return v0, slope0, (slope1 - slope0) / 2


def _precise(tensor: Tensor) -> Tensor:
    """Compute the few scalars of the fit in double precision where the device has it."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def _variance(samples: Tensor, unit: Tensor | float = 1.0) -> Tensor:
    """Return the unbiased variance over the samples, `[]`; that of `NO_VARIANCE` units where it is zero."""
    samples = _precise(samples)
    variance = (samples - samples.mean()).square().sum() / max(1, len(samples) - 1)
    return torch.where(variance == 0, NO_VARIANCE * unit, variance)
