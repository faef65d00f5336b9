"""A callback that watches trainings with Lightning."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

try:
    from lightning.pytorch import Callback
except ImportError:  # the same library under its older name
    from pytorch_lightning import Callback  # type: ignore[assignment]

from cockpit.arguments import read_quantities
from cockpit.cockpit import Cockpit
from cockpit.errors import CockpitError
from cockpit.integrations.passes import Passes, metrics
from cockpit.integrations.redirection import Redirection
from cockpit.quantities import Quantity

SHARDED = ("FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy", "XLAFSDPStrategy")
"""Strategies that give no process whole parameters."""


class CockpitCallback(Callback):
    """Watches each step that Lightning's trainer makes, at the backward pass.

    ::

        watch = CockpitCallback("economy", log="runs/first.db")
        Trainer(callbacks=[watch], ...).fit(model, loader)
        cockpit.open_run("runs/first.db")

    Steps have the numbers of ``trainer.global_step``. An accumulation of gradients gives the values
    of the whole batch; a gradient scaler's factor is taken out of them. The learning rate of each
    step is logged, and after a validation the metrics that the module has logged, ``val_loss``
    and ``val_acc`` as ``valid_loss`` and ``valid_accuracy``. Checkpoints of the trainer contain
    the cockpit's state, and ``trainer.fit(ckpt_path=...)`` continues it.

    Some quantities (`Alpha`) need the loss of every sample. It is left on the module::

        def training_step(self, batch, batch_idx):
            x, y = batch
            losses = F.cross_entropy(self(x), y, reduction="none")  # [N]
            self.individual_losses = losses
            return losses.mean()

    Without it, the number of samples is the length of the first tensor of the batch.

    With several processes (the strategy ``"ddp"`` and its kin), the values are those of the batches of all
    of them together, and the first one writes the run file.

    In manual optimization only the module knows which backward passes make up a step, so the callback
    refuses it; a `cockpit.Cockpit` around ``self.manual_backward(loss)`` does it.

    Args:
        quantities: What to track, or the label of a set; see `cockpit.configuration`.
        log: Path of the run file; ``cockpit.db`` in the trainer's ``log_dir`` unless given.
        arguments: Further arguments of `cockpit.Cockpit`.

    Attributes:
        cockpit: The `cockpit.Cockpit` of the present or last fit; None before.
    """

    def __init__(
        self,
        quantities: str | Iterable[Quantity] = "economy",
        *,
        log: str | os.PathLike[str] | None = None,
        **arguments: Any,
    ) -> None:
        self.cockpit: Cockpit | None = None
        self._quantities = list(read_quantities(quantities).values())
        self._log = log
        self._arguments = arguments
        self._passes: Passes | None = None
        self._redirection: Redirection | None = None
        self._open = ExitStack()
        self._batch_size: int | None = None
        self._last = -1  # the last update whose batch has begun, and its last batch
        self._last_batch = -1
        self._state: dict[str, Any] = {}  # at the end of the last fit
        self._loaded: dict[str, Any] = {}  # of a checkpoint

    # -- from the beginning to the end of a fit ----------------------------------------------------

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse what cannot be watched."""
        strategy = type(trainer.strategy).__name__
        if not pl_module.automatic_optimization:
            raise CockpitError(
                f"{type(pl_module).__name__} optimizes manually, and then CockpitCallback cannot know which "
                "backward passes make up a step. Make a Cockpit(self.trainer.strategy.model, ...) in "
                "on_train_start, and in training_step: with self.watch(step, loss=loss): "
                "self.manual_backward(loss)."
            )
        if strategy in SHARDED:
            raise CockpitError(
                f"CockpitCallback needs whole parameters, which {strategy} gives to no process. Train "
                "on a single device or with the strategy 'ddp'."
            )

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the cockpit; the optimizers are there, and a checkpoint has been loaded."""
        folder = trainer.log_dir
        model = _watchable(trainer, pl_module)
        log = self._log or os.path.join(folder or trainer.default_root_dir, "cockpit.db")
        loaded, self._loaded, self._state = self._loaded, {}, {}
        # A checkpoint may have been loaded for a test, and this fit may begin anew.
        resumed = bool(loaded) and loaded["step"] < trainer.global_step
        arguments = {"resume": resumed, **self._arguments}
        self.cockpit = Cockpit(
            model, self._quantities, optimizer=trainer.optimizers, log=log, **arguments
        )
        if model is not pl_module:
            self._redirection = Redirection(model, pl_module)
        if resumed:
            self.cockpit.load_state_dict(loaded["cockpit"])
        self._passes = Passes(self.cockpit)
        self._last = self._last_batch = -1

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the run file, and take the hooks off the model."""
        self._state = self.state_dict()  # checkpoints may be saved after the fit
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give up the step that was under way, and close."""
        self._open.__exit__(type(exception), exception, exception.__traceback__)
        self._close()

    def _close(self) -> None:
        self._passes = None
        if self._redirection is not None:
            self._redirection.close()
            self._redirection = None
        if self.cockpit is not None:
            self.cockpit.close()

    # -- each step ---------------------------------------------------------------------------------

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """See how many samples there are."""
        self._batch_size = _length(batch)
        self._batch_idx = batch_idx

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """Enter the cockpit."""
        losses = pl_module.__dict__.pop("individual_losses", None)
        step, total = trainer.global_step, trainer.accumulate_grad_batches
        again = (step, self._batch_idx) == (self._last, self._last_batch)
        self._last, self._last_batch = step, self._batch_idx
        if self._passes is None or again:  # an optimizer such as LBFGS evaluates several times
            return
        number = self._batch_idx % total
        info = {"loss": loss, "loss_factor": _scale(trainer, loss) / total}
        if losses is None:
            info["batch_size"] = self._batch_size
        # The last batches of an epoch may be fewer; Lightning divides by the number of all.
        passes = int(min(total, trainer.num_training_batches - self._batch_idx + number))
        self._open.enter_context(self._passes.watch(step, number, passes, losses, **info))

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Leave the cockpit."""
        self._open.close()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Log the learning rate where something is due."""
        step = trainer.global_step
        if self._passes is None:
            return
        if not any(quantity.is_due(step) for quantity in self._passes.cockpit.quantities):
            return
        rate = optimizer.param_groups[0]["lr"]
        self._passes.cockpit.log(step, trainer.current_epoch, learning_rate=rate)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the module's metrics after the last update."""
        if self._passes is not None and not trainer.sanity_checking:
            step = max(0, trainer.global_step - 1)
            self._passes.cockpit.log(step, **metrics(trainer.callback_metrics))

    # -- checkpoints -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the cockpit's state; none where a step is under way, which cannot be continued."""
        if self._passes is None:
            return self._state
        try:
            return {"step": self._last, "cockpit": self._passes.cockpit.state_dict()}
        except CockpitError:
            return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Keep the state for the fit that comes."""
        self._loaded = dict(state_dict)


def _watchable(trainer: Any, pl_module: Any) -> nn.Module:
    """Return the module, or the `DistributedDataParallel` that it is wrapped in.

    Raises:
        CockpitError: if it is trained by several processes in another way.
    """
    model = trainer.strategy.model
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return model
    if trainer.world_size > 1:
        raise CockpitError(
            "With several processes CockpitCallback needs the module in DistributedDataParallel, which "
            f"{type(trainer.strategy).__name__} does not put it in. Train with the strategy 'ddp'."
        )
    return pl_module


def _scale(trainer: Any, loss: Tensor) -> Tensor | float:
    """Return the gradient scaler's factor on the loss, without waiting for the device."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return 1.0 if scaler is None else scaler.scale(torch.ones((), device=loss.device))


def _length(batch: Any) -> int | None:
    """Return the length of the first tensor in a batch, None where there is none."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.dim() else None
    parts: Iterable[Any] = ()
    if isinstance(batch, Mapping):
        parts = batch.values()
    elif isinstance(batch, list | tuple):
        parts = batch
    return next((n for n in map(_length, parts) if n is not None), None)
