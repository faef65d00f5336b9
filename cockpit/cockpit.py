"""The face of the toolkit in the training loop."""

from __future__ import annotations

import logging
import os
import platform
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

import numpy as np
import torch
from backpack.extensions.backprop_extension import BackpropExtension
from torch import Tensor, nn

from cockpit._version import __version__
from cockpit.arguments import (
    free_name,
    read_individual_losses,
    read_loss,
    read_loss_function,
    read_micro_batch,
    read_optimizers,
    read_parameters,
    read_step,
)
from cockpit.engine import Engine, Extended, InForward, Observation, Plan, Step
from cockpit.engine.plan import merged
from cockpit.errors import CockpitError, CockpitWarning, InvalidArgument
from cockpit.gradients import MEMORY_BUDGET
from cockpit.log import ParameterInfo, Row, RunFile, RunWriter, write_json
from cockpit.quantities import Quantity
from cockpit.reports import RunReports
from cockpit.rows import rows_of

logger = logging.getLogger("cockpit")

INFO = ("loss", "individual_losses", "batch_size", "optimizer", "micro_batch")
"""Keys of `info` that mean something here; all others are passed on to the quantities."""


class Cockpit:
    """Watches a training run from inside.

    ::

        watch = Cockpit(model, configuration("economy"), optimizer=opt, log="runs/first.db")
        for step, (x, y) in enumerate(loader):
            opt.zero_grad()
            losses = torch.nn.functional.cross_entropy(model(x), y, reduction="none")
            loss = losses.mean()
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            opt.step()
        watch.close()

    The training is left as it is, to the last bit: nothing here draws from the global random state,
        keeps a graph, or
    touches a gradient. A quantity that fails is reported once by a `CockpitWarning`, noted in the
    log as not checked, and never stops the training.

    Args:
        params: What is trained: the model (best: nothing else is needed), or an iterable of
            parameters or of (name, parameter) pairs, whose model has been extended with
            ``backpack.extend``.
        quantities: What to track; see `cockpit.configuration` for sets of quantities.
        optimizer: The optimizer, or a list of them. Any kind will do. With it, updates are observed
            as soon as they have been made; without it, when the next step begins.
        log: Path of the run file. An earlier run of that name is kept under another one. Without
            it, the run is kept in a temporary file, for `get_output` and plots.
        reduction: Whether the loss that is backpropagated is the ``"mean"`` or the ``"sum"`` over
            the samples. By itself the cockpit sees that from ``individual_losses``, and takes it to
            be a mean where these are missing.
        loss_function: The loss module with which the loss is computed, for quantities that need
            BackPACK (its exact diagonals, Kronecker factors): while such a quantity is tracked, the
            model and this module have BackPACK's hooks, and after `close` no more. Otherwise it is
            left alone.
        memory_budget: Bytes that dense pieces of individual gradients may take at a time.
        strict: Raise, rather than note, what goes wrong while quantities are computed.
        seed: Of the random numbers that sampled statistics draw from a generator of their own.

    Raises:
        InvalidType: if an argument is of the wrong kind.
        InvalidArgument: if one has a value that cannot be used.
    """

    def __init__(
        self,
        params: nn.Module | Iterable[nn.Parameter] | Iterable[tuple[str, nn.Parameter]],
        quantities: Iterable[Quantity] | None = None,
        *,
        optimizer: Any = None,
        log: str | os.PathLike[str] | None = None,
        reduction: str | None = None,
        loss_function: nn.Module | None = None,
        memory_budget: int = MEMORY_BUDGET,
        strict: bool = False,
        seed: int = 0,
    ) -> None:
        if reduction not in (None, "mean", "sum"):
            raise InvalidArgument(f"reduction must be 'mean', 'sum' or None, got {reduction!r}.")
        if memory_budget <= 0:
            raise InvalidArgument(
                f"memory_budget must be a positive number of bytes, got {memory_budget!r}."
            )
        named, self._model = read_parameters(params)
        optimizers = read_optimizers(optimizer)
        self._loss_function = read_loss_function(loss_function)
        self._extended: Extended | None = None
        self._closed = False
        self._last_tracked = -1
        self._skipped = -1  # the last step that was not tracked
        self._running: int | None = None
        self._quantities: dict[str, Quantity] = {}
        for quantity in quantities or ():
            self._quantities[free_name(quantity, self._quantities)] = quantity
        self._in_forward: dict[str, Quantity] = {}
        self._expected: int | None = None
        self._needs_start = False  # whether some quantity compares with the first step entered
        self._writer = RunWriter(
            log,
            settings=self._settings(optimizers, reduction, memory_budget, seed),
            parameters=[
                ParameterInfo(name, tuple(p.shape), str(p.dtype).removeprefix("torch."))
                for name, p in named.items()
            ],
        )
        self._reports = RunReports(self._writer, self._quantities, strict)
        self._engine = Engine(
            named,
            self._model,
            memory_budget=memory_budget,
            reduction=reduction,
            seed=seed,
            reports=self._reports,
        )
        self._engine.updates.add(optimizers)
        for name in self._quantities:
            self._prepare(name)

    # -- what it is made of -----------------------------------------------------------------------

    @property
    def params(self) -> list[nn.Parameter]:
        """The tracked parameters."""
        return list(self._engine.parameters.values())

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The tracked parameters by name."""
        return dict(self._engine.parameters)

    @property
    def quantities(self) -> list[Quantity]:
        """The tracked quantities."""
        return list(self._quantities.values())

    @property
    def path(self) -> str:
        """Path of the run file."""
        return str(self._writer.path)

    def add(self, quantity: Quantity) -> None:
        """Track one more quantity."""
        name = free_name(quantity, self._quantities)
        self._quantities[name] = quantity
        self._prepare(name)

    def _prepare(self, name: str) -> None:
        """Get ready for what a quantity needs beside the backward pass."""
        needs = self._quantities[name].needs()
        if any(isinstance(need, InForward) for need in needs):
            self._in_forward[name] = self._quantities[name]
            self._expect(self._expected)
        observations = [need for need in needs if isinstance(need, Observation)]
        self._needs_start |= any(need.from_start for need in observations)
        own_extensions = type(self._quantities[name]).extensions is not Quantity.extensions
        by_backpack = any(need.backpack for need in observations)
        wanted = (by_backpack or own_extensions) and self._extended is None
        if wanted and self._model is not None and self._loss_function is not None:
            self._extended = Extended(self._model, self._loss_function)
        recorder = self._engine.recorder
        if recorder is not None:
            recorder.keeps_outputs |= any(need.outputs for need in observations)

    def _settings(
        self, optimizers: list[Any], reduction: str | None, memory_budget: int, seed: int
    ) -> dict[str, Any]:
        return {
            "quantities": {name: repr(quantity) for name, quantity in self._quantities.items()},
            "model": None if self._model is None else type(self._model).__name__,
            "optimizers": [
                {"class": type(o).__name__, **dict(getattr(o, "defaults", {}))} for o in optimizers
            ],
            "reduction": reduction,
            "memory_budget": memory_budget,
            "seed": seed,
            "versions": {
                "cockpit": __version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "platform": platform.platform(),
        }

    # -- the training loop ------------------------------------------------------------------------

    def __call__(
        self,
        global_step: int,
        *extensions: BackpropExtension,
        info: Mapping[str, Any] | None = None,
        debug: bool = False,
        **more: Any,
    ) -> _Watched:
        """Return the context around the backward pass of one step.

        Args:
            global_step: Number of the step, counted from 0.
            extensions: Extensions of BackPACK to run along; their results stay on the parameters.
                All but `BatchGradTransforms` need a model that ``backpack.extend`` has extended.
            info: What is known of the step. ``loss`` (always): the tensor on which ``backward()``
                is called. ``individual_losses``: the losses of the samples, `[N]`. ``batch_size``:
                number of samples, where it cannot be seen from the two others or the model's input.
                ``optimizer``: here or at construction. ``micro_batch``: (k, K) where the batch
                comes in K backward passes, this being number k, counted from 0. The values are then
                those of the whole batch; until its last pass the inputs of the layers are kept.
            debug: Write what is computed at this step to the logger ``"cockpit"``.
            more: The same keys as keyword arguments.

        Raises:
            InvalidType: on entry, if something is of the wrong kind.
            InvalidArgument: on entry, if something is missing or was tracked already.
        """
        return _Watched(self, read_step(global_step), extensions, {**(info or {}), **more}, debug)

    def _enter(
        self,
        global_step: int,
        extensions: tuple[BackpropExtension, ...],
        info: dict[str, Any],
        debug: bool,
    ) -> bool:
        if self._closed:
            raise CockpitError("This cockpit has been closed. Make a new one to track more steps.")
        if self._running is not None:
            raise CockpitError(
                f"Step {self._running} is still open: watch(...) does not nest. Leave its with "
                "block first."
            )
        engine = self._engine
        number, passes = read_micro_batch(info.get("micro_batch"))
        if number > 0:
            return self._resume(global_step, number, passes, info)
        self._give_up_pause()
        if info.get("optimizer") is not None:
            engine.updates.add(read_optimizers(info["optimizer"]))
        if self._needs_start:
            engine.remember_start()
        continued = engine.continued(global_step)
        due = {n: q for n, q in self._quantities.items() if q.is_due(global_step)}
        if not due and not continued and not extensions:
            if engine.recorder is not None:
                engine.recorder.take_outputs()
            engine.forward.drop()
            self._skipped = global_step
            return False
        if due and global_step <= self._last_tracked:
            raise InvalidArgument(
                f"Step {global_step} comes after step {self._last_tracked}, which was tracked "
                "already. "
                "Every tracked step needs a number of its own, and the numbers have to grow."
            )
        own = [e for q in due.values() for e in self._own_extensions(q, global_step)]
        needs = {name: engine.needs_of(name, q, global_step) for name, q in due.items()}
        plan = Plan(due, needs, continued, (*own, *extensions))
        if plan.others and self._model is not None:
            self._check_extended(plan.others)
        plan.require(info)
        loss, losses, batch_size = self._read_losses(info)
        step = Step(
            global_step,
            engine.parameters,
            None if loss is None else loss.detach().reshape(()),
            None if losses is None else losses.detach(),
            batch_size,
            {key: value for key, value in info.items() if key not in INFO},
        )
        if debug:
            logger.info(
                "step %d: %s", global_step, ", ".join(f"{n} for {q}" for n, q in plan.needs.items())
            )
        if plan.wants_gradients:
            self._reports.coupling(global_step, self._model)
        kept = merged(extensions)[0]
        engine.enter(step, plan, (loss, losses, batch_size), tuple(kept), passes)
        self._running = global_step
        return True

    def _read_losses(self, info: Mapping[str, Any]) -> tuple[Tensor | None, Tensor | None, int]:
        """Return the loss, the losses of the samples, and how many samples there are, 0 if unknown."""
        batch_size = info.get("batch_size")
        recorder = self._engine.recorder
        known = recorder.batch_sizes() if recorder else set()
        if batch_size is not None:
            known = {batch_size}
        loss = read_loss(info.get("loss"))
        losses = read_individual_losses(info.get("individual_losses"), known)
        if batch_size is None and losses is not None:
            batch_size = len(losses)
        return loss, losses, batch_size or 0

    def _resume(self, global_step: int, number: int, passes: int, info: Mapping[str, Any]) -> bool:
        """Enter a further backward pass of a step whose batch comes in several."""
        pause = self._engine.pause
        if pause is None and self._skipped == global_step:
            return False
        if pause != (global_step, number, passes):
            expected = "no step is under way"
            if pause is not None:
                expected = f"next would be ({pause[1]}, {pause[2]}) of step {pause[0]}"
            raise InvalidArgument(
                f"micro_batch=({number}, {passes}) of step {global_step} is out of turn: {expected}. "
                "The passes of a step are counted from 0 and come one after the other."
            )
        self._engine.plan.require(info)
        self._engine.resume(self._read_losses(info))
        self._running = global_step
        return True

    def _give_up_pause(self) -> None:
        """Give up a step whose batch did not come as a whole."""
        pause = self._engine.pause
        if pause is not None:
            self._engine.abort()
            self._reports.incomplete(*pause)

    @staticmethod
    def _own_extensions(quantity: Quantity, global_step: int) -> list[BackpropExtension]:
        """Return the extensions of a quantity that asks for its own; the others' needs are met without."""
        if type(quantity).extensions is Quantity.extensions:
            return []
        return list(quantity.extensions(global_step))

    def _check_extended(self, extensions: list[BackpropExtension]) -> None:
        assert self._model is not None
        if not any(getattr(m, "_backpack_extend", False) for m in self._model.modules()):
            names = ", ".join(type(extension).__name__ for extension in extensions)
            raise InvalidArgument(
                f"{names} of BackPACK needs a model that BackPACK knows: call "
                "backpack.extend(model), and the same for "
                "the loss module, before the forward pass."
            )

    def _exit(self, failed: bool) -> None:
        engine, step = self._engine, self._running
        assert step is not None
        try:
            if failed:
                engine.abort()
                return
            if not engine.exit():
                return
            self._last_tracked = max(self._last_tracked, step)
            self._reports.tracked(step)
        finally:
            self._running = None
        self._reports.raise_failures()

    def _expect(self, global_step: int | None) -> None:
        """Get ready for the forward pass of the step that comes next; None where any may come."""
        self._expected = global_step
        if not self._in_forward or self._closed or self._engine.pause is not None:
            return
        due = self._in_forward
        if global_step is not None:
            due = {}
            for name, quantity in self._in_forward.items():
                with suppress(Exception):  # a schedule may end; on entry it can say so
                    if quantity.is_due(global_step):
                        due[name] = quantity
        self._engine.expect(due, global_step)

    # -- results ----------------------------------------------------------------------------------

    def log(
        self,
        global_step: int,
        epoch_count: float | None = None,
        train_loss: float | None = None,
        valid_loss: float | None = None,
        test_loss: float | None = None,
        train_accuracy: float | None = None,
        valid_accuracy: float | None = None,
        test_accuracy: float | None = None,
        learning_rate: float | None = None,
        **more: float | Tensor,
    ) -> None:
        """Write metrics of your own to the run file, under their names.

        Args:
            global_step: The step they belong to.
            epoch_count: Epochs so far.
            train_loss: Loss on the training set.
            valid_loss: Loss on the validation set.
            test_loss: Loss on the test set.
            train_accuracy: Accuracy on the training set.
            valid_accuracy: Accuracy on the validation set.
            test_accuracy: Accuracy on the test set.
            learning_rate: The learning rate.
            more: Any other metrics, numbers or tensors.
        """
        metrics = {
            "epoch_count": epoch_count,
            "train_loss": train_loss,
            "valid_loss": valid_loss,
            "test_loss": test_loss,
            "train_accuracy": train_accuracy,
            "valid_accuracy": valid_accuracy,
            "test_accuracy": test_accuracy,
            "learning_rate": learning_rate,
            **more,
        }
        given = [(name, value) for name, value in metrics.items() if value is not None]
        rows = [
            Row(row.quantity, row.value, row.key, source="log")
            for of_metric in rows_of(given)
            for row in of_metric
        ]
        self._writer.record(read_step(global_step), rows, tracked=False)

    def create_graph(self, global_step: int) -> bool:
        """Return whether the backward pass has to keep its graph: never."""
        return False

    def track(self, global_step: int, protected_savefields: Iterable[str] | None = None) -> None:
        """Do nothing, where ``with watch(...)`` has tracked the step; warn where it has not.

        In Cockpit 1.0 it was the part of ``with cockpit(...)`` that computed the quantities. Here
        they are computed during the backward pass, so that calling it as well, inside or after the
        context, changes nothing.

        Args:
            global_step: The step.
            protected_savefields: Accepted for scripts written for Cockpit 1.0. The results of
                extensions handed to ``watch(...)`` always stay on the parameters.
        """
        step = read_step(global_step)
        done = step == self._running or step <= self._last_tracked
        if not done and any(quantity.is_due(step) for quantity in self._quantities.values()):
            warnings.warn(
                f"Nothing was tracked at step {step}: quantities are computed while the gradients "
                f"are. Wrap the backward pass, with watch({step}, loss=loss, ...): loss.backward().",
                CockpitWarning,
                stacklevel=2,
            )

    def get_output(self) -> dict[int, dict[str, Any]]:
        """Return all values so far, ``{step: {"NormTest": value, ...}}``."""
        self._writer.flush()
        with RunFile(self._writer.path) as file:
            return file.output()

    @property
    def output(self) -> dict[int, dict[str, Any]]:
        """All values so far, as `get_output` has them, with the metrics of `log` among them."""
        self._writer.flush()
        with RunFile(self._writer.path) as file:
            return file.output(metrics=True)

    def write(self, logpath: str | os.PathLike[str]) -> str:
        """Write `output` in the format of Cockpit 1.0: ``{"<step>": {"NormTest": value, ...}}``.

        The file is whole at any time: an older one stays until the new one is complete. NaN and
        infinities are written as ``NaN`` and ``Infinity``, as Python does. The run file has more
        (names of the parameters, details, events) and does not have to be written by hand.

        Args:
            logpath: Where to. ``.json`` is appended, unless it is there; folders are created.

        Returns:
            The path of the file; `cockpit.open_run` reads it.

        Raises:
            InvalidArgument: if nothing can be written there.
        """
        return str(write_json(logpath, self.output))

    def run(self) -> Any:
        """Return the run so far, to be analysed or plotted; see `cockpit.open_run`."""
        from cockpit.run import (
            open_run,
        )  # pandas is loaded when somebody reads, not in the training

        self._writer.flush()
        return open_run(self._writer.path)

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish the run file and take all hooks off the model and the optimizers. May be called twice."""
        if not self._closed:
            self._closed = True
            self._engine.close()
            if self._extended is not None:
                self._extended.close()
            self._writer.close()

    def __enter__(self) -> Cockpit:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Watched:
    """The context around one backward pass."""

    def __init__(
        self,
        cockpit: Cockpit,
        global_step: int,
        extensions: tuple[BackpropExtension, ...],
        info: dict[str, Any],
        debug: bool,
    ) -> None:
        self._cockpit = cockpit
        self._arguments = (global_step, extensions, info, debug)
        self._tracked = False

    def __enter__(self) -> None:
        self._tracked = self._cockpit._enter(*self._arguments)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._tracked:
                self._cockpit._exit(failed=kind is not None)
        finally:
            self._cockpit._expect(None if kind is not None else self._arguments[0] + 1)
