"""What is known of one tracked step, and what quantities compute from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn

from cockpit.engine.live import Basis, Live
from cockpit.engine.scale import AccumulatedScale
from cockpit.engine.several import Scale
from cockpit.errors import CockpitError
from cockpit.gradients import Draw
from cockpit.transforms import Need


class PerParameter(dict[str, Any]):
    """Values by parameter name, in the order of the model's parameters."""

    def total(self) -> Any:
        """Add the values of all parameters up."""
        values = list(self.values())
        if len(values) > 1 and isinstance(values[0], Tensor):
            return torch.stack(values).sum(0)
        return reduce(add, values)


class PerModule(dict[str, Any]):
    """Values by module name, in the order in which the modules were called.

    The names are those of ``model.named_modules()``; the model itself goes by its class. Where a
    module was called several times, the second call is ``"name#2"``, and so on.
    """


@dataclass(frozen=True)
class Missing:
    """Stands in for a value that could not be had, with the reason.

    Args:
        reason: Why there is none.
        usual: Whether this is nothing to warn of.
    """

    reason: str
    usual: bool = False


NO_SAMPLES = "the batch has no samples"
"""Why nothing is known of an empty batch."""


class NotChecked(CockpitError):
    """A quantity cannot be computed at a step; the message says why. Recorded in the log, and never raised further.

    Args:
        reason: Why not.
        usual: Whether this is nothing to warn of.
    """

    def __init__(self, reason: str, *, usual: bool = False) -> None:
        super().__init__(reason)
        self.usual = usual


@dataclass
class Step:
    """One tracked step.

    Args:
        global_step: Its number.
        parameters: The tracked parameters by name, as they are now.
        loss: The mini-batch loss, without its graph, `[]`.
        individual_losses: The losses of the samples as they were given, without their graph, `[N]`.
        batch_size: Number of samples N; 0 until it is known.
        info: What else the user handed over, by key.
        between: The losses of the steps since the last one at which somebody asked for them, and of this one,
            without their graphs, `[]` each.
        start: The parameters at the first step that was entered, where somebody asks for them.
        scale: How the loss went into the backward pass; None before it.
        values: What the needs of the quantities were met with.
        bases: What curvature was computed from, by need.
        live: The loss and what it came from with their graphs, before the backward pass only.
        memory: What the quantity that is being computed remembered when the step began.
        carried: What needs have kept for themselves from earlier steps, by need.
        optimizers: The optimizers that are known.
        draw: The samples whose individual gradients were looked at, where these are not all.
        previous_update: The update that led here, at `Moment.EXIT` only; None where nobody has waited for this step.
    """

    global_step: int
    parameters: Mapping[str, nn.Parameter]
    loss: Tensor | None = None
    individual_losses: Tensor | None = None
    batch_size: int = 0
    info: Mapping[str, Any] = field(default_factory=dict)
    between: Sequence[Tensor] = ()
    start: Mapping[str, Tensor] = field(default_factory=dict)
    scale: Scale | AccumulatedScale | None = None
    values: dict[Need, Any] = field(default_factory=dict)
    bases: dict[Need, Basis] = field(default_factory=dict)
    live: Live | None = None
    memory: Any = None
    carried: dict[Need, Any] = field(default_factory=dict)
    optimizers: Sequence[Any] = ()
    draw: Draw | None = None
    previous_update: PerParameter | None = None

    def __getitem__(self, need: Need) -> Any:
        """Return the value of a need that the quantity has declared.

        Raises:
            NotChecked: if the value could not be had.
        """
        value = self.values[need]
        if isinstance(value, Missing):
            raise NotChecked(value.reason, usual=value.usual)
        return value

    @property
    def is_empty(self) -> bool:
        """Whether the batch is known to have no samples."""
        return self.individual_losses is not None and not self.individual_losses.numel()

    def has(self, needs: Iterable[Need]) -> bool:
        """Whether all these needs have been met, or found impossible to meet."""
        return all(need in self.values for need in needs)
