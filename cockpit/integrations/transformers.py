"""A mixin that watches trainings with the trainer of Transformers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from cockpit.arguments import read_quantities
from cockpit.cockpit import Cockpit
from cockpit.errors import CockpitError
from cockpit.integrations.accelerate import unwrapped_optimizers, watchable
from cockpit.integrations.passes import Passes, metrics

STATE_FILE = "cockpit.pt"
"""Where a checkpoint of the trainer has the cockpit's state."""


if TYPE_CHECKING:
    from transformers import Trainer as _Trainer
else:
    _Trainer = object


class CockpitTrainerMixin(_Trainer):
    """Watches each step that Transformers' trainer makes, at the backward pass.

    ::

        class WatchedTrainer(CockpitTrainerMixin, Trainer):
            pass

        trainer = WatchedTrainer(
            model, args, train_dataset=data,
            cockpit={"quantities": [NormTest(), GradNorm(), Loss()], "log": "runs/first.db"},
        )
        trainer.train()
        cockpit.open_run("runs/first.db")

    Steps have the numbers of ``trainer.state.global_step``. An accumulation of gradients gives the
    values of the whole batch, also where the loss is a mean over all its tokens; a sample then
    counts with the number of its tokens (labels of −100 have none). A gradient scaler's factor is
    taken out. What the trainer logs is logged, ``loss`` and ``eval_loss`` as ``train_loss`` and
    ``valid_loss``. Checkpoints of the trainer contain the cockpit's state, and
    ``train(resume_from_checkpoint=...)`` continues it.

    Some quantities (`Alpha`, which is in every labelled set) need the loss of every sample. The
    trainer sees only their mean, so a `compute_loss` of one's own leaves them on the trainer:
    ``self.individual_losses = losses``, `[N]`.

    With several processes (``torchrun``), the values are those of the batches of all of them together, and
    the first one writes the run file. A `compute_loss` of one's own has to return a loss whose mean over
    the processes is that of the whole, as the trainer's own does: where it divides by
    ``num_items_in_batch``, it multiplies by ``self.accelerator.num_processes``.

    Args:
        args: Arguments of the trainer.
        cockpit: Arguments of `cockpit.Cockpit`: ``quantities`` (or the label of a set), ``log``
            (``cockpit.db`` in the trainer's ``output_dir`` unless given), and others.
        kwargs: Arguments of the trainer.

    Attributes:
        individual_losses: The losses of the samples in the backward pass that comes, `[N]`.
    """

    def __init__(self, *args: Any, cockpit: Mapping[str, Any], **kwargs: Any) -> None:
        self.individual_losses: Tensor | None = None
        self._watch = _Watch(self, cockpit)
        super().__init__(*args, **kwargs)
        self.add_callback(self._watch)

    @property
    def cockpit(self) -> Cockpit | None:
        """The cockpit of the present or last training; None before."""
        return self._watch.cockpit

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train; the run file is closed when that ends, however it ends."""
        self._watch.checkpoint = resume_from_checkpoint or None
        if resume_from_checkpoint is True:
            self._watch.checkpoint = get_last_checkpoint(str(self.args.output_dir))
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self._watch.close()

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Return the batches of the next step, and see how many they are."""
        result = super().get_batch_samples(*args, **kwargs)
        self._watch.number, self._watch.of_step = 0, len(result[0])
        return result

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Make one forward and backward pass, the latter within the cockpit."""
        try:
            with self._watch.backward():
                return super().training_step(*args, **kwargs)
        finally:
            self._watch.number += 1
            self.individual_losses = None


class _Watch(TrainerCallback):
    """Opens and closes a trainer's cockpit, and follows what goes on around the steps."""

    def __init__(self, trainer: CockpitTrainerMixin, arguments: Mapping[str, Any]) -> None:
        self.cockpit: Cockpit | None = None
        self.checkpoint: str | None = None  # to resume from
        self.number, self.of_step = 0, 1  # the backward pass that comes, and how many make a step
        self._trainer = trainer
        quantities = read_quantities(arguments.get("quantities", "economy"))
        self._arguments = {**arguments, "quantities": list(quantities.values())}
        self._passes: Passes | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self._trainer
        self.close()
        if args.n_gpu > 1:
            raise CockpitError(
                "The cockpit cannot see into torch.nn.DataParallel, which this trainer uses on "
                f"{args.n_gpu} devices. Make one device visible, or start one process for each "
                "device with torchrun."
            )
        model = watchable(trainer.accelerator, trainer.model_wrapped)
        (saved,) = broadcast_object_list([self._load()])  # the others may have no such file
        arguments: dict[str, Any] = {
            "log": os.path.join(args.output_dir, "cockpit.db"),
            "resume": saved is not None,
            "reduction": "mean",  # the trainer's losses are means, of a pass or of the whole batch
            **self._arguments,
        }
        optimizer = unwrapped_optimizers(trainer.optimizer)
        self.cockpit = Cockpit(model, optimizer=optimizer, **arguments)
        self._passes = Passes(self.cockpit)
        if saved is not None:
            self.cockpit.load_state_dict(saved)

    def _load(self) -> dict[str, Any] | None:
        path = os.path.join(self.checkpoint or "", STATE_FILE)
        if self.checkpoint is None or not os.path.exists(path):
            return None
        return torch.load(path, map_location="cpu", weights_only=True)

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Have the accelerator, whose backward pass is the trainer's, make it within the cockpit."""
        if self._passes is None:
            yield
            return
        accelerator: Any = self._trainer.accelerator
        accelerator.backward = partial(self._backward, self._passes, accelerator.backward)
        try:
            yield
        finally:
            del accelerator.backward  # what is there again is the class's own

    def _backward(self, passes: Passes, backward: Any, loss: Tensor, **kwargs: Any) -> None:
        trainer = self._trainer
        # What is backpropagated adds up to the loss of the whole batch, and the loss of one of K
        # passes is K times what it contributes. The accelerator may divide once more.
        factor = trainer.accelerator.gradient_accumulation_steps / self.of_step
        place = (trainer.state.global_step, self.number, self.of_step)
        with passes.watch(*place, trainer.individual_losses, loss=loss, loss_factor=factor):
            backward(loss, **kwargs)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        summary = "train_runtime" in logs  # of the whole training, at its end
        if self._passes is not None and not summary:
            self._passes.cockpit.log(max(0, state.global_step - 1), **metrics(logs))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        if self._passes is not None and state.is_world_process_zero and os.path.isdir(folder):
            torch.save(self._passes.cockpit.state_dict(), os.path.join(folder, STATE_FILE))

    def close(self) -> None:
        """Finish the run file, and take the hooks off the model."""
        self._passes = None
        if self.cockpit is not None:
            self.cockpit.close()
