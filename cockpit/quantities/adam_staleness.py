"""How stale Adam's second moments are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cockpit.engine.needs import OfUpdate
from cockpit.engine.step import NotChecked, PerParameter, Step
from cockpit.quantities.quantity import Quantity


@dataclass(frozen=True)
class Staleness(OfUpdate):
    """√mean(g² / max(v̂, ε²)) after the step, per parameter of an Adam-like optimizer `[]`."""

    gradient = True
    forward = False

    def observe(self, step: Step, update: PerParameter) -> PerParameter:
        """Return the values of the parameters that such an optimizer holds."""
        found = {}
        for optimizer in step.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    moment = _second_moment(optimizer.state.get(parameter, {}), group)
                    if moment is not None and parameter.grad is not None:
                        ratio = parameter.grad.square() / moment.clamp(min=group["eps"] ** 2)
                        found[parameter] = ratio.mean().sqrt()
        values = PerParameter((n, found[p]) for n, p in step.parameters.items() if p in found)
        if not values:
            raise NotChecked("no optimizer keeps second moments as Adam does (exp_avg_sq, betas)")
        return values


def _second_moment(state: Any, group: dict[str, Any]) -> Tensor | None:
    """Return v̂, Adam's second moment without its bias towards zero."""
    if "exp_avg_sq" not in state or "step" not in state or "betas" not in group:
        return None
    # The step may be a tensor in single precision, in which 1 − β₂^step would lose half its digits.
    steps = torch.as_tensor(state["step"], dtype=torch.float32)
    return state["exp_avg_sq"] / -torch.expm1(steps * math.log(group["betas"][1]))


@dataclass(frozen=True)
class AdamStaleness(Quantity):
    r"""Size of the gradient in units of Adam's running estimate of it.

    Formula: :math:`\sqrt{\operatorname{mean}_d [ g_d^2 / \max(\hat v_d, \epsilon^2) ]}` for every parameter,
    with the gradient as the optimizer got it and :math:`\hat v` (bias-corrected) as it stands after the step. Stored
    under t. For Adam, AdamW and others that keep ``exp_avg_sq``.

    How to read it: about 1 while the estimate is up to date. Values of 2 and more mean that the
    gradient has grown faster than the estimate follows, which often comes before a spike of the
    loss: a smaller β₂ or update clipping helps.

    Source: Wortsman, Dettmers, Zettlemoyer et al. (2023), arXiv:2304.13013, section 3.4 (RMS_t).

    With accumulation: one update for the whole batch.
    """

    staleness = Staleness()

    def compute(self, step: Step) -> PerParameter:
        """Return the values, one `[]` per parameter that such an optimizer holds."""
        return step[self.staleness]
