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
    and the factor of a gradient scaler, are taken out of them. With several processes, the first
    one is watched: its share of the batch. In the others it does nothing.

    The last batches of an epoch may be fewer than an accumulation takes. How many there are is seen
    from the length of the loader that `accelerator.prepare` returned; where it has none, that step
    is noted as not checked.

    Args:
        accelerator: The accelerator.
        model: The model, prepared or not.
        quantities: What to track; see `cockpit.configuration`.
        optimizer: The optimizer, or a list of them, prepared or not.
        log: Path of the run file.
        arguments: Further arguments of `cockpit.Cockpit`.

    Raises:
        CockpitError: if the accelerator spreads the parameters over processes.
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
        main = accelerator.is_main_process
        super().__init__(
            unwrapped(accelerator, model),
            quantities if main else None,
            optimizer=unwrapped_optimizers(optimizer),
            log=log if main else None,
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
        if not self._accelerator.is_main_process:
            return nullcontext()
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


def unwrapped(accelerator: Accelerator, model: nn.Module) -> nn.Module:
    """Return the model as it was before `accelerator.prepare`.

    Raises:
        CockpitError: if the accelerator spreads the parameters over processes.
    """
    kind = accelerator.distributed_type.name
    if kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA"):
        raise CockpitError(
            f"The cockpit needs whole parameters, which Accelerate's {kind} gives to no process. Train "
            "on a single device or with data parallelism."
        )
    bare = accelerator.unwrap_model(model)
    return getattr(bare, "_orig_mod", bare)


def unwrapped_optimizers(optimizer: Any) -> Any:
    """Return an optimizer, or each of a list, as it was before `accelerator.prepare`."""
    if isinstance(optimizer, list | tuple):
        return [unwrapped_optimizers(one) for one in optimizer]
    return optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer
