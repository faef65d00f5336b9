"""The losses of the steps between those that are tracked."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.needs import Moment, Observation
from cockpit.engine.step import NotChecked, Step
from cockpit.quantities.quantity import Outcome, Quantity


@dataclass(frozen=True)
class LossesSince(Observation):
    """The losses of the steps since the last look and of this one, in their order, `[k]`."""

    moment = Moment.ENTRY
    forward = False
    info = ("loss",)
    between = True

    def observe(self, step: Step) -> Tensor:
        """Return them."""
        if len(step.between) < 2:
            raise NotChecked("no step has passed since the last look", usual=True)
        return torch.stack([loss.reshape(()) for loss in step.between])


@dataclass(frozen=True)
class LossPeaks(Quantity):
    r"""The highest losses of the steps since it was last tracked: what single steps do not show.

    Formula: of the losses :math:`L_1 \dots L_k` since then, this step's included, ``largest``,
    :math:`\max_i L_i`, and ``two``, :math:`\max_i \min(L_i, L_{i+1})`: as high were two in a row.

    How to read it: leave that to the doctor. A single batch may be hard; two in a row are a step too far, or
    data of another kind.

    Source: Chowdhery et al. (2022), arXiv:2204.02311, section 5.1, on spikes of the loss.

    With accumulation: steps in several backward passes are left out, and so are several losses. Of several
    processes, the first one's own.
    """

    losses = LossesSince()

    def compute(self, step: Step) -> Outcome:
        """Return both, each `[]`."""
        losses = step[self.losses]
        two = torch.minimum(losses[1:], losses[:-1]).amax()
        return Outcome({}, {"largest": losses.amax(), "two": two})
