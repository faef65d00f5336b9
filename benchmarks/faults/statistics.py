"""What the baselines read of a run, and the doctor does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cockpit.engine.needs import InForward, Moment, Observation, OfUpdate
from cockpit.engine.step import PerModule, PerParameter, Step
from cockpit.gradients import Call
from cockpit.quantities.quantity import Outcome, Quantity

BOUNDS = {nn.Tanh: (-9.4999, 9.4999), nn.Sigmoid: (-23.0, 16.99999)}
"""Inputs outside of which a value counts as saturated."""
ACTIVE = 0.01
"""Share of the values of a unit below which it is held for inactive."""
RELATIVE, ABSOLUTE = 1e-5, 1e-8
"""Differences up to which two tensors count as equal, ``numpy.allclose``'s."""


@dataclass(frozen=True)
class MeanGradients(Observation):
    """Mean of abs(g) per parameter `[]`, NaN or infinite where an entry of it is."""

    moment = Moment.EXIT

    def observe(self, step: Step) -> PerParameter:
        """Return the means; 0 for a parameter without a gradient."""
        zero = torch.zeros(())
        return PerParameter(
            (name, zero if p.grad is None else p.grad.float().abs().mean())
            for name, p in step.parameters.items()
        )


@dataclass(frozen=True)
class Changes(OfUpdate):
    """Mean of abs(d) over mean of abs(θ), and whether θ stayed the same, per parameter `[2]`."""

    def observe(self, step: Step, update: PerParameter) -> PerParameter:
        """Return both."""
        found = PerParameter()
        for name, parameter in step.parameters.items():
            change, after = update[name].float().abs(), parameter.detach().float().abs()
            same = (change <= ABSOLUTE + RELATIVE * after).all()
            found[name] = torch.stack([change.mean() / (after.mean() + 1e-12), same.float()])
        return found


@dataclass(frozen=True)
class InactiveUnits(InForward):
    """Shares of the units that the baselines hold for dead, and for saturated, per activation `[2]`.

    That is, less than a share of `ACTIVE` of a unit's values in the batch are above 0, for a ReLU, or
    have inputs within `BOUNDS`, for tanh and the sigmoid. The other share is NaN.
    """

    def see(self, name: str, call: Call, output: Any) -> Tensor | None:
        """Return both."""
        x = call.args[0].detach() if call.args and isinstance(call.args[0], Tensor) else None
        if x is None or x.dim() < 2:
            return None
        if isinstance(call.module, nn.ReLU):
            share = _inactive(x > 0)
            return torch.stack([share, share.new_tensor(math.nan)])
        for kind, (low, high) in BOUNDS.items():
            if isinstance(call.module, kind):
                share = _inactive((x >= low) & (x <= high))
                return torch.stack([share.new_tensor(math.nan), share])
        return None

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the mean."""
        return torch.stack(list(parts)).mean()


def _inactive(active: Tensor) -> Tensor:
    """Return the share of the units, in dimension 1 of images and the last one otherwise, that are hardly active."""
    units = 1 if active.dim() == 4 else active.dim() - 1
    shares = active.float().transpose(0, units).flatten(1).mean(1)  # [units]
    return (shares < ACTIVE).float().mean()


@dataclass(frozen=True)
class BaselineStatistics(Quantity):
    r"""Statistics for the rules of `benchmarks.faults.baselines`.

    Formula: by parameter, ``gradient`` :math:`\overline{|g|}`, ``ratio`` :math:`\overline{|d|} /
    \overline{|\theta|}` and ``unchanged``, 1 where :math:`|d| \le 10^{-8} + 10^{-5} |\theta|` throughout; by
    module, ``dead`` and ``saturated``, the shares of such units.
    """

    gradients = MeanGradients()
    changes = Changes()
    inactive = InactiveUnits()

    def compute(self, step: Step) -> Outcome:
        """Return nothing to be drawn; all of it is in the details."""
        changes, inactive = step[self.changes], step[self.inactive]
        return Outcome(
            {},
            {
                "gradient": step[self.gradients],
                "ratio": PerParameter((name, two[0]) for name, two in changes.items()),
                "unchanged": PerParameter((name, two[1]) for name, two in changes.items()),
                "dead": PerModule((name, two[0]) for name, two in inactive.items()),
                "saturated": PerModule((name, two[1]) for name, two in inactive.items()),
            },
        )
