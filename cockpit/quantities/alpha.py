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
        tau = torch.linalg.vector_norm(_precise(torch.stack(list(step[self.update].values()))))
        for need in (self.start_slopes, self.end_slopes):
            _require_all(step[self.update], step[need])
        losses = [_precise(step[need]) for need in (self.start_losses, self.end_losses)]
        slopes = [_precise(step[need].total()) for need in (self.start_slopes, self.end_slopes)]
        if min(map(len, losses)) < 2 and tau != 0:
            raise NotChecked("a batch of one sample has no variance")
        # In the coordinate u = s/τ the fit is well scaled: slopes are g_i·d, and the end lies at u
        # = 1. All values are kept together, for each operation takes longer than its arithmetic.
        f0, f1 = step[self.start_loss], step[self.end_loss]
        values = torch.stack([_precise(f0), _precise(f1), *(of_all.mean() for of_all in slopes)])
        units = torch.stack([torch.ones_like(tau), torch.ones_like(tau), tau, tau])
        variances = torch.stack([_variance(samples) for samples in (*losses, *slopes)])
        variances = torch.where(variances == 0, NO_VARIANCE * units.square(), variances)
        coefficients = fit_parabola(values, variances)
        _, v1, v2 = coefficients.unbind()
        alpha = torch.where((v2 <= 0) | (tau == 0), -1.0, -2 * v2 / v1 - 1)
        details = {
            **_named("w0 w1 w2", coefficients / torch.stack([units[0], tau, tau.square()])),
            "tau": tau,
            **_named("f0 f1 df0 df1", values / units),
            **_named("var_f0 var_f1 var_df0 var_df1", variances / units.square()),
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


def fit_parabola(values: Tensor, variances: Tensor) -> Tensor:
    """Fit v0 + v1 u + v2 u² to values and slopes at u = 0 and u = 1 by weighted least squares.

    Every parabola fulfils f(1) − f(0) = (f′(0) + f′(1)) / 2. The fit of least squares spreads what
    the observations violate this with over them, in proportion to their variances; what is left
    determines the parabola.

    Args:
        values: f(0), f(1), f′(0), f′(1), `[4]`.
        variances: Their variances, positive, `[4]`.

    Returns:
        v0, v1, v2, `[3]`.
    """
    f0, f1, p0, p1 = values.unbind()
    var_f0, var_f1, var_p0, var_p1 = variances.unbind()
    violation = f1 - f0 - (p0 + p1) / 2
    share = violation / (var_f0 + var_f1 + (var_p0 + var_p1) / 4)
    v0 = f0 + var_f0 * share
    slope0 = p0 + var_p0 / 2 * share
    slope1 = p1 + var_p1 / 2 * share
    return torch.stack([v0, slope0, (slope1 - slope0) / 2])


def _precise(tensor: Tensor) -> Tensor:
    """Compute the few scalars of the fit in double precision where the device has it."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def _variance(samples: Tensor) -> Tensor:
    """Return the unbiased variance over the samples, `[]`; 0 for one."""
    return samples.var(correction=0) * (len(samples) / max(1, len(samples) - 1))


def _named(names: str, values: Tensor) -> dict[str, Tensor]:
    return dict(zip(names.split(), values.unbind(), strict=True))
