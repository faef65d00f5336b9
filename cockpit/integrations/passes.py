"""The backward passes that a framework makes, told to a cockpit in their turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from cockpit.cockpit import Cockpit
from cockpit.errors import InvalidArgument
from cockpit.presets import configuration
from cockpit.quantities import Quantity


class Passes:
    """Watches those backward passes of a step that come one after the other, and no others.

    A framework may leave out a pass of an accumulation (a `training_step` without a loss, say). What
    is left of that step is passed over then, and the cockpit notes the step as not checked.

    Args:
        cockpit: Watches them.
        place: Where users of the framework leave the losses of the samples, for messages.
    """

    def __init__(self, cockpit: Cockpit, place: str) -> None:
        self.cockpit = cockpit
        self._place = place
        self._next: tuple[int, int, int] | None = None

    @contextmanager
    def watch(
        self, global_step: int, number: int, passes: int, losses: Tensor | None, **info: Any
    ) -> Iterator[None]:
        """Watch one backward pass, unless one before it is missing.

        Args:
            global_step: Number of the step.
            number: Number of the pass in it, counted from 0.
            passes: How many make up the step.
            losses: The losses of the samples, `[N]`, where they are known.
            info: What else the cockpit is to know.

        Raises:
            InvalidArgument: if something that is due needs the losses of the samples.
        """
        if number > 0 and self._next != (global_step, number, passes):
            yield
            return
        self._next = None
        if losses is None:
            self._check_losses(global_step)
        info |= {"individual_losses": losses, "micro_batch": (number, passes)}
        with self.cockpit(global_step, info=info):
            yield
        self._next = (global_step, number + 1, passes)

    def _check_losses(self, global_step: int) -> None:
        wanting = [
            quantity.name
            for quantity in self.cockpit.quantities
            if any("individual_losses" in getattr(need, "info", ()) for need in quantity.needs())
            and quantity.is_due(global_step)
        ]
        if wanting:
            raise InvalidArgument(
                f"{', '.join(wanting)} needs the loss of every sample, which is missing: "
                f"{self._place}, a tensor [N], or track it no more."
            )


def read_quantities(quantities: str | Iterable[Quantity]) -> list[Quantity]:
    """Return the quantities, or the set of them that has this label.

    Raises:
        InvalidArgument: if there is no such set.
    """
    return configuration(quantities) if isinstance(quantities, str) else list(quantities)


def metrics(values: Any) -> dict[str, Any]:
    """Return what a framework logs under the names that `Cockpit.log` has for it.

    Text, arrays and timings (of an evaluation, which are not those of the training) are left out.
    """
    return {
        NAMES.get(name, name): value
        for name, value in values.items()
        if (value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, int | float))
        and not name.endswith(("_runtime", "_per_second"))
    }


NAMES = {
    "epoch": "epoch_count",
    "loss": "train_loss",
    "train_acc": "train_accuracy",
    "val_loss": "valid_loss",
    "val_acc": "valid_accuracy",
    "val_accuracy": "valid_accuracy",
    "eval_loss": "valid_loss",
    "eval_accuracy": "valid_accuracy",
}
"""Usual names of metrics, and those of `Cockpit.log`."""
