"""The phases of a tracked step, and what is carried from one step to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from backpack import backpack
from torch import Tensor, nn

from cockpit.engine.forward import ForwardWatch
from cockpit.engine.gathering import Gathered, Gathering
from cockpit.engine.live import Live
from cockpit.engine.needs import AlongUpdate, InForward, Moment, Next, OfUpdate
from cockpit.engine.plan import Computation, Plan
from cockpit.engine.reports import Reports, Result
from cockpit.engine.scale import AccumulatedScale, LossScale
from cockpit.engine.step import Missing, NotChecked, PerParameter, Step
from cockpit.engine.update import UpdateWatch
from cockpit.errors import Unsupported
from cockpit.gradients import IndividualGradients, Recorder, joint, plain_arithmetic
from cockpit.transforms import Need

SAVEFIELD = "grad_batch_transforms"

Losses = tuple[Tensor | None, Tensor | None, int]
"""The loss and the losses of the samples, in their graph, and how many samples there are (0: not known)."""


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
class _Running:
    """The step whose backward passes are under way."""

    step: Step
    plan: Plan
    kept: tuple[str, ...]  # functions of the user's, whose results stay on the parameters
    passes: int  # how many backward passes make up the step
    done: list[Gathered] = field(default_factory=list)  # those so far, with the present one

    @property
    def fault(self) -> str | None:
        """Why the individual gradients cannot be trusted as a whole, if so."""
        return next((g.fault for g in self.done if g.fault is not None), None)

    @property
    def refused(self) -> set[str]:
        """Parameters without individual gradients."""
        return set().union(*(g.refused for g in self.done))


class Engine:
    """Meets the needs of quantities step by step.

    Args:
        parameters: The tracked parameters by name.
        model: The model they belong to. Without it, BackPACK's hooks deliver what is needed: the
            user has extended it.
        memory_budget: Bytes that dense pieces of individual gradients may take.
        reduction: What the user says of the loss; see `LossScale`.
        seed: Of the random numbers that are drawn.
        reports: Takes the results.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        model: nn.Module | None,
        *,
        memory_budget: int,
        reduction: str | None,
        seed: int,
        reports: Reports,
    ) -> None:
        self.parameters = dict(parameters)
        self._model, self._reduction, self._reports = model, reduction, reports
        self.recorder = None if model is None else Recorder(model)
        self._gathering = Gathering(self.parameters, self.recorder, memory_budget, seed, reports)
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
            before = entry.step.global_step
            if before == global_step - 1:
                needs |= {n.need: f"{entry.name} of step {before}" for n in entry.next_needs()}
            else:
                self._fail(entry, f"step {before + 1} did not follow, but {global_step}")
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
        needs = [n for name, q in due.items() for n in self.needs_of(name, q, global_step or 0)]
        why = "nothing was due then"
        if global_step is not None:
            why = f"step {global_step} was expected to be next, and this was not due then"
        self.forward.expect((need for need in needs if isinstance(need, InForward)), why)

    def enter(
        self, step: Step, plan: Plan, losses: Losses, kept: tuple[str, ...] = (), passes: int = 1
    ) -> None:
        """Get ready for the backward pass of a step, the first one if there are several."""
        step.start = self.start or {}
        step.carried = self._carried
        step.optimizers = self.updates.optimizers
        running = self._running = _Running(step, plan, kept, passes)
        try:
            loss, individual, size = losses
            if loss is not None:
                step.live = self._live(step, loss, individual, size)
            if self.recorder is not None:
                self.recorder.batch_size = None  # of an earlier step
            self._take_forward(running)
            with backpack(retain_graph=True):  # its hooks would drop what the user's pass needs
                self._observe(Moment.ENTRY)
            step.live = None
            self._begin_pass(running, *losses)
        except BaseException:
            self.abort()
            raise

    def resume(self, losses: Losses) -> None:
        """Get ready for a further backward pass of the step that is under way."""
        running = self._paused
        assert running is not None
        self._running, self._paused = running, None
        if self.recorder is not None:
            self.recorder.take_outputs()
        self._begin_pass(running, *losses)

    def _begin_pass(
        self, running: _Running, loss: Tensor | None, individual: Tensor | None, size: int
    ) -> None:
        scale = LossScale(loss, individual, self._reduction)
        gathered = Gathered(running.step.global_step, scale, size)
        running.step.scale = scale
        running.done.append(gathered)
        deliver = None
        if running.plan.wants_gradients:
            deliver = self._meet_all if running.passes == 1 else partial(_keep, gathered)
        self._gathering.begin(gathered, running.plan.others, deliver)

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

    def _live(self, step: Step, loss: Tensor, individual: Tensor | None, size: int) -> Live:
        outputs = None if self.recorder is None else self.recorder.take_outputs()
        sizes = set() if self.recorder is None else self.recorder.batch_sizes()
        if not size and len(sizes) == 1:
            size = sizes.pop()
        return Live(
            loss,
            individual,
            self._model,
            step.info.get("outputs", outputs),
            self.parameters,
            size,
            self._reduction,
            self._gathering.seed_of(step.global_step),
            step.info.get("closure"),
            partial(self._gathering.reduced, step.global_step, size),
        )

    # -- during the backward pass -----------------------------------------------------------------

    def _meet_all(self, handle: IndividualGradients) -> None:
        """Meet all needs of one parameter's individual gradients, and let go of these."""
        assert self._running is not None
        name, plan, values = handle.name, self._running.plan, self._running.step.values
        for transform in plan.transforms:
            self._meet(values, transform, name, partial(handle.apply, transform))
        for need in plan.along_previous:
            if self._update is None:
                values[need] = Missing("the update that led here was not observed")
            else:
                self._meet(values, need, name, partial(need.project, handle, self._update[name]))
        if plan.functions:
            results = {n: function(handle) for n, function in plan.functions.items()}
            setattr(handle.parameter, SAVEFIELD, results)
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
        for gathered in running.done if running is not None else ():
            gathered.cleanup.close()

    @property
    def pause(self) -> tuple[int, int, int] | None:
        """The step of which further passes are to come, the next one's number, and their count."""
        if self._paused is None:
            return None
        return self._paused.step.global_step, len(self._paused.done), self._paused.passes

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
        self._gathering.finish(running.done[-1])
        if len(running.done) < running.passes:
            self._running, self._paused = None, running
            return False
        step.batch_size = sum(gathered.batch_size for gathered in running.done)
        if running.passes > 1:
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

    def _join(self, running: _Running) -> None:
        """Put the parts of a batch that came in several passes together."""
        step, parts = running.step, running.done
        scale = AccumulatedScale([(part.scale, part.batch_size or 1) for part in parts])
        step.scale, step.loss = scale, scale.loss()
        losses = [part.scale.individual for part in parts if part.scale.individual is not None]
        step.individual_losses = torch.cat(losses) if len(losses) == len(parts) else None
        batch, factors = self._gathering.batch(step.global_step, step.batch_size), scale.factors()
        for name, parameter in self.parameters.items():
            handles = [part.handles[name] for part in parts if name in part.handles]
            if len(handles) == len(parts):
                with plain_arithmetic(parameter.device):
                    self._meet_all(joint(batch, handles, factors))

    def _put_in_order(self, running: _Running) -> None:
        """Give the values that were met parameter by parameter the order of the model."""
        step, plan, refused = running.step, running.plan, running.refused
        for name in refused:
            self._waiting.pop(name, None)
        for need in [*plan.transforms, *plan.along_previous]:
            value = step.values.get(need, {})
            if running.fault is not None:
                step.values[need] = Missing(running.fault)
            elif not isinstance(value, Missing):
                step.values[need] = PerParameter(
                    (name, value[name])
                    for name in self.parameters
                    if name in value and name not in refused
                ) or Missing("no parameter has individual gradients in this step")
        if running.fault is not None:
            self._waiting.clear()
            step.values |= {need: Missing(running.fault) for need in plan.along_update}

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
        needs = {need for entry in self._open if entry.step is step for need in entry.needs}
        with torch.no_grad():
            for need in needs - step.values.keys():
                if isinstance(need, AlongUpdate):
                    step.values[need] = self._project(need, handles, update)
                elif isinstance(need, OfUpdate) and need.gradient and not at_optimizer_step:
                    step.values[need] = Missing(
                        "the gradient has to be seen when the optimizer steps: give the optimizer "
                        "to the cockpit, Cockpit(..., optimizer=opt)"
                    )
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
        for name in (name for name in self.parameters if name in handles):
            handle = handles[name]
            if not handle.intact:
                return Missing(
                    f"the input of the layer of {name} was modified in place before the update was "
                    "observed"
                )
            with plain_arithmetic(handle.device):
                self._meet(values, need, name, partial(need.project, handle, update[name]))
            handle.release()
        return values[need]

    # -- results ----------------------------------------------------------------------------------

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
            self._reports.results(results)

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


def _keep(gathered: Gathered, handle: IndividualGradients) -> None:
    """Keep a part's individual gradients until the batch is complete."""
    handle.release()
    gathered.handles[handle.name] = handle
