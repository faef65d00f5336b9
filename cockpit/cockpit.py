"""The face of the toolkit in the training loop."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import TracebackType
from typing import Any

import numpy as np
import torch
from backpack.extensions.backprop_extension import BackpropExtension
from torch import nn

from cockpit._version import __version__
from cockpit.agenda import due_at, may_be_due
from cockpit.arguments import (
    free_name,
    read_batch_dim,
    read_batch_size,
    read_grad_scaler,
    read_loss_factor,
    read_loss_function,
    read_losses,
    read_micro_batch,
    read_optimizers,
    read_parameters,
    read_quantities,
    read_retention,
    read_step,
    read_subsample,
)
from cockpit.budget import Keeper
from cockpit.budget.clock import clock_of
from cockpit.coverage import Coverage, known, require_usable
from cockpit.doctor import (
    AttendedWriter,
    Doctor,
    Record,
    Rule,
    TrainingStopped,
    read_reactions,
    read_rules,
)
from cockpit.engine import Engine, Extended, InForward, Losses, Observation, Plan, Step
from cockpit.engine.between import Between
from cockpit.engine.distributed import Ranks, described, ranks_of
from cockpit.engine.plan import merged
from cockpit.errors import CockpitError, InvalidArgument, NotARunFile, Unsupported, warn
from cockpit.findings import Finding
from cockpit.forwarding import ForwardingWriter, Tracker, read_trackers
from cockpit.gradients import MEMORY_BUDGET
from cockpit.log import ParameterInfo, RunFile, RunWriter, SilentWriter
from cockpit.pace import Pace
from cockpit.quantities import Quantity
from cockpit.quantities.wiring import FirstAndWith, Wiring
from cockpit.recording import Recording
from cockpit.reports import RunReports
from cockpit.schedules import budget

logger = logging.getLogger("cockpit")

STATE_VERSION = 1
"""Of what `Cockpit.state_dict` returns."""

INFO = ("loss", "loss_factor", "individual_losses", "batch_size", "optimizer", "micro_batch")
"""Keys of `info` that are read here; all others are passed on to the quantities."""

NO_BUDGET = (
    "A budget cannot be kept on several processes: each of them would measure other times and choose other "
    "steps, and to agree they would have to meet at every step, tracked or not. Measure what the quantities "
    "cost with one process, cockpit.profile(...), and give them intervals, schedules.linear(interval)."
)

SUBSAMPLED_PROCESSES = (
    "subsample= draws from a batch that lies in one process as a whole, and not from one that is spread over "
    "several. Leave it out, and track less often, schedules.linear(interval), where tracking takes too long."
)

UNFORESEEN = (
    "Extensions came with a step at which nothing else is due, and its forward pass was not watched, so they "
    "have no results there. From now on every forward pass is watched; to have it so from the start, run an "
    "extension along in the first step."
)

SEVERAL_LOSSES_AND_BACKPACK = (
    "Several losses cannot be watched with the hooks of BackPACK, which know one backward pass: give "
    "the model itself, Cockpit(model, ...), track no quantity that needs BackPACK, or backpropagate "
    "the sum of the losses and give that as 'loss'."
)


class Cockpit(Recording):
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
    keeps a graph, or touches a gradient. A quantity that fails is reported once by a
    `CockpitWarning`, noted in the log as not checked, and never stops the training.

    Where several processes train a model in ``DistributedDataParallel``, each of them makes its cockpit
    with that model and runs the same loop; the values are those of the mini-batches of all processes
    together, in the order of their ranks. The first one writes the run file, the others write nothing.

    Args:
        params: What is trained: the model (best: nothing else is needed), or an iterable of
            parameters or of (name, parameter) pairs, whose model has been extended with
            ``backpack.extend``.
        quantities: What to track: quantities, or the label of a set, such as ``"economy"``; see
            `cockpit.configuration`.
        optimizer: The optimizer, or a list of them. Any kind will do. With it, updates are observed
            as soon as they have been made; without it, when the next step begins.
        log: Path of the run file. An earlier run of that name is kept under another one. Without
            it, the run is kept in a temporary file, for `get_output` and plots.
        resume: Continue the run file at `log`, if there is one; see `load_state_dict`.
        reduction: Whether the loss that is backpropagated is the ``"mean"`` or the ``"sum"`` over
            the samples. By itself the cockpit sees that from ``individual_losses``, and takes it to
            be a mean where these are missing.
        loss_function: The loss module with which the loss is computed, for quantities that need
            BackPACK (its exact diagonals, Kronecker factors): while such a quantity is tracked, the
            model and this module have BackPACK's hooks, and after `close` no more. Otherwise it is
            left alone.
        memory_budget: Bytes that dense pieces of individual gradients may take at a time.
        retention: How many of the last arrays (histograms, spectra) of each kind all stay in the run file.
            Of older ones every second stays, of still older ones every fourth, and so on, so that a long run
            takes little room; numbers all stay. Without it, all arrays do.
        trackers: Experiment trackers to forward everything to as well, such as
            `cockpit.integrations.tensorboard.TensorBoardTracker`.
        batch_dim: Dimension of the model's input, and of the activations, in which the samples lie, 0 or
            1. By itself the cockpit sees that from the number of samples, and asks where it cannot.
        audit: Check the individual gradients of a random half of the samples against their own
            losses, where ``individual_losses`` are a part of the loss. It takes one more backward
            pass, at the tracked steps 1, 2, 4, 8, ..., counted from 1, and what is wrong is refused
            by name from then on.
        subsample: Where a batch has more samples than this, so many are drawn from it without
            replacement, anew at every tracked step and never from the global random state, and the
            individual gradients are those of these samples. The mini-batch gradient, the losses and
            the curvature remain those of all; sums over the samples are estimated, without bias, from
            those drawn, and what has no such estimate (extremes, outliers, pairs of samples) is that
            of the samples drawn. For very large batches: time and memory of the statistics go with
            `subsample` instead of the batch. Your own transforms get the gradients of these samples. Where
            the batch comes in K backward passes, ``subsample // K`` of each, and the passes need to have
            equally many samples. Not with several processes.
        overhead: What tracking may take, as a share of the time that the training takes without it:
            0.05 for 5 %. The cockpit measures what its quantities cost, and tracks those that have no
            schedule of their own (``linear(1)``, where you ask for it, is one) as often as that allows; see
            `cockpit.schedules.budget`. What the others cost is taken from it as well.
        doctor: Whether to look for what is wrong with the training while it runs: True, or a list of
            `cockpit.doctor.Rule`; see `cockpit.doctor`. What is found is written to the run file and
            handed to the trackers, each finding once. How the training is put together is tracked in
            the first three steps, and where something else is; the rules read what else is tracked,
            best ``configuration("health")``.
        on_finding: What else to do with a finding: ``"warn"``, as unless told otherwise, ``"log"`` (to
            the logger ``"cockpit"``), ``"raise"`` or ``"stop"`` (raise `cockpit.doctor.TrainingStopped` at
            the end of the ``with`` block, after the backward pass), a function that takes the
            `cockpit.Finding`, or a list of these.
        strict: Raise, rather than note, what cannot be tracked of the model and what goes wrong
            while quantities are computed.
        seed: Of the random numbers that sampled statistics draw from a generator of their own.

    Raises:
        InvalidType: if an argument is of the wrong kind.
        InvalidArgument: if one has a value that cannot be used.
        CockpitError: if `strict`, and it can be seen that some parameter cannot be tracked; see
            `cockpit.inspect`.
    """

    def __init__(
        self,
        params: nn.Module | Iterable[nn.Parameter] | Iterable[tuple[str, nn.Parameter]],
        quantities: str | Iterable[Quantity] | None = None,
        *,
        optimizer: Any = None,
        log: str | os.PathLike[str] | None = None,
        reduction: str | None = None,
        loss_function: nn.Module | None = None,
        memory_budget: int = MEMORY_BUDGET,
        resume: bool = False,
        retention: int | None = None,
        trackers: Iterable[Tracker] = (),
        batch_dim: int | None = None,
        audit: bool = True,
        subsample: int | None = None,
        overhead: float | None = None,
        doctor: bool | Iterable[Rule] = False,
        on_finding: str
        | Callable[[Finding], Any]
        | Iterable[str | Callable[[Finding], Any]]
        | None = None,
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
        self._batch_dim = read_batch_dim(batch_dim)
        self._subsample = read_subsample(subsample)
        retention = read_retention(retention)
        self._extended: Extended | None = None
        self._closed = self._stopped = False
        self._last_entered = -1
        self._last_tracked = -1
        self._skipped = -1  # the last step that was not tracked
        self._running: int | None = None
        self._pace = Pace()
        self._looking: set[str] = set()  # quantities to which the forward pass matters
        self._dozes = True  # whether forward passes go unwatched after which nothing is due
        self._quantities = read_quantities(quantities)
        rules = read_rules(doctor)
        reactions = read_reactions(on_finding, rules)
        self._doctor: Doctor | None = None
        trackers = read_trackers(trackers)
        self._in_forward: dict[str, Quantity] = {}
        self._expected: int | None = None
        self._needs_start = False  # whether some quantity compares with the first step entered
        self._between: Between | None = None  # where some quantity looks at the losses of all steps
        self._strict = strict
        coverage = self._cover(optimizers)
        allowed = None if overhead is None else budget(overhead)
        self._ranks = ranks_of(params)
        if self._ranks is not None and self._subsample is not None:
            raise Unsupported(SUBSAMPLED_PROCESSES)
        self._writer = SilentWriter(log)
        if self._ranks is None or self._ranks.rank == 0:
            settings = (
                self._settings(optimizers, reduction, memory_budget, seed)
                | {"overhead": overhead, "subsample": self._subsample, "retention": retention}
                | {"coverage": None if coverage is None else coverage.record()}
            )
            infos = [
                ParameterInfo(name, tuple(p.shape), str(p.dtype).removeprefix("torch."))
                for name, p in named.items()
            ]
            about: dict[str, Any] = {
                "settings": settings,
                "parameters": infos,
                "resume": resume,
                "retention": retention,
            }
            if rules:
                record = Record(settings, infos, bounded=True)
                self._doctor = Doctor(record, rules, reactions)
                self._writer = AttendedWriter(log, attended=record, **about)
            else:
                self._writer = RunWriter(log, **about)
        if trackers and not isinstance(self._writer, SilentWriter):
            self._writer = ForwardingWriter(self._writer, trackers)
        self._reports = RunReports(self._writer, self._quantities, strict)
        clock = clock_of(next(iter(named.values())).device)
        self._budget = Keeper(clock, self._writer.note, allowed)
        if coverage is not None:
            self._reports.gaps(coverage)
        self._engine = Engine(
            named,
            self._model,
            memory_budget=memory_budget,
            reduction=reduction,
            seed=seed,
            reports=self._reports,
            ranks=self._ranks,
            audit=audit,
            batch_dim=self._batch_dim,
            subsample=self._subsample,
        )
        self._engine.updates.add(optimizers)
        try:
            for name in self._quantities:
                self._prepare(name)
            if rules and not any(isinstance(q, Wiring) for q in self._quantities.values()):
                self.add(Wiring(FirstAndWith(tuple(self._quantities.values()))))
        except BaseException:
            self.close()
            raise

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
    def overhead(self) -> float:
        """What tracking has taken so far, as a share of the time of the training without it; NaN if not known.

        It is measured where there is a budget, see `cockpit.schedules.budget`, and has what the ``with``
        blocks take at every step, tracked or not. On a CPU the time is the processor's, of the training's thread.
        """
        return self._budget.taken

    def add(self, quantity: Quantity) -> None:
        """Track one more quantity."""
        name = free_name(quantity, self._quantities)
        self._quantities[name] = quantity
        self._prepare(name)

    def _prepare(self, name: str) -> None:
        """Get ready for what a quantity needs beside the backward pass."""
        self._quantities[name] = self._budget.bind(name, self._quantities[name])
        if self._budget.active:
            self._begin_measuring()
        needs = self._quantities[name].needs()
        if any(isinstance(need, InForward) for need in needs):
            self._in_forward[name] = self._quantities[name]
            self._expect(self._expected)
        observations = [need for need in needs if isinstance(need, Observation)]
        self._needs_start |= any(need.from_start for need in observations)
        if self._between is None and any(need.between for need in observations):
            self._between = Between()
        kind = type(self._quantities[name])
        own_extensions = kind.extensions is not Quantity.extensions
        changing = own_extensions or kind.needs_at is not Quantity.needs_at
        if changing or not needs or any(need.forward for need in needs):
            self._looking.add(name)
        by_backpack = any(need.backpack for need in observations)
        wanted = (by_backpack or own_extensions) and self._extended is None
        if wanted and self._model is not None and self._loss_function is not None:
            self._extended = Extended(self._model, self._loss_function)
        recorder = self._engine.recorder
        if recorder is not None:
            recorder.rest(False)  # for what is added between two steps
            recorder.keeps_outputs |= any(need.outputs for need in observations)
            if any(need.reevaluates for need in observations):
                recorder.keep_random_states()

    def _begin_measuring(self) -> None:
        """Have the cockpit's own work timed, for the sake of a budget.

        Raises:
            Unsupported: on several processes.
        """
        if self._ranks is not None:
            raise Unsupported(NO_BUDGET)
        self._engine.observer = self._budget.observe
        self._engine.updates.around = self._budget.update
        self._engine.forward.around = self._budget.forward

    def _cover(self, optimizers: list[Any]) -> Coverage | None:
        """Return what is known of the model before it sees data."""
        if self._model is None:
            return None
        require_usable(self._model)
        coverage = known(self._model, optimizers)
        if self._strict and coverage.gaps:
            gaps = "\n".join(f"- {names}: {reason}" for names, reason in coverage.excuses())
            raise CockpitError(
                f"{len(coverage.gaps)} of {len(coverage.trained)} parameters of {coverage.model} "
                f"cannot be tracked:\n{gaps}\nWithout strict=True the others are."
            )
        return coverage

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
    ) -> AbstractContextManager[None]:
        """Return the context around the backward pass of one step.

        In the closure of an optimizer that evaluates it several times (L-BFGS), the first evaluation of
        a step is tracked, and the others pass; the cockpit has to know the optimizer.

        Args:
            global_step: Number of the step, counted from 0.
            extensions: Extensions of BackPACK to run along; their results stay on the parameters.
                All but `BatchGradTransforms` need a model that ``backpack.extend`` has extended.
            info: What is known of the step. ``loss`` (always): the tensor on which ``backward()``
                is called, or ``(loss_a, loss_b)`` where several are, in a sum or one after the
                other on one graph: each once, within the block, and the factor on the first is the
                unit of all. ``torch.autograd.grad(loss, parameters)`` will do, too.
                ``individual_losses``: the losses of the samples, `[N]`; with several losses one such
                tensor for each, or their sum. ``batch_size``:
                number of samples, where it cannot be seen from the two others or the model's input.
                ``optimizer``: here or at construction. ``micro_batch``: (k, K) where the batch
                comes in K backward passes, this being number k, counted from 0. The values are then
                those of the whole batch; until its last pass the inputs of the layers are kept.
                ``loss_factor``: a factor that is on ``loss`` already, where a framework has scaled
                or divided it, a number or a tensor with one element. A factor that comes later, in
                ``(loss / 4).backward()``, is seen. ``grad_scaler``: the ``torch.amp.GradScaler``,
                for the norm of the gradient; unscale and clip after the block.
                ``closure``: a function that computes the same loss anew, without its
                ``loss_factor``, for curvature that the graph of the loss does not give, or
                with ``max_samples``, of a slice of the mini-batch: ``def closure(samples=
                slice(None)): return loss_fn(model(x[samples]), y[samples])``. ``outputs``: what
                the loss is computed from, where that is not what the model returned last.
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
        if engine.updates.stepping and global_step == self._last_tracked:
            return False  # a closure, evaluated again within the optimizer's step
        number, passes = read_micro_batch(info.get("micro_batch"))
        if number > 0:
            return self._resume(global_step, number, passes, info)
        self._give_up_pause()
        self._last_entered = max(self._last_entered, global_step)
        if self._ranks is not None:
            self._ranks.compare(global_step, self._describe)
        if info.get("optimizer") is not None:
            engine.updates.add(read_optimizers(info["optimizer"]))
        if self._needs_start:
            engine.remember_start()
        if self._between is not None:
            self._between.hear(info.get("loss"), passes)
        due = due_at(self._quantities, global_step)
        if due and global_step <= self._last_tracked:
            raise InvalidArgument(
                f"Step {global_step} comes after step {self._last_tracked}, which was tracked "
                "already. "
                "Every tracked step needs a number of its own, and the numbers have to grow. For an "
                "optimizer that calls a closure several times, give it: Cockpit(..., optimizer=opt)."
            )
        continued = engine.continued(global_step)
        if extensions:
            self._dozes = False
            if engine.recorder is not None and engine.recorder.asleep:
                warn(UNFORESEEN)
        if not due and not continued and not extensions:
            if engine.recorder is not None:
                engine.recorder.take_forward()
            engine.forward.drop()
            self._skipped = global_step
            return False
        own = [e for q in due.values() for e in self._own_extensions(q, global_step)]
        needs = {name: engine.pending.needs_of(name, q, global_step) for name, q in due.items()}
        plan = Plan(due, needs, continued, (*own, *extensions))
        if plan.others and self._model is not None:
            self._check_extended(plan.others)
        plan.require(info, strict=self._strict)
        losses = self._read_losses(info)
        if losses.parts and (plan.others or self._model is None):
            raise InvalidArgument(SEVERAL_LOSSES_AND_BACKPACK)
        if self._budget.active:
            self._budget.begin(plan, bool(continued))
        loss = losses.plain
        step = Step(
            global_step,
            engine.parameters,
            None if loss is None else loss.detach().reshape(()),
            None if losses.individual is None else losses.individual.detach(),
            losses.size,
            {key: value for key, value in info.items() if key not in INFO},
            () if self._between is None else self._between.taken(needs),
        )
        if debug:
            logger.info(
                "step %d: %s", global_step, ", ".join(f"{n} for {q}" for n, q in plan.needs.items())
            )
        if plan.wants_gradients:
            self._reports.coupling(global_step, self._model)
            self._reports.changed(global_step, self._model, engine.parameters)
        kept = merged(extensions)[0]
        engine.enter(step, plan, losses, tuple(kept), passes)
        self._running = global_step
        return True

    def _describe(self, steps: range) -> dict[str, str]:
        """Return what has to be the same on all processes, by what it is."""
        shapes = ", ".join(f"{n} {list(p.shape)}" for n, p in self._engine.parameters.items())
        told = {"The parameters": shapes, "The quantities": ", ".join(self._quantities)}
        for name, quantity in self._quantities.items():
            told[f"The settings of {name}"] = described(quantity)
            due = []
            for step in steps:
                with suppress(Exception):  # a schedule may end; on entry it can say so
                    if quantity.is_due(step):
                        due.append(step)
            first = ", ".join(map(str, due[:8])) or "none"
            rest = f", ... ({len(due)} in all, sum {sum(due)})" if len(due) > 8 else ""
            told[f"The steps at which {name} is due"] = first + rest
        return told

    def _read_losses(self, info: Mapping[str, Any]) -> Losses:
        """Return the loss, the losses of the samples, and how many samples there are."""
        batch_size = read_batch_size(info.get("batch_size"))
        recorder = self._engine.recorder
        known = recorder.batch_sizes() if recorder else set()
        if recorder and self._batch_dim is None:
            known |= recorder.lengths()
        if batch_size is not None:
            known = {batch_size}
        loss, losses, parts, each = read_losses(info, known)
        if batch_size is None and losses is not None:
            batch_size = len(losses)
        factor = read_loss_factor(info.get("loss_factor"))
        read_grad_scaler(info.get("grad_scaler"))
        return Losses(loss, losses, batch_size or 0, factor, parts, each)

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
        self._engine.plan.require(info, strict=self._strict)
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
        self._stopped = False
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
        if self._doctor is not None:
            try:
                self._doctor.visit(self._writer.finding)
            except TrainingStopped:
                self._stopped = True
                raise

    def _leaving_word(self, error: BaseException | None = None) -> AbstractContextManager[None]:
        """Let other processes, if there are any, know of an error that was raised."""
        return nullcontext() if self._ranks is None else _leaving_word(self._ranks, error)

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

    def _doze(self, global_step: int, failed: bool) -> None:
        """Let the hooks on the model rest in a forward pass that matters to nothing that will be due."""
        recorder = self._engine.recorder
        if recorder is None:
            return
        if not failed:  # else the same step may come again
            self._pace.note(global_step)
        self._dozes = self._dozes and not self._engine.overslept
        coming = [] if failed or not self._dozes else self._pace.coming
        if not coming or self._engine.awaits_forward:
            recorder.rest(False)
            return
        due = {name for step in coming for name in may_be_due(self._quantities, step)}
        recorder.rest(due.isdisjoint(self._looking), counting=bool(due))

    # -- for scripts written for Cockpit 1.0 --------------------------------------------------------

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
            warn(
                f"Nothing was tracked at step {step}: quantities are computed while the gradients "
                f"are. Wrap the backward pass, with watch({step}, loss=loss, ...): loss.backward()."
            )

    # -- checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, to be saved beside the model's and the optimizer's state.

        Take it where these are taken: after the update, outside ``with watch(...)``. It holds tensors
        and plain data only, so that ``torch.load(..., weights_only=True)`` reads it. What was
        recorded so far is in the run file by then.

        Raises:
            CockpitError: within ``with watch(...)``, or between the micro-batches of a step.
        """
        pause = self._engine.pause
        if self._running is not None or pause is not None:
            raise CockpitError(
                f"Step {self._running if pause is None else pause[0]} is still open: take the state "
                "after its last with block, when the optimizer has stepped."
            )
        engine = self._engine.state_dict()
        return {
            "version": STATE_VERSION,
            "last_entered": self._last_entered,
            "last_tracked": self._last_tracked,
            "engine": engine,
            "reports": self._reports.state_dict(),
            "budget": self._budget.state_dict(),
            "log": self._writer.mark(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another cockpit stood, in the same run file.

        ::

            watch = Cockpit(model, quantities, optimizer=opt, log="runs/first.db", resume=True)
            watch.load_state_dict(checkpoint["cockpit"])

        What the run file has of later steps is dropped, since these come again: the log becomes that
        of a run that was never interrupted. Quantities that were not there before begin anew.

        Args:
            state: What `state_dict` returned.

        Raises:
            CockpitError: if this cockpit has tracked steps already.
            InvalidArgument: if the state is of another version.
        """
        if self._last_entered >= 0:
            raise CockpitError("load_state_dict comes before the first step.")
        if state.get("version") != STATE_VERSION:
            raise InvalidArgument(
                f"The state has version {state.get('version')!r}, and this cockpit reads "
                f"{STATE_VERSION}: it is none that Cockpit.state_dict() of this release returned."
            )
        if not self._writer.rewind(state["last_entered"], state["log"]):
            warn(
                f"{self.path} is not the run file of the checkpoint, so it has no rows from before "
                f"step {state['last_entered'] + 1}. To continue that file, give its path as log=... "
                "and resume=True."
            )
        if self._doctor is not None:
            self._writer.flush()
            # While the disk is full, there may be no file yet.
            with suppress(NotARunFile), RunFile(self._writer.path) as file:
                self._doctor.remember(file.findings())
        self._engine.load_state_dict(state["engine"], self._quantities)
        self._reports.load_state_dict(state["reports"])
        self._last_entered, self._last_tracked = state["last_entered"], state["last_tracked"]
        if "budget" in state:
            self._budget.load_state_dict(state["budget"], self._last_entered)
        self._expect(self._last_entered + 1)

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish the run file and take all hooks off the model and the optimizers. May be called twice."""
        if not self._closed:
            self._closed = True
            self._engine.close(settle=not self._stopped)
            self._budget.close()
            if self._extended is not None:
                self._extended.close()
            if self._doctor is not None:
                with suppress(TrainingStopped):  # there is nothing left to stop
                    self._doctor.visit(self._writer.finding, now=True)
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


@contextmanager
def _leaving_word(ranks: Ranks, error: BaseException | None) -> Iterator[None]:
    if error is not None:
        ranks.leave(error)
    try:
        yield
    except BaseException as raised:
        ranks.leave(raised)
        raise


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
        keeper = self._cockpit._budget
        if not keeper.active:
            return self._enter()
        with keeper.entry(self._arguments[0]):
            return self._enter()

    def _enter(self) -> None:
        with self._cockpit._leaving_word():
            self._tracked = self._cockpit._enter(*self._arguments)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        keeper = self._cockpit._budget
        if not keeper.active:
            return self._exit(error)
        with keeper.exit():
            return self._exit(error)

    def _exit(self, error: BaseException | None) -> None:
        failed = error is not None
        try:
            with self._cockpit._leaving_word(error):
                if self._tracked:
                    self._cockpit._exit(failed)
        finally:
            self._cockpit._budget.decide()
            self._cockpit._expect(None if failed else self._arguments[0] + 1)
            self._cockpit._doze(self._arguments[0], failed)
