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
from cockpit.engine.needs import AlongUpdate, InForward, Moment, Next, OfUpdate
from cockpit.engine.plan import Computation, Plan
from cockpit.engine.scale import LossScale
from cockpit.engine.step import Live, Missing, NotChecked, PerParameter, Step
from cockpit.engine.update import UpdateWatch
from cockpit.gradients import Batch, Call, Collector, HandleFeed, IndividualGradients, Recorder
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
    step: Step

    def next_needs(self) -> list[Next]:
        return [n for n in self.needs if isinstance(n, Next) and n not in self.step.values]


@dataclass
class _Running:
    """The step whose backward pass is under way."""

    step: Step
    plan: Plan
    collector: Collector
    kept: tuple[str, ...]  # functions of the user's, whose results stay on the parameters
    cleanup: ExitStack = field(default_factory=ExitStack)
    early: bool = False  # whether gradients reached a layer before they reached the loss


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
    ) -> None:
        self.parameters = dict(parameters)
        self._model = model
        self._names: dict[Tensor, str] = {p: name for name, p in self.parameters.items()}
        self._sizes = tuple(p.numel() for p in self.parameters.values())
        self._memory_budget, self._reduction, self._seed = memory_budget, reduction, seed
        self._on_results, self._on_untracked = on_results, on_untracked
        self.recorder = None if model is None else Recorder(model)
        self.forward = ForwardWatch(self.recorder)
        self.updates = UpdateWatch(self.parameters, self._observe_update)
        self.start: PerParameter | None = None
        self._carried: dict[Need, Any] = {}
        self._memories: dict[str, Any] = {}
        self._running: _Running | None = None
        self._open: list[_Open] = []
        self._waiting: dict[str, IndividualGradients] = {}
        self._waiting_step: Step | None = None
        self._update: PerParameter | None = None
        self._results: list[Result] = []
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
    ) -> None:
        """Get ready for the backward pass of a step."""
        step.start = self.start or {}
        step.carried = self._carried
        step.optimizers = self.updates.optimizers
        step.scale = LossScale(loss, individual_losses, self._reduction)
        running = _Running(step, plan, Collector(self._make_batch, self._reduce), kept)
        running.cleanup.callback(step.scale.close)
        self._running = running
        try:
            if loss is not None:
                outputs = None if self.recorder is None else self.recorder.take_outputs()
                step.live = Live(loss, individual_losses, self._model, outputs)
            self._take_forward(running)
            self._observe(Moment.ENTRY)
            step.live = None
            if plan.wants_gradients:
                self._listen(running)
            elif plan.others:
                running.cleanup.enter_context(backpack(*plan.others))
        except BaseException:
            self.abort()
            raise

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

    def _listen(self, running: _Running) -> None:
        extensions: Sequence[BackpropExtension] = running.plan.others
        if self.recorder is None:
            extensions = [HandleFeed(running.collector.add), *extensions]
        else:
            self.recorder.listen(running.collector.add)
            running.cleanup.callback(self.recorder.stop)
            for parameter in self.parameters.values():
                # Accumulating its gradient is the last thing that happens to a parameter in a
                # backward pass.
                if parameter.requires_grad:
                    hook = parameter.register_post_accumulate_grad_hook(running.collector.complete)
                    running.cleanup.callback(hook.remove)
        if extensions:
            running.cleanup.enter_context(backpack(*extensions))

    # -- during the backward pass -----------------------------------------------------------------

    def _make_batch(self, call: Call) -> Batch:
        assert self._running is not None
        step = self._running.step
        assert step.scale is not None
        self._infer_batch_size(step)
        if not step.batch_size:
            step.batch_size = len(call.input)
        self._running.early = not step.scale.seen
        return self._batch(step)

    def _infer_batch_size(self, step: Step) -> None:
        if step.batch_size or self.recorder is None:
            return
        sizes = (
            {self.recorder.batch_size} if self.recorder.batch_size else self.recorder.batch_sizes()
        )
        if len(sizes) == 1:
            step.batch_size = sizes.pop()

    def _batch(self, step: Step) -> Batch:
        assert step.scale is not None
        return Batch(
            step.batch_size,
            step.scale.of_samples(step.batch_size),
            self._memory_budget,
            self._seed + step.global_step,
            self._sizes,
        )

    def _reduce(self, parameter: nn.Parameter, handle: IndividualGradients) -> None:
        """Meet all needs of one parameter's individual gradients, and let go of these."""
        name = self._names.get(parameter)
        if name is None or self._running is None:
            return
        plan, values = self._running.plan, self._running.step.values
        handle.name = name
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
        running, self._running = self._running, None
        self._waiting.clear()
        if running is not None:
            running.cleanup.close()

    def exit(self) -> None:
        """Finish a step after its backward pass."""
        running = self._running
        assert running is not None
        step, plan = running.step, running.plan
        running.cleanup.close()
        self._infer_batch_size(step)
        if plan.wants_gradients:
            self._finish_gradients(running)
        self._observe(Moment.EXIT)
        self._running = None
        for entry in self._open:
            for need in entry.next_needs():
                missing = Missing("the next step did not deliver what it needs")
                entry.step.values[need] = step.values.get(need.need, missing)
        self._open += [
            _Open(name, quantity, plan.needs_of[name], step) for name, quantity in plan.due.items()
        ]
        if plan.along_update or plan.of_update:
            self._waiting_step = step
            self.updates.begin()
        else:
            self._update = None
        self._compute()
        self._drop_saved(plan, running.kept)
        self._flush()

    def _finish_gradients(self, running: _Running) -> None:
        step, plan, collector = running.step, running.plan, running.collector
        assert step.scale is not None
        known = collector.batch or (self._batch(step) if step.batch_size else None)
        tracked = [p for p in self.parameters.values() if p.requires_grad]
        collector.finish(tracked, known)
        reason = self._fault(running)
        for parameter, why in collector.refused.items():
            if parameter in self._names:
                self._on_untracked(step.global_step, self._names[parameter], why)
        for need in [*plan.transforms, *plan.along_previous]:
            value = step.values.get(need)
            if reason is not None:
                step.values[need] = Missing(reason)
            elif not value:
                step.values[need] = Missing("no parameter has individual gradients in this step")
            elif not isinstance(value, Missing):
                ordered = ((name, value[name]) for name in self.parameters if name in value)
                step.values[need] = PerParameter(ordered)
        if reason is not None:
            self._waiting.clear()
            step.values |= {need: Missing(reason) for need in plan.along_update}

    def _fault(self, running: _Running) -> str | None:
        """Return why the individual gradients cannot be trusted as a whole, if so."""
        scale, collector = running.step.scale, running.collector
        assert scale is not None
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
                    memory = self._memories.get(entry.name)
                    self._memories[entry.name] = entry.quantity.remember(entry.step, memory)
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
