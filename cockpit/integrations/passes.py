"""The backward passes that a framework makes, told to a cockpit in their turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from cockpit.cockpit import Cockpit


class Passes:
    """Watches those backward passes of a step that come one after the other, and no others.

    A framework may leave out a pass of an accumulation (a `training_step` without a loss, say). What
    is left of that step is passed over then, and the cockpit notes the step as not checked.

    Args:
        cockpit: Watches them.
    """

    def __init__(self, cockpit: Cockpit) -> None:
        self.cockpit = cockpit
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
        """
        if number > 0 and self._next != (global_step, number, passes):
            yield
            return
        self._next = None
        info |= {"individual_losses": losses, "micro_batch": (number, passes)}
        with self.cockpit(global_step, info=info):
            yield
        self._next = (global_step, number + 1, passes)


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
