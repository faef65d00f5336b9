"""The phases of a tracked step, and what is carried from one step to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from backpack import backpack
from torch import Tensor, nn

from cockpit.engine.audit import Audit
from cockpit.engine.checkpoint import by_need, packed, packed_by_need, unpacked
from cockpit.engine.distributed import Ranks, agree
from cockpit.engine.forward import ForwardWatch
from cockpit.engine.gathering import Gathered, Gathering
from cockpit.engine.joining import (
    EntryReport,
    Joined,
    PassReport,
    Relay,
    Report,
    joined_forward,
    on_host,
)
from cockpit.engine.live import Live
from cockpit.engine.losses import Losses
from cockpit.engine.needs import AlongUpdate, InForward, Moment, OfUpdate
from cockpit.engine.pending import Pending
from cockpit.engine.plan import Computation, Plan
from cockpit.engine.reports import Reports, Result
from cockpit.engine.running import Running
from cockpit.engine.scale import AccumulatedScale
from cockpit.engine.several import SeveralLosses
from cockpit.engine.shares import Shares
from cockpit.engine.step import Missing, NotChecked, PerParameter, Step
from cockpit.engine.update import UpdateWatch
from cockpit.errors import Unsupported
from cockpit.gradients import Forward, IndividualGradients, Recorder, joint, plain_arithmetic
from cockpit.gradients.distributed import layout
from cockpit.transforms import Need, Transform

SAVEFIELD = "grad_batch_transforms"

OVERWRITTEN = "the input of its layer was modified in place after the backward pass"

UNKNOWN_UPDATE = (
    "the update that led here is not known: the parameters were changed after the optimizer's step "
    "(by clipping or averaging them, or by another optimizer); leave out optimizer=, and the update "
    "is what has changed when the next step begins"
)

Observer = Callable[[Need, str, Callable[[], Any]], Any]
"""Calls what meets a need for a parameter, or for the model where the name is empty, and returns its value."""

NO_STEP = Missing("no optimizer that is known has made a step", usual=True)

NO_OPTIMIZER = Missing(
    "the gradient has to be seen when the optimizer steps: give the optimizer to the cockpit, "
    "Cockpit(..., optimizer=opt)"
)


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
        ranks: The processes that train the model together, if they are several.
        audit: Whether to check the individual gradients; see `Audit`.
        batch_dim: Dimension of the activations in which the samples lie; None to see by oneself.
        subsample: Of how many samples individual gradients are looked at, at most; None for all.

    Attributes:
        observer: Where it is set, every need is met through it: for measurements.
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
        ranks: Ranks | None = None,
        audit: bool = True,
        batch_dim: int | None = None,
        subsample: int | None = None,
    ) -> None:
        self.parameters = dict(parameters)
        self._model, self._reduction, self._reports = model, reduction, reports
        self.recorder = None if model is None else Recorder(model, batch_dim)
        self._ranks, self._relay = ranks, Relay(reports)
        heard = reports if ranks is None else self._relay
        self._gathering = Gathering(
            self.parameters,
            self.recorder,
            memory_budget,
            seed,
            heard,
            Audit(self.parameters, model, audit),
            batch_dim,
        )
        self.forward = ForwardWatch(self.recorder, in_parts=ranks is not None)
        self.updates = UpdateWatch(self.parameters, self._observe_update)
        self.start: PerParameter | None = None
        self._carried: dict[Need, Any] = {}
        self._running: Running | None = None
        self._paused: Running | None = None
        self.pending = Pending(reports, ranks)
        self._waiting: dict[str, IndividualGradients] = {}
        self._held = 0  # bytes of dense gradients that wait with them
        self._waiting_step: Step | None = None
        self._update: PerParameter | None = None
        self._kept_by_others = False  # whether a value of a need is a part of it
        self._subsample = subsample
        self.observer: Observer | None = None
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
        if not self.pending and not self.updates.pending:
            return {}
        self.updates.settle()
        if self._update is not None and self.updates.moved_since():
            self._update = None
        needs = self.pending.wanted(global_step)
        self.pending.flush()
        return needs

    @property
    def overslept(self) -> bool:
        """Whether the hooks on the model rested in a part of the forward pass of the last tracked step."""
        return self._gathering.overslept

    @property
    def awaits_forward(self) -> bool:
        """Whether some quantity may need the forward pass that comes, whatever is due then."""
        under_way = self._running is not None or self._paused is not None
        return under_way or self.pending.awaits_next

    def expect(self, due: Mapping[str, Computation], global_step: int | None) -> None:
        """Look at the forward pass that comes for what is due at the step expected next.

        Args:
            due: The quantities.
            global_step: Number of that step; None where any may come.
        """
        needs = [
            n for name, q in due.items() for n in self.pending.needs_of(name, q, global_step or 0)
        ]
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
        running = self._running = Running(step, plan, kept, passes)
        self._held = 0
        try:
            loss = losses.plain
            if loss is not None:
                step.live = self._live(step, loss, losses, passes)
            self._gathering.overslept = False
            if self.recorder is not None:
                self.recorder.batch_size = None  # of an earlier step
                self._gathering.overslept = self.recorder.asleep and plan.wants_forward
            self._take_forward(running)
            at_entry = plan.observations(Moment.ENTRY)
            if plan.wants_gradients or any(need.outputs for need in at_entry):
                told = None if losses.parts else losses.individual  # several are not audited
                self._gathering.audit(step.global_step, losses.loss, told)
            with backpack(retain_graph=True):  # its hooks would drop what the user's pass needs
                self._observe(Moment.ENTRY)
            step.live = None
            if plan.along_update or plan.of_update:
                self.updates.anticipate()
            self._begin_pass(running, losses)
        except BaseException:
            self.abort()
            raise

    def resume(self, losses: Losses) -> None:
        """Get ready for a further backward pass of the step that is under way."""
        running = self._paused
        assert running is not None
        self._running, self._paused = running, None
        if self.recorder is not None:
            self.recorder.take_forward()
        self._begin_pass(running, losses)

    def _begin_pass(self, running: Running, losses: Losses) -> None:
        scale = losses.scale(self._reduction)
        gathered = Gathered(running.step.global_step, scale, losses.size)
        if self._subsample is not None:
            gathered.subsample = max(1, self._subsample // running.passes)
        running.step.scale = scale
        running.done.append(gathered)
        deliver = None
        if running.plan.wants_gradients:
            at_once = running.passes == 1 and self._ranks is None
            deliver = self._meet_all if at_once else partial(_keep, gathered)
        self._gathering.begin(gathered, running.plan.others, deliver, losses.backpropagated)

    def _take_forward(self, running: Running) -> None:
        step, plan = running.step, running.plan
        values, refused = self.forward.take(plan.in_forward)
        if self._ranks is not None:
            values, refused = self._enter_together(self._ranks, running, values, refused)
        step.values |= values
        for need, reasons in refused.items():
            for module, reason in reasons.items():
                subject = f"{plan.needs[need]}/{module}"
                if subject not in self._refused:
                    self._refused.add(subject)
                    missing = Missing(reason, usual=True)
                    self.pending.add(Result(step.global_step, subject, missing))

    def _enter_together(
        self,
        ranks: Ranks,
        running: Running,
        values: dict[Need, Any],
        refused: dict[Need, dict[str, str]],
    ) -> tuple[dict[Need, Any], dict[Need, dict[str, str]]]:
        """Meet the other processes, and join what all of them have seen in the forward pass."""
        step, plan, needs = running.step, running.plan, running.plan.in_forward
        extensions = [*plan.functions, *(type(other).__name__ for other in plan.others)]
        report = EntryReport(
            step.batch_size if step.live is None else step.live.batch_size,
            f"{', '.join([*plan.due, *extensions])} in {running.passes} backward passes",
            [on_host(values[need]) for need in needs],
            [refused.get(need, {}) for need in needs],
        )
        reports: list[EntryReport] = ranks.begin(step.global_step, Moment.ENTRY, report)
        ranks.require_same("The quantities that are due", [of_one.asked for of_one in reports])
        if step.live is not None:
            shares = Shares(ranks, [of_one.size for of_one in reports])
            step.live = replace(step.live, shares=shares, postponed=ranks.postponed)
        return joined_forward(needs, reports)

    def _live(self, step: Step, loss: Tensor, losses: Losses, passes: int) -> Live:
        individual, size = losses.individual, losses.size
        forward = Forward() if self.recorder is None else self.recorder.take_forward()
        sizes = set() if self.recorder is None else self.recorder.batch_sizes()
        if not size and len(sizes) == 1:
            size = sizes.pop()
        closure = step.info.get("closure")
        if self._ranks is not None:
            closure = self._ranks.by_itself(closure)
        return Live(
            loss,
            individual,
            self._model,
            forward.inputs,
            step.info.get("outputs", forward.outputs),
            self.parameters,
            size,
            self._reduction,
            self._gathering.seed_of(step.global_step),
            closure,
            forward.state,
            passes,
            partial(self._gathering.reduced, step.global_step, size, loss),
        )

    # -- during the backward pass -----------------------------------------------------------------

    def _meet_all(self, handle: IndividualGradients) -> None:
        """Meet all needs of one parameter's individual gradients, and let go of these."""
        assert self._running is not None
        name, plan, values = handle.name, self._running.plan, self._running.step.values
        for transform in plan.transforms:
            self._meet(values, transform, name, partial(transform.take, handle))
        for need in plan.along_previous:
            if self._update is None:
                values[need] = Missing(UNKNOWN_UPDATE)
            else:
                self._meet(values, need, name, partial(need.project, handle, self._update[name]))
        if plan.functions:
            results = {n: function(handle) for n, function in plan.functions.items()}
            setattr(handle.parameter, SAVEFIELD, results)
        # What is dense already will not have to be computed again for the update that follows.
        held = handle.held if plan.along_update else 0
        if 0 < held <= handle.batch.memory_budget // 2 - self._held:
            self._held += held
        else:
            handle.release()
        if plan.along_update:
            self._waiting[name] = handle

    def _meet(
        self, values: dict[Need, Any], need: Need, name: str, function: Callable[[], Any]
    ) -> None:
        if self._ranks is not None:
            self._ranks.task()
        of_all = values.get(need)
        if of_all is None:
            of_all = values[need] = PerParameter()
        if isinstance(of_all, Missing):
            return
        try:
            of_all[name] = self._run(need, name, function)
        except Exception as error:
            values[need] = Missing(f"{need} of {name}: {type(error).__name__}: {error}")

    def _run(self, need: Need, name: str, function: Callable[[], Any]) -> Any:
        return function() if self.observer is None else self.observer(need, name, function)

    # -- after the backward pass ------------------------------------------------------------------

    def abort(self) -> None:
        """Leave a step without its results: something went wrong in the user's code."""
        running, self._running, self._paused = self._running, None, None
        self._waiting.clear()
        self._gathering.forget()
        self.updates.forget()
        for gathered in running.done if running is not None else ():
            gathered.discard()

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
        if self._ranks is not None:
            self._join_processes(self._ranks, running)
        elif running.passes > 1:
            self._join(running)
        elif isinstance(step.scale, SeveralLosses):
            step.loss, step.individual_losses = step.scale.loss, step.scale.individual
        step.draw = running.draw
        self._distrust_entry(running)
        self._put_in_order(running)
        step.previous_update = self._update
        self._observe(Moment.EXIT)
        step.previous_update = None
        self._running = None
        self.pending.begin(step, plan)
        if plan.along_update or plan.of_update:
            self._begin_update(step, plan)
        else:
            self._update = None
        self.pending.compute()
        self._drop_saved(plan, running.kept if running.fault is None else ())
        self.pending.flush()
        return True

    def _begin_update(self, step: Step, plan: Plan) -> None:
        """Wait for the update that follows, or say why it will not be known."""
        self._waiting_step = step
        spare, self._update = self._update, None
        if self._kept_by_others:
            spare = None
        unknown = self.updates.begin(spare)
        if unknown is not None:
            self._waiting_step = None
            self._waiting.clear()
            step.values |= dict.fromkeys([*plan.along_update, *plan.of_update], Missing(unknown))

    @staticmethod
    def _distrust_entry(running: Running) -> None:
        """Take back what was seen of the live graph, if that was not the graph of the loss that came."""
        seen = [need for need in running.plan.observations(Moment.ENTRY) if "loss" in need.info]
        scale = running.done[0].scale
        if seen and isinstance(scale, SeveralLosses) and scale.uneven():
            reason = (
                "the losses were backpropagated with different factors, which are not known when the "
                "curvature is computed, on entry; put the factors into the losses that are given, as in "
                "loss=(loss_a, 0.5 * loss_b)"
            )
            running.step.values |= dict.fromkeys(seen, Missing(reason))

    def _join(self, running: Running) -> None:
        """Put the parts of a batch that came in several passes together."""
        step, parts = running.step, running.done
        scale = AccumulatedScale([(part.scale, part.batch_size or 1) for part in parts])
        step.scale, step.loss = scale, scale.loss()
        losses = [part.scale.individual for part in parts if part.scale.individual is not None]
        step.individual_losses = torch.cat(losses) if len(losses) == len(parts) else None
        uneven = running.uneven_draws()
        if uneven is not None:
            parts[0].fault = parts[0].fault or uneven
            return
        batch, factors = self._gathering.batch(step.global_step, step.batch_size), scale.factors()
        for _, handles in self._kept(running, self._reports.untracked):
            with plain_arithmetic(handles[0].device):
                self._meet_all(joint(batch, handles, factors))

    def _kept(
        self, running: Running, untracked: Callable[[int, str, str], None]
    ) -> Iterator[tuple[str, list[IndividualGradients]]]:
        """Yield the handles that the passes of a step have left, of the parameters that have one of each."""
        for name in self.parameters:
            handles = [part.handles[name] for part in running.done if name in part.handles]
            if len(handles) < len(running.done) or name in running.refused:
                continue
            if all(handle.intact for handle in handles):
                yield name, handles
            else:
                untracked(running.step.global_step, name, OVERWRITTEN)

    def _join_processes(self, ranks: Ranks, running: Running) -> None:
        """Put the parts of a batch that is spread over processes together."""
        step, plan, parts = running.step, running.plan, running.done
        kept = self._kept(running, self._relay.untracked)
        layouts = {name: layout(handles[0]) for name, handles in kept}
        report = Report([*map(PassReport.of, parts)], layouts, running.fault, self._relay.take())
        device = next(iter(self.parameters.values())).device
        joined = Joined(ranks.begin(step.global_step, Moment.EXIT, report), ranks, device)
        joined.replay(self._reports)
        step.scale, step.batch_size = joined.scale, joined.size
        step.loss, step.individual_losses = joined.loss, joined.individual
        names = joined.tracked(list(self.parameters))
        parts[0].fault = joined.fault
        parts[0].refused |= self.parameters.keys() - set(names)
        if not plan.wants_gradients or joined.fault is not None:
            return
        own, whole = (
            self._gathering.batch(step.global_step, size)
            for size in (joined.sizes[ranks.rank], joined.size)
        )
        for name in names:
            with plain_arithmetic(self.parameters[name].device):
                handles = [part.handles[name] for part in parts]
                self._meet_all(joined.spread(handles, own, whole))
        agree(ranks, step.values, [*plan.transforms, *plan.along_previous])

    def _put_in_order(self, running: Running) -> None:
        """Give the values that were met parameter by parameter the order of the model."""
        step, plan, refused = running.step, running.plan, running.refused
        for name in refused:
            self._waiting.pop(name, None)
        for need in [*plan.transforms, *plan.along_previous]:
            value = step.values.get(need, {})
            if running.fault is not None:
                step.values[need] = Missing(running.fault)
            elif not isinstance(value, Missing):
                taken = PerParameter(
                    (name, value[name])
                    for name in self.parameters
                    if name in value and name not in refused
                )
                step.values[need] = self._finished(need, taken)
        if running.fault is not None:
            self._waiting.clear()
            step.values |= {need: Missing(running.fault) for need in plan.along_update}

    def _finished(self, need: Need, taken: PerParameter) -> Any:
        if not taken:
            return Missing("no parameter has individual gradients in this step")
        if not isinstance(need, Transform):
            return taken
        with torch.no_grad():
            return self._value(need, lambda: PerParameter(need.finish(taken)))

    def _observe(self, moment: Moment) -> None:
        assert self._running is not None
        step, plan = self._running.step, self._running.plan
        needs = plan.observations(moment)
        with torch.no_grad():
            for need in needs:
                if need in plan.unmet:
                    step.values[need] = Missing(plan.unmet[need])
                else:
                    step.values[need] = self._value(need, partial(need.observe, step))
        if self._ranks is not None:
            agree(self._ranks, step.values, needs)

    def _value(self, need: Need, observe: Callable[[], Any]) -> Any:
        if self._ranks is not None:
            self._ranks.section()
        try:
            return self._run(need, "", observe)
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
        unmet = self.pending.unmet(step)
        needs = [need for need in unmet if isinstance(need, AlongUpdate | OfUpdate)]
        if self._ranks is not None:
            self._ranks.begin(step.global_step, Moment.UPDATE, None)
        with torch.no_grad():
            for need in needs:
                if isinstance(need, AlongUpdate):
                    step.values[need] = self._project(need, handles, update)
                elif need.gradient and not at_optimizer_step:
                    step.values[need] = NO_STEP if step.optimizers else NO_OPTIMIZER
                else:
                    step.values[need] = self._value(need, partial(need.observe, step, update))
        if self._ranks is not None:
            agree(self._ranks, step.values, needs)
        self.pending.compute()
        self._update = update if self.pending else None
        self._kept_by_others = any(_shares(step.values[need], update) for need in needs)
        if self.pending and at_optimizer_step:
            self.updates.remember_end()
        self.pending.flush()

    def _project(
        self, need: AlongUpdate, handles: Mapping[str, IndividualGradients], update: PerParameter
    ) -> Any:
        if self._ranks is not None:
            self._ranks.section()
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

    # -- checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what is carried into the next step, as plain data; the update has been made."""
        self.updates.settle()
        return {
            "start": packed(self.start),
            "update": packed(self._update),
            "carried": packed_by_need(self._carried),
            "pending": self.pending.state_dict(),
            "refused": sorted(self._refused),
            "agreed": sorted(self._gathering.agreed),
        }

    def load_state_dict(
        self, state: Mapping[str, Any], quantities: Mapping[str, Computation]
    ) -> None:
        """Take up what another engine carried, for those of its quantities that are among these."""

        def put(tensor: Tensor) -> Tensor:
            # A copy, for an update's memory is used again.
            return tensor.to(next(iter(self.parameters.values())).device, copy=True)

        self.start = unpacked(state["start"], put)
        self._update = unpacked(state["update"], put)
        self._refused = set(state["refused"])
        self._gathering.agreed = set(state.get("agreed", ()))
        self.pending.load_state_dict(state["pending"], quantities, self.parameters, put)
        asked = [n for name, q in quantities.items() for n in self.pending.needs_of(name, q, 0)]
        self._carried = by_need(state["carried"], asked, put)

    # -- the end ----------------------------------------------------------------------------------

    def close(self, *, settle: bool = True) -> None:
        """Settle what can be settled, report the rest as not checked, and take all hooks off.

        Args:
            settle: Whether the training has come to where the last update would be.
        """
        if settle and self._ranks is None:  # otherwise the other processes may have ended already
            self.updates.settle()
        self.abort()
        self.pending.give_up("the run ended before the next step")
        self.updates.close()
        if self.recorder is not None:
            self.recorder.close()


def _shares(value: Any, update: PerParameter) -> bool:
    """Whether a value of a need is a part of an update, rather than computed from it."""
    found = value.values() if isinstance(value, Mapping) else [value]
    tensors = [item for item in found if isinstance(item, Tensor) and item.numel() > 1]
    places = {item.untyped_storage().data_ptr() for item in tensors}
    return bool(places) and any(u.untyped_storage().data_ptr() in places for u in update.values())


def _keep(gathered: Gathered, handle: IndividualGradients) -> None:
    """Keep a part's individual gradients until the batch is complete."""
    handle.release()
    gathered.handles[handle.name] = handle
