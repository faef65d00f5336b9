"""A cockpit for loops with Accelerate."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from backpack.extensions.backprop_extension import BackpropExtension
from torch import nn

from cockpit.cockpit import Cockpit
from cockpit.errors import CockpitError
from cockpit.quantities import Quantity


class AcceleratedCockpit(Cockpit):
    """A `cockpit.Cockpit` that knows what Accelerate does.

    ::

        accelerator = Accelerator(gradient_accumulation_steps=4)
        model, opt, loader = accelerator.prepare(model, opt, loader)
        watch = AcceleratedCockpit(accelerator, model, quantities, optimizer=opt, log="first.db")
        step = 0
        for x, y in loader:
            with accelerator.accumulate(model):
                losses = torch.nn.functional.cross_entropy(model(x), y, reduction="none")
                loss = losses.mean()
                with watch(step, loss=loss, individual_losses=losses):
                    accelerator.backward(loss)
                opt.step()
                opt.zero_grad()
            step += accelerator.sync_gradients
        watch.close()

    It unwraps the model and the optimizer, and tells the backward passes of an accumulation by the
    accelerator's count, so that the values are those of the whole batch. The division of the loss,
    and the factor of a gradient scaler, are taken out of them.

    With several processes, every one of them makes it and runs the same loop. The values are those of
    the mini-batches of all processes together, and the first one writes the run file.

    The last batches of an epoch may be fewer than an accumulation takes. How many there are is seen
    from the length of the loader that `accelerator.prepare` returned; where it has none, that step
    is noted as not checked.

    Args:
        accelerator: The accelerator.
        model: The model, prepared or not; with several processes, prepared.
        quantities: What to track; see `cockpit.configuration`.
        optimizer: The optimizer, or a list of them, prepared or not.
        log: Path of the run file.
        arguments: Further arguments of `cockpit.Cockpit`.

    Raises:
        CockpitError: if the accelerator spreads the parameters over processes, or the model of several
            processes is none that it has prepared.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        quantities: Iterable[Quantity] | None = None,
        *,
        optimizer: Any = None,
        log: str | os.PathLike[str] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(
            watchable(accelerator, model),
            quantities,
            optimizer=unwrapped_optimizers(optimizer),
            log=log,
            **arguments,
        )
        self._accelerator = accelerator
        self._number = self._passes = 0  # of the next backward pass, and of all of its step

    def __call__(
        self,
        global_step: int,
        *extensions: BackpropExtension,
        info: Mapping[str, Any] | None = None,
        debug: bool = False,
        **more: Any,
    ) -> AbstractContextManager[None]:
        """Return the context around one backward pass; see `cockpit.Cockpit`.

        ``micro_batch`` is filled in.
        """
        number, last = self._number, self._accelerator.sync_gradients
        self._number = 0 if last else number + 1
        if number == 0:
            self._passes = 1 if last else self._expected_passes()
        if last != (number + 1 == self._passes):
            return nullcontext()  # not as many as foreseen: the step stays incomplete
        micro_batch = (number, self._passes)
        more = {"micro_batch": micro_batch, **more}
        return super().__call__(global_step, *extensions, info=info, debug=debug, **more)

    def _expected_passes(self) -> int:
        """Return how many backward passes make up the step whose first one comes."""
        state, passes = (
            self._accelerator.gradient_state,
            self._accelerator.gradient_accumulation_steps,
        )
        loader = state.active_dataloader
        if not state.sync_with_dataloader or not hasattr(loader, "__len__"):
            return passes
        return min(passes, len(loader) - self._accelerator.step + 1)


def watchable(accelerator: Accelerator, model: nn.Module) -> nn.Module:
    """Return what a cockpit is to be given of a model.

    With several processes that is its `DistributedDataParallel`, which knows them; otherwise the model
    as it was before `accelerator.prepare`.

    Raises:
        CockpitError: if the accelerator spreads the parameters over processes, or the model of several
            processes is none that it has prepared.
    """
    kind = accelerator.distributed_type.name
    if kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA"):
        raise CockpitError(
            f"The cockpit needs whole parameters, which Accelerate's {kind} gives to no process. Train "
            "on a single device or with data parallelism."
        )
    if accelerator.num_processes == 1:
        return _compiled_from(accelerator.unwrap_model(model))
    parallel = _compiled_from(model)
    if not isinstance(parallel, nn.parallel.DistributedDataParallel):
        raise CockpitError(
            f"With {accelerator.num_processes} processes the cockpit needs the model in "
            f"DistributedDataParallel, got {type(parallel).__name__}. Make it on every process, with the "
            "model that accelerator.prepare(model) has returned."
        )
    return parallel


def _compiled_from(model: nn.Module) -> nn.Module:
    """Return what `torch.compile` has made a model from, or the model itself."""
    return getattr(model, "_orig_mod", model)


def unwrapped_optimizers(optimizer: Any) -> Any:
    """Return an optimizer, or each of a list, as it was before `accelerator.prepare`."""
    if isinstance(optimizer, list | tuple):
        return [unwrapped_optimizers(one) for one in optimizer]
    return optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer
