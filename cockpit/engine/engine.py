"""One backward pass for all needs: the phases of a tracked step, and what is carried from one step to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from backpack import backpack
from backpack.extensions.backprop_extension import BackpropExtension
from torch import Tensor, nn

from cockpit.engine.forward import ForwardWatch
from cockpit.engine.live import Live, Pass
from cockpit.engine.needs import AlongUpdate, InForward, Moment, Next, OfUpdate
from cockpit.engine.plan import Computation, Plan
from cockpit.engine.scale import AccumulatedScale, LossScale
from cockpit.engine.step import Missing, NotChecked, PerParameter, Step
from cockpit.engine.update import UpdateWatch
from cockpit.errors import Unsupported
from cockpit.gradients import (
    Batch,
    Call,
    Collector,
    HandleFeed,
    IndividualGradients,
    Recorder,
    joint,
    plain_arithmetic,
)
from cockpit.transforms import Need

SAVEFIELD = "grad_batch_transforms"


@dataclass(frozen=True)
class Result:
    """The value of a quantity at a step, or why there is none."""

    global_step: int
    quantity: str
    value: Any


@dataclass
class _Open:
    """A quantity that waits for needs that have not been met yet."""

    name: str
    quantity: Computation
    needs: tuple[Need, ...]
    memory: Any
    step: Step

    def next_needs(self) -> list[Next]:
        return [n for n in self.needs if isinstance(n, Next) and n not in self.step.values]


@dataclass
class _Part:
    """One of the backward passes of a batch that comes in several ones."""

    scale: LossScale
    size: int
    individual_losses: Tensor | None
    handles: dict[str, IndividualGradients] = field(default_factory=dict)


@dataclass
class _Running:
    """The step whose backward pass is under way."""

    step: Step
    plan: Plan
    collector: Collector
    kept: tuple[str, ...]  # functions of the user's, whose results stay on the parameters
    scale: LossScale = field(default_factory=lambda: LossScale(None, None))  # of this pass
    cleanup: ExitStack = field(default_factory=ExitStack)
    early: bool = False  # whether gradients reached a layer before they reached the loss
    parts: list[_Part] = field(default_factory=list)  # of a batch that comes in several passes
    remaining: int = 0  # how many passes are still to come
    fault: str | None = None  # why the individual gradients cannot be trusted as a whole
    refused: set[str] = field(default_factory=set)  # parameters without individual gradients


class Engine:
    """Meets the needs of quantities step by step.

    Args:
        parameters: The tracked parameters by name.
        model: The model they belong to. Without it, BackPACK's hooks deliver what is needed: the
            user has extended it.
        memory_budget: Bytes that dense pieces of individual gradients may take.
        reduction: What the user says of the loss; see `LossScale`.
        seed: Of the random numbers that are drawn.
        on_untracked: Called with the name of a parameter whose individual gradients cannot be had,
            and the reason.
        on_mismatch: Called with the name of a parameter whose individual gradients do not add up to
            its gradient.
        on_doubt: Called with the ratio of the loss to the mean of the samples' losses, where it is
            neither that of a mean nor that of a sum.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        model: nn.Module | None,
        *,
        memory_budget: int,
        reduction: str | None,
        seed: int,
        on_results: Callable[[list[Result]], None],
        on_untracked: Callable[[int, str, str], None],
        on_mismatch: Callable[[int, str], None],
        on_doubt: Callable[[int, float], None],
    ) -> None:
        self.parameters = dict(parameters)
        self._model = model
        self._names: dict[Tensor, str] = {p: name for name, p in self.parameters.items()}
        self._sizes = tuple(p.numel() for p in self.parameters.values())
        self._memory_budget, self._reduction, self._seed = memory_budget, reduction, seed
        self._on_results, self._on_untracked = on_results, on_untracked
        self._on_mismatch, self._on_doubt = on_mismatch, on_doubt
        self.recorder = None if model is None else Recorder(model)
        self.forward = ForwardWatch(self.recorder)
        self.updates = UpdateWatch(self.parameters, self._observe_update)
        self.start: PerParameter | None = None
        self._carried: dict[Need, Any] = {}
        self._memories: dict[str, Any] = {}
        self._running: _Running | None = None
        self._paused: _Running | None = None
        self._open: list[_Open] = []
        self._waiting: dict[str, IndividualGradients] = {}
        self._waiting_step: Step | None = None
        self._update: PerParameter | None = None
        self._results: list[Result] = []
        self._unchecked = set(self.parameters)  # whose individual gradients were not summed yet
        self._reduction_checked = False
        self._arriving: dict[str, Tensor] = {}
        self._refused: set[str] = set()  # modules that a quantity cannot have, once noted

    # -- before the backward pass -----------------------------------------------------------------

    def remember_start(self) -> None:
        """Take the parameters as the start that distances are measured from, unless there is one."""
        if self.start is None:
            self.start = PerParameter(
                (name, p.detach().clone()) for name, p in self.parameters.items()
            )

    def continued(self, global_step: int) -> dict[Need, str]:
        """Settle what is pending from earlier steps, and return what these need of this one."""
        if not self._open and not self.updates.pending:
            return {}
        self.updates.settle()
        needs: dict[Need, str] = {}
        for entry in list(self._open):
            if entry.step.global_step == global_step - 1:
                needs |= {
                    n.need: f"{entry.name} of step {global_step - 1}" for n in entry.next_needs()
                }
            else:
                self._fail(
                    entry, f"step {entry.step.global_step + 1} did not follow, but {global_step}"
                )
        self._flush()
        return needs

    def needs_of(self, name: str, quantity: Computation, global_step: int) -> tuple[Need, ...]:
        """Return what a quantity needs at a step, given what it remembers."""
        return quantity.needs_at(global_step, self._memories.get(name))

    def expect(self, due: Mapping[str, Computation], global_step: int | None) -> None:
        """Look at the forward pass that comes for what is due at the step expected next.

        Args:
            due: The quantities.
            global_step: Number of that step; None where any may come.
        """
        if global_step is None:
            needs = [n for name, q in due.items() for n in self.needs_of(name, q, 0)]
            why = "nothing was due then"
        else:
            needs = [n for name, q in due.items() for n in self.needs_of(name, q, global_step)]
            why = f"step {global_step} was expected to be next, and this was not due then"
        self.forward.expect((need for need in needs if isinstance(need, InForward)), why)

    def enter(
        self,
        step: Step,
        plan: Plan,
        loss: Tensor | None,
        individual_losses: Tensor | None,
        kept: tuple[str, ...] = (),
        passes: int = 1,
    ) -> None:
        """Get ready for the backward pass of a step, the first one if there are several."""
        step.start = self.start or {}
        step.carried = self._carried
        step.optimizers = self.updates.optimizers
        running = _Running(step, plan, Collector(self._make_batch, self._reduce), kept)
        running.remaining = passes - 1
        self._running = running
        try:
            if loss is not None:
                step.live = self._live(step, loss, individual_losses)
            if self.recorder is not None:
                self.recorder.batch_size = None  # of an earlier step
            self._take_forward(running)
            with backpack(retain_graph=True):  # its hooks would drop what the user's pass needs
                self._observe(Moment.ENTRY)
            step.live = None
            self._begin_pass(running, loss, individual_losses, passes > 1)
        except BaseException:
            self.abort()
            raise

    def resume(
        self, loss: Tensor | None, individual_losses: Tensor | None, batch_size: int
    ) -> None:
        """Get ready for a further backward pass of the step that is under way."""
        running = self._paused
        assert running is not None
        self._running, self._paused = running, None
        running.remaining -= 1
        running.collector = Collector(self._make_batch, self._reduce)
        running.step.batch_size = batch_size
        if self.recorder is not None:
            self.recorder.take_outputs()
        self._begin_pass(running, loss, individual_losses, True)

    def _begin_pass(
        self,
        running: _Running,
        loss: Tensor | None,
        individual_losses: Tensor | None,
        is_part: bool,
    ) -> None:
        scale = LossScale(loss, individual_losses, self._reduction)
        running.step.scale = running.scale = scale
        running.cleanup.callback(scale.close)
        if is_part:
            losses = None if individual_losses is None else individual_losses.detach()
            running.parts.append(_Part(scale, 0, losses))
        if running.plan.wants_gradients:
            self._listen(running)
        elif running.plan.others:
            running.cleanup.enter_context(backpack(*running.plan.others))

    def _take_forward(self, running: _Running) -> None:
        step, plan = running.step, running.plan
        values, refused = self.forward.take(plan.in_forward)
        step.values |= values
        for need, reasons in refused.items():
            for module, reason in reasons.items():
                subject = f"{plan.needs[need]}/{module}"
                if subject not in self._refused:
                    self._refused.add(subject)
                    missing = Missing(reason, usual=True)
                    self._results.append(Result(step.global_step, subject, missing))

    def _live(self, step: Step, loss: Tensor, individual_losses: Tensor | None) -> Live:
        outputs = None if self.recorder is None else self.recorder.take_outputs()
        sizes = set() if self.recorder is None else self.recorder.batch_sizes()
        if not step.batch_size and len(sizes) == 1:
            step.batch_size = sizes.pop()
        return Live(
            loss,
            individual_losses,
            self._model,
            step.info.get("outputs", outputs),
            self.parameters,
            step.batch_size,
            self._reduction,
            self._seed + step.global_step,
            partial(self._reduced, step),
        )

    def _reduced(
        self, step: Step, run: Pass, reduction: Callable[[IndividualGradients], Any]
    ) -> PerParameter:
        """Run a backward pass of ours, and reduce the individual gradients that it brings, as they are."""
        values = PerParameter()

        def make_batch(call: Call) -> Batch:
            size, seed = step.batch_size or len(call.input), self._seed + step.global_step
            return Batch(size, 1.0, self._memory_budget, seed, self._sizes)

        def keep(parameter: nn.Parameter, handle: IndividualGradients) -> None:
            if parameter in self._names:
                values[self._names[parameter]] = reduction(handle)
                handle.release()

        collector = Collector(make_batch, keep)
        if self.recorder is None:
            with backpack(HandleFeed(collector.add), retain_graph=True):
                arrived = run()
        else:
            self.recorder.listen(collector.add)
            try:
                arrived = run()
            finally:
                self.recorder.stop()
        for tracked, gradient in zip(self.parameters.values(), arrived, strict=True):
            if gradient is not None:
                collector.complete(tracked)
        if collector.batch is None:
            raise NotChecked(
                "no layer reported its gradient: give the model as Cockpit(model, ...), or extend it "
                "with backpack.extend(model) before the forward pass"
            )
        collector.finish(self.parameters.values())
        for parameter, why in collector.refused.items():
            if parameter in self._names:
                self._on_untracked(step.global_step, self._names[parameter], why)
        return PerParameter((name, values[name]) for name in self.parameters if name in values)

    def _listen(self, running: _Running) -> None:
        extensions: Sequence[BackpropExtension] = running.plan.others
        collector, cleanup = running.collector, running.cleanup
        # Accumulating its gradient is the last thing that happens to a parameter in a backward pass
        # (except that BackPACK's hooks may come later).
        accumulated = collector.complete
        if self.recorder is None:
            extensions = [HandleFeed(collector.add), *extensions]
            accumulated = collector.note_accumulated
        else:
            self.recorder.listen(collector.add)
            cleanup.callback(self.recorder.stop)
        for name, parameter in self.parameters.items():
            if not parameter.requires_grad:
                continue
            cleanup.callback(parameter.register_post_accumulate_grad_hook(accumulated).remove)
            if name in self._unchecked:
                self._unchecked.discard(name)
                see = partial(self._arriving.__setitem__, name)
                cleanup.callback(parameter.register_hook(see).remove)
        if extensions:
            cleanup.enter_context(backpack(*extensions))

    # -- during the backward pass -----------------------------------------------------------------

    def _make_batch(self, call: Call) -> Batch:
        assert self._running is not None
        step = self._running.step
        self._infer_batch_size(step)
        if not step.batch_size:
            step.batch_size = len(call.input)
        self._running.early = not self._running.scale.seen
        return self._batch(self._running)

    def _seed_of(self, step: Step) -> int:
        return self._seed + step.global_step

    def _infer_batch_size(self, step: Step) -> None:
        if step.batch_size or self.recorder is None:
            return
        sizes = (
            {self.recorder.batch_size} if self.recorder.batch_size else self.recorder.batch_sizes()
        )
        if len(sizes) == 1:
            step.batch_size = sizes.pop()

    def _batch(self, running: _Running) -> Batch:
        step = running.step
        return Batch(
            step.batch_size,
            running.scale.of_samples(step.batch_size),
            self._memory_budget,
            self._seed_of(step),
            self._sizes,
        )

    def _reduce(self, parameter: nn.Parameter, handle: IndividualGradients) -> None:
        """Meet all needs of one parameter's individual gradients, and let go of these."""
        name = self._names.get(parameter)
        if name is None or self._running is None:
            return
        handle.name = name
        if name in self._arriving:
            self._check_sum(handle, self._arriving.pop(name))
        if self._running.parts:
            handle.release()
            self._running.parts[-1].handles[name] = handle
        else:
            self._meet_all(parameter, handle)

    def _check_sum(self, handle: IndividualGradients, arrived: Tensor) -> None:
        """Compare the individual gradients with the gradient, the first time that a parameter is tracked."""
        if arrived.is_sparse or handle.batch.size == 0:
            return
        gradient = arrived.to(handle.dtype) * (handle.batch.scale / handle.batch.size)
        difference = torch.linalg.vector_norm(handle.mean() - gradient)
        digits = torch.finfo(arrived.dtype).eps
        allowed = 10 * digits**0.5 * torch.linalg.vector_norm(gradient)
        allowed = allowed + 1e3 * digits * handle.square_norms().mean().sqrt()
        if bool(difference > allowed):
            assert self._running is not None
            self._on_mismatch(self._running.step.global_step, handle.name)

    def _meet_all(self, parameter: Tensor, handle: IndividualGradients) -> None:
        assert self._running is not None
        name = handle.name
        plan, values = self._running.plan, self._running.step.values
        for transform in plan.transforms:
            self._meet(values, transform, name, partial(handle.apply, transform))
        for need in plan.along_previous:
            if self._update is None:
                values[need] = Missing("the update that led here was not observed")
            else:
                self._meet(values, need, name, partial(need.project, handle, self._update[name]))
        if plan.functions:
            setattr(parameter, SAVEFIELD, {n: f(handle) for n, f in plan.functions.items()})
        handle.release()
        if plan.along_update:
            self._waiting[name] = handle

    @staticmethod
    def _meet(values: dict[Need, Any], need: Need, name: str, function: Callable[[], Any]) -> None:
        of_all = values.setdefault(need, PerParameter())
        if isinstance(of_all, Missing):
            return
        try:
            of_all[name] = function()
        except Exception as error:
            values[need] = Missing(f"{need} of {name}: {type(error).__name__}: {error}")

    # -- after the backward pass ------------------------------------------------------------------

    def abort(self) -> None:
        """Leave a step without its results: something went wrong in the user's code."""
        running, self._running, self._paused = self._running, None, None
        self._waiting.clear()
        self._arriving.clear()
        if running is not None:
            running.cleanup.close()

    @property
    def pause(self) -> tuple[int, int, int] | None:
        """The step of which further backward passes are to come, the next one's number, and their count."""
        if self._paused is None:
            return None
        done = len(self._paused.parts)
        return self._paused.step.global_step, done, done + self._paused.remaining

    @property
    def plan(self) -> Plan:
        """The plan of the step of which further backward passes are to come."""
        assert self._paused is not None
        return self._paused.plan

    def exit(self) -> bool:
        """Finish a backward pass; return whether it was the last one of its step."""
        running = self._running
        assert running is not None
        step, plan = running.step, running.plan
        running.cleanup.close()
        self._infer_batch_size(step)
        if plan.wants_gradients:
            self._finish_pass(running)
        self._arriving.clear()
        if running.parts:
            running.parts[-1].size = step.batch_size
            if running.remaining:
                self._running, self._paused = None, running
                return False
            self._join(running)
        self._put_in_order(running)
        self._observe(Moment.EXIT)
        self._running = None
        for entry in self._open:
            for need in entry.next_needs():
                missing = Missing("the next step did not deliver what it needs")
                entry.step.values[need] = step.values.get(need.need, missing)
        self._open += [
            _Open(name, quantity, plan.needs_of[name], self._memories.get(name), step)
            for name, quantity in plan.due.items()
        ]
        if plan.along_update or plan.of_update:
            self._waiting_step = step
            self.updates.begin()
        else:
            self._update = None
        self._compute()
        self._drop_saved(plan, running.kept)
        self._flush()
        return True

    def _finish_pass(self, running: _Running) -> None:
        """Take what no layer reported in time, and note what cannot be had."""
        step, collector = running.step, running.collector
        known = collector.batch or (self._batch(running) if step.batch_size else None)
        collector.finish([p for p in self.parameters.values() if p.requires_grad], known)
        running.fault = running.fault or self._fault(running)
        if running.fault is not None:
            return
        if not self._reduction_checked:
            self._reduction_checked = True
            times = running.scale.doubt(step.batch_size)
            if times is not None:
                self._on_doubt(step.global_step, times)
        for parameter, why in collector.refused.items():
            name = self._names.get(parameter)
            if name is not None:
                running.refused.add(name)
                self._on_untracked(step.global_step, name, why)

    def _join(self, running: _Running) -> None:
        """Put the parts of a batch that came in several passes together."""
        step, parts = running.step, running.parts
        scale = AccumulatedScale([(part.scale, part.size or 1) for part in parts])
        step.scale, step.loss = scale, scale.loss()
        step.batch_size = sum(part.size for part in parts)
        losses = [part.individual_losses for part in parts if part.individual_losses is not None]
        step.individual_losses = torch.cat(losses) if len(losses) == len(parts) else None
        batch = Batch(step.batch_size, 1.0, self._memory_budget, self._seed_of(step), self._sizes)
        factors = scale.factors()
        for name, parameter in self.parameters.items():
            handles = [part.handles[name] for part in parts if name in part.handles]
            if len(handles) == len(parts):
                with plain_arithmetic(parameter.device):
                    self._meet_all(parameter, joint(batch, handles, factors))

    def _put_in_order(self, running: _Running) -> None:
        """Give the values that were met parameter by parameter the order of the model."""
        step, plan = running.step, running.plan
        for name in running.refused:
            self._waiting.pop(name, None)
        for need in [*plan.transforms, *plan.along_previous]:
            value = step.values.get(need)
            if running.fault is not None:
                step.values[need] = Missing(running.fault)
            elif isinstance(value, Missing):
                continue
            else:
                step.values[need] = PerParameter(
                    (name, value[name])
                    for name in self.parameters
                    if value and name in value and name not in running.refused
                ) or Missing("no parameter has individual gradients in this step")
        if running.fault is not None:
            self._waiting.clear()
            step.values |= {need: Missing(running.fault) for need in plan.along_update}

    def _fault(self, running: _Running) -> str | None:
        """Return why the individual gradients cannot be trusted as a whole, if so."""
        scale, collector = running.scale, running.collector
        if collector.batch is None and self.recorder is None:
            return (
                "no layer reported to BackPACK: the cockpit was given bare parameters, and then "
                "the model has to be "
                "extended with backpack.extend(model) before the forward pass, or better, given as "
                "Cockpit(model, ...)"
            )
        if collector.batch is not None and not scale.seen:
            return (
                "the tensor given as 'loss' took no part in the backward pass; give the one on "
                "which backward() is "
                "called"
            )
        if running.early and scale.factor is not None and float(scale.factor) != 1.0:
            return (
                "the gradient reached a layer before it reached the tensor given as 'loss', so the "
                "factor on it was "
                "not known in time; give the loss on which backward() is called"
            )
        return None

    def _observe(self, moment: Moment) -> None:
        assert self._running is not None
        step = self._running.step
        with torch.no_grad():
            for need in self._running.plan.observations(moment):
                step.values[need] = self._value(need, partial(need.observe, step))

    @staticmethod
    def _value(need: Need, observe: Callable[[], Any]) -> Any:
        try:
            return observe()
        except NotChecked as error:
            return Missing(str(error), error.usual)
        except Unsupported as error:
            return Missing(str(error))
        except Exception as error:
            return Missing(f"{need}: {type(error).__name__}: {error}")

    def _drop_saved(self, plan: Plan, kept: tuple[str, ...]) -> None:
        if not plan.functions:
            return
        for parameter in self.parameters.values():
            saved = getattr(parameter, SAVEFIELD, None)
            if saved is not None and kept:
                setattr(parameter, SAVEFIELD, {name: saved[name] for name in kept})
            elif saved is not None:
                delattr(parameter, SAVEFIELD)

    # -- after the update -------------------------------------------------------------------------

    def _observe_update(self, update: PerParameter, at_optimizer_step: bool) -> None:
        step, self._waiting_step = self._waiting_step, None
        handles, self._waiting = self._waiting, {}
        if step is None:
            return
        step.at_optimizer_step = at_optimizer_step
        needs = {need for entry in self._open if entry.step is step for need in entry.needs}
        with torch.no_grad():
            for need in needs:
                if need in step.values:
                    continue
                if isinstance(need, AlongUpdate):
                    step.values[need] = self._project(need, handles, update)
                elif isinstance(need, OfUpdate):
                    step.values[need] = self._value(need, partial(need.observe, step, update))
        self._compute()
        self._update = update if self._open else None
        self._flush()

    def _project(
        self, need: AlongUpdate, handles: Mapping[str, IndividualGradients], update: PerParameter
    ) -> Any:
        if not handles:
            return Missing("no parameter has individual gradients in this step")
        values: dict[Need, Any] = {}
        for name in self.parameters:
            if name not in handles:
                continue
            handle = handles[name]
            if not handle.intact:
                return Missing(
                    f"the input of the layer of {name} was modified in place before the update was "
                    "observed"
                )
            self._meet(values, need, name, partial(need.project, handle, update[name]))
            handle.release()
        return values[need]

    # -- results
    #
    # -----------------------------------------------------------------------------------------------------

    def _compute(self) -> None:
        """Compute every open quantity whose needs are met."""
        with torch.no_grad():
            for entry in list(self._open):
                if not entry.step.has(entry.needs):
                    continue
                try:
                    entry.step.memory = entry.memory
                    self._memories[entry.name] = entry.quantity.remember(entry.step)
                    value = entry.quantity.compute(entry.step)
                except NotChecked as error:
                    self._fail(entry, str(error), usual=error.usual)
                except Exception as error:
                    self._fail(entry, f"{type(error).__name__}: {error}")
                else:
                    self._open.remove(entry)
                    self._results.append(Result(entry.step.global_step, entry.name, value))

    def _fail(self, entry: _Open, reason: str, *, usual: bool = False) -> None:
        self._open.remove(entry)
        missing = Missing(reason, usual)
        self._results.append(Result(entry.step.global_step, entry.name, missing))

    def _flush(self) -> None:
        results, self._results = self._results, []
        if results:
            self._on_results(results)

    def close(self) -> None:
        """Settle what can be settled, report the rest as not checked, and take all hooks off."""
        self.abort()
        self.updates.settle()
        for entry in list(self._open):
            self._fail(entry, "the run ended before the next step", usual=True)
        self._flush()
        self.updates.close()
        if self.recorder is not None:
            self.recorder.close()
