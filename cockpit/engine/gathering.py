"""Gathers the individual gradients of a backward pass, and says what cannot be had."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from backpack import backpack
from backpack.extensions.backprop_extension import BackpropExtension
from torch import Tensor, nn

from cockpit.engine.audit import Audit, Heard
from cockpit.engine.live import Pass
from cockpit.engine.passes import Arrivals, Passes
from cockpit.engine.reports import Reports
from cockpit.engine.several import Scale, SeveralLosses
from cockpit.engine.step import NO_SAMPLES, NotChecked, PerParameter
from cockpit.engine.sums import Sums
from cockpit.engine.trust import Trust
from cockpit.gradients import (
    Batch,
    Call,
    Collector,
    Draw,
    HandleFeed,
    IndividualGradients,
    Recorder,
    Subsampled,
)
from cockpit.gradients.graph import Graph
from cockpit.gradients.nodes import Direct, Use, direct_uses, watch
from cockpit.gradients.recorder import has_hooks_of_others

OVERSLEPT = (
    "a part of its forward pass was not watched: going by the steps before, one was to come at which nothing "
    "is due; from now on every forward pass is watched"
)

UNSEEN = (
    "no layer of the model was seen at work: it was called before the cockpit was made, or what was "
    "called is another object than the model that the cockpit was given; make the cockpit before the "
    "first call, or, where the model was compiled with torch.compile and called before, call "
    "torch._dynamo.reset() once it is made"
)

NOT_AUDITED = (
    "the individual losses are not what the loss is made from, so that the individual gradients belong to "
    "their samples is not audited; give the losses that the loss is the mean or sum of"
)

FIRST_DIMENSION = (
    "the number of samples was taken from the first dimension of the model's input; give individual_losses "
    "or batch_size, or say where the samples are with Cockpit(..., batch_dim=)"
)

Deliver = Callable[[IndividualGradients], None]
Sink = Callable[[Call, "tuple[Tensor | None, ...]"], None]


@dataclass
class Gathered:
    """What one backward pass brings, or several over one graph.

    Args:
        global_step: Number of the step that it belongs to.
        scale: How the loss goes into it.
        batch_size: Number of samples; 0 until it is known.
        handles: The individual gradients by parameter, where they are kept beyond the pass.
        refused: Parameters that have no individual gradients in it.
        fault: Why none of them can be trusted, if so.
        subsample: Of how many samples individual gradients are wanted at most; None for all.
        draw: The samples whose gradients these are, where they are not all.
    """

    global_step: int
    scale: Scale
    batch_size: int
    handles: dict[str, IndividualGradients] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    fault: str | None = None
    subsample: int | None = None
    draw: Draw | None = None
    cleanup: ExitStack = field(default_factory=ExitStack)
    collector: Collector | None = None
    passes: Passes = field(default_factory=Passes)
    arrivals: Arrivals | None = None  # where there are several passes
    arriving: dict[str, Tensor] = field(default_factory=dict)
    sums: Sums = field(default_factory=Sums)
    early: bool = False  # whether gradients reached a layer before they reached the loss
    fresh: set[str] = field(default_factory=set)  # parameters whose gradient will be this pass's

    def discard(self) -> None:
        """Stop listening, and let go of what has arrived."""
        self.cleanup.close()
        self.collector = self.arrivals = None  # they refer back: a circle would outlive the step
        self.arriving.clear()
        self.sums = Sums()

    @property
    def mixed(self) -> bool:
        """Whether there was more than one backward pass where one was expected."""
        return self.passes.count > 1 and self.arrivals is None


class _Read(NamedTuple):
    """What the graph of a loss says, of a batch of some size."""

    size: int
    loss: Tensor | None
    graph: Graph
    direct: Direct


class Gathering:
    """Listens to backward passes.

    Args:
        parameters: The tracked parameters by name.
        recorder: The hooks on the model. Without it, BackPACK's hooks deliver what is needed: the
            user has extended the model.
        memory_budget: Bytes that dense pieces of individual gradients may take.
        seed: Of the random numbers that are drawn.
        reports: Hears of what cannot be had.
        audit: Judges the individual gradients.
        batch_dim: Dimension of the activations in which the samples lie; None to see by oneself.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        recorder: Recorder | None,
        memory_budget: int,
        seed: int,
        reports: Reports,
        audit: Audit,
        batch_dim: int | None = None,
    ) -> None:
        self._parameters, self._audit, self._batch_dim = parameters, audit, batch_dim
        self._names: dict[Tensor, str] = {p: name for name, p in parameters.items()}
        self._trust = Trust(self._names, audit)
        self._sizes = tuple(p.numel() for p in parameters.values())
        self._recorder = recorder
        self._memory_budget, self._seed, self._reports = memory_budget, seed, reports
        self._unchecked = set(parameters)  # whose individual gradients were never summed
        self.agreed: set[str] = set()  # whose individual gradients added up to the gradient
        self._reduction_checked = False
        self._noted: set[str] = set()
        self._counts: set[tuple[int, int]] = set()  # of samples drawn, and of the batch, once noted
        self._ahead: _Read | None = None
        self.overslept = (
            False  # whether the hooks on the model rested in a part of the forward pass
        )

    def seed_of(self, global_step: int) -> int:
        """Return the seed of the random numbers of a step."""
        return self._seed + global_step

    def batch(self, global_step: int, size: int, scale: Tensor | float = 1.0) -> Batch:
        """Return what the handles of a pass have in common."""
        seed = self.seed_of(global_step)
        dim, stated, doubtful = self._batch_dim or 0, self._batch_dim is not None, False
        if not stated and self._recorder is not None:
            dim, doubtful = self._recorder.batch_dim(size), not self._recorder.tells_first(size)
        return Batch(size, scale, self._memory_budget, seed, self._sizes, dim, stated, doubtful)

    def audit(self, global_step: int, loss: Tensor | None, individual: Tensor | None) -> None:
        """Check that the individual gradients belong to their samples, if this is the step for it.

        Args:
            global_step: Number of the step.
            loss: The loss, in its graph.
            individual: The losses of the samples, `[N]`, to which nobody listens yet.
        """
        self._audit.begin()
        graph = None if loss is None else self._graph([loss])
        if graph is None or individual is None or len(individual) < 2 or not self._audit.enabled:
            return
        if self.overslept:
            return
        if individual.grad_fn not in graph.above:
            self._note_once(global_step, "audit", NOT_AUDITED)
            return
        assert self._recorder is not None
        size = len(individual)
        batch, direct = self.batch(global_step, size), self._direct(global_step, size, graph)
        self._ahead = _Read(size, loss, graph, direct)
        expected = self._trust.expected(self._recorder.calls(), direct, batch)
        if not self._audit.due(expected) or not self._audit.harmless(graph):
            return

        def listen(heard: Heard, cleanup: ExitStack) -> Collector:
            collector = Collector(
                partial(self._batch_of_call, global_step, size),
                heard,
                judge=lambda parameter, taken: None,
                known=self._trust.known,
                direct=direct,
            )
            self._listen(collector, direct, cleanup)
            return collector

        self._audit.run(individual, graph.rounding(), self.seed_of(global_step), listen)

    def _note_once(self, global_step: int, subject: str, reason: str) -> None:
        if reason not in self._noted:
            self._noted.add(reason)
            self._reports.layout(global_step, subject, reason)

    def _graph(self, losses: Sequence[Tensor]) -> Graph | None:
        """Read the graph of the losses, where there are hooks on the model."""
        roots = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
        if not roots or self._recorder is None:
            return None
        graph = Graph(*roots)
        self.overslept |= self._recorder.slept_through(graph)
        return graph

    def _listen(self, collector: Collector, direct: Direct, cleanup: ExitStack) -> None:
        """Let a collector hear of a pass of ours."""
        assert self._recorder is not None
        self._recorder.listen(collector.add)
        cleanup.callback(self._recorder.stop)
        for use in direct.all():
            cleanup.callback(watch(use, collector.add_use))

    def begin(
        self,
        gathered: Gathered,
        extensions: Sequence[BackpropExtension],
        deliver: Deliver | None,
        losses: Sequence[Tensor] = (),
    ) -> None:
        """Listen to the backward pass that comes.

        Args:
            gathered: Where it is noted.
            extensions: Other extensions of BackPACK to run along.
            deliver: Called with each parameter's individual gradients as soon as they are complete;
                None where these are not needed.
            losses: The losses that are backpropagated, in their graph.
        """
        cleanup = gathered.cleanup
        cleanup.callback(gathered.scale.close)
        if deliver is not None:
            told = gathered.batch_size or self._batch_dim is not None
            self.infer_batch_size(gathered)
            if not told and self._recorder is not None and self._recorder.guesses_size:
                self._note_once(gathered.global_step, "samples", FIRST_DIMENSION)
            graph, direct = self._read(gathered, losses)
            if self._unchecked and graph is not None:
                gathered.sums.rounding = graph.rounding()
            collector = Collector(
                partial(self._batch_of, gathered),
                partial(self._complete, gathered, deliver),
                judge=self._trust.objection,
                known=self._trust.known,
                direct=direct,
            )
            gathered.collector = collector
            gathered.scale.listen(gathered.passes.note_loss)
            if isinstance(gathered.scale, SeveralLosses):
                gathered.arrivals = Arrivals(self.batch(gathered.global_step, gathered.batch_size))
            taker = gathered.arrivals or collector
            sink = partial(_arrived, gathered.passes, taker.add)
            # Accumulating its gradient is the last thing that happens to a parameter in a backward
            # pass (except that BackPACK's hooks may come later).
            accumulated = collector.complete
            if self._recorder is None:
                extensions = [HandleFeed(sink), *extensions]
                accumulated = collector.note_accumulated
            else:
                self._recorder.listen(sink)
                cleanup.callback(self._recorder.stop)
            for use in direct.all():
                cleanup.callback(watch(use, partial(_used, gathered.passes, taker)))
            if gathered.arrivals is not None:
                accumulated = collector.note_accumulated  # further parts come with the next pass
            for name, parameter in self._parameters.items():
                if not parameter.requires_grad:
                    continue
                if parameter.grad is None and not hooked_by_others(parameter):
                    gathered.fresh.add(name)
                cleanup.callback(parameter.register_post_accumulate_grad_hook(accumulated).remove)
                if name in self._unchecked or self._takes_arrived(gathered, parameter):
                    see = partial(_add, gathered.arriving, name)
                    cleanup.callback(parameter.register_hook(see).remove)
        if extensions:
            cleanup.enter_context(backpack(*extensions))

    def forget(self) -> None:
        """Let go of the graph that was read for the audit: no backward pass comes through it."""
        self._ahead = None

    def _read(self, gathered: Gathered, losses: Sequence[Tensor]) -> tuple[Graph | None, Direct]:
        """Read the graph of the losses, unless that was done for the audit."""
        ahead, size = self._ahead, gathered.batch_size
        self.forget()
        if (
            ahead is not None
            and ahead.size == size
            and len(losses) == 1
            and ahead.loss is losses[0]
        ):
            return ahead.graph, ahead.direct
        graph = self._graph(losses)
        return graph, self._direct(gathered.global_step, size, graph)

    def _direct(self, global_step: int, size: int, graph: Graph | None) -> Direct:
        """Find the parameters that the model uses outside of layers."""
        if graph is None or self._recorder is None or size < 2:
            return Direct()
        batch = self.batch(global_step, size)
        return direct_uses(graph, self._parameters.values(), self._recorder.calls(), batch)

    def _batch_of(self, gathered: Gathered, call: Call | None) -> Batch:
        self.infer_batch_size(gathered)
        if not gathered.batch_size and call is not None:
            gathered.batch_size = call.input.shape[self._batch_dim or 0]
        gathered.early = not gathered.scale.seen
        return self._scaled_batch(gathered)

    def _batch_of_call(self, global_step: int, size: int, call: Call | None) -> Batch:
        if not size and call is not None:
            size = call.input.shape[self._batch_dim or 0]
        return self.batch(global_step, size)

    def _scaled_batch(self, gathered: Gathered) -> Batch:
        scale = gathered.scale.of_samples(gathered.batch_size)
        return self.batch(gathered.global_step, gathered.batch_size, scale)

    def infer_batch_size(self, gathered: Gathered) -> None:
        """See from the forward pass of the model how many samples there are, unless that is known."""
        if gathered.batch_size or self._recorder is None:
            return
        sizes = self._recorder.batch_sizes()
        if self._recorder.batch_size:
            sizes = {self._recorder.batch_size}
        if len(sizes) == 1:
            gathered.batch_size = sizes.pop()

    def _complete(
        self,
        gathered: Gathered,
        deliver: Deliver,
        parameter: nn.Parameter,
        handle: IndividualGradients,
    ) -> None:
        name = self._names.get(parameter)
        if name is None:
            return
        handle.name = name
        arrived = None if gathered.mixed else gathered.arriving.pop(name, None)
        if arrived is not None and name in self._unchecked:
            self._unchecked.discard(name)
            gathered.sums.compare(name, handle, arrived)
        handle.accumulated = name in gathered.fresh and name in self.agreed and not gathered.mixed
        deliver(self._drawn(gathered, handle, arrived))

    def _takes_arrived(self, gathered: Gathered, parameter: nn.Parameter) -> bool:
        """Whether the gradient that arrives at a parameter stands for the mean over all samples."""
        few, size = gathered.subsample, gathered.batch_size
        return few is not None and not 0 < size <= few and not has_hooks_of_others(parameter)

    def _drawn(
        self, gathered: Gathered, handle: IndividualGradients, arrived: Tensor | None
    ) -> IndividualGradients:
        """Return the gradients of the samples that are drawn, where there are more than wanted."""
        batch, few = handle.batch, gathered.subsample
        if few is None or batch.size <= few:
            return handle
        gathered.draw = Draw.of(batch, few)
        gradient = handle.mean
        if arrived is not None and not arrived.is_sparse and handle.name in self.agreed:
            gradient = partial(_mean_of, arrived, handle.dtype, batch)
        return Subsampled.of(handle, gathered.draw, gradient)

    def finish(self, gathered: Gathered) -> None:
        """Take what no layer has reported, and note what cannot be had."""
        gathered.cleanup.close()
        self.infer_batch_size(gathered)
        collector = gathered.collector
        if collector is None:
            return
        if gathered.arrivals is not None:
            gathered.arrivals.hand_over(collector)
        gathered.fault = self._fault(gathered, collector)
        if gathered.fault is None:
            known = collector.batch
            if known is None and gathered.batch_size:
                known = self._scaled_batch(gathered)
            collector.finish([p for p in self._parameters.values() if p.requires_grad], known)
        self.agreed |= gathered.sums.names
        for name, layer, apart in gathered.sums.apart():
            self.agreed.discard(name)
            self._reports.mismatch(gathered.global_step, name, layer, apart)
        gathered.arriving.clear()
        gathered.collector = None  # it refers back, and a circle would outlive the step
        if gathered.fault is not None:
            return
        self._trust.distrust(collector.misfits & collector.refused.keys())
        if not self._reduction_checked:
            self._reduction_checked = True
            times = gathered.scale.doubt(gathered.batch_size)
            if times is not None:
                self._reports.doubt(gathered.global_step, times)
        gathered.refused |= self._report_refused(gathered.global_step, collector)
        if gathered.draw is not None:
            self._report_draw(gathered.global_step, gathered.draw, gathered.batch_size)

    def _report_draw(self, global_step: int, draw: Draw, size: int) -> None:
        counts = draw.batch.size, size
        if counts not in self._counts:
            self._counts.add(counts)
            self._reports.drawn(global_step, *counts)

    def _report_refused(self, global_step: int, collector: Collector) -> set[str]:
        refused = {
            self._names[parameter]: reason
            for parameter, reason in collector.refused.items()
            if parameter in self._names
        }
        for name, reason in refused.items():
            self._reports.untracked(global_step, name, reason)
        return set(refused)

    def _fault(self, gathered: Gathered, collector: Collector) -> str | None:
        """Return why the individual gradients cannot be trusted as a whole, if so."""
        scale = gathered.scale
        if self.overslept:
            return OVERSLEPT  # some parameters may be served all the same, but not all
        if collector.batch is None and self._recorder is None:
            return (
                "no layer reported to BackPACK: the cockpit was given bare parameters, and then "
                "the model has to be extended with backpack.extend(model) before the forward pass, "
                "or better, given as Cockpit(model, ...)"
            )
        if collector.batch is None and gathered.passes.count == 0 and scale.expected:
            return "no backward pass came through the loss in the with block"
        if collector.batch is None:
            return UNSEEN if collector.accumulated else None
        if collector.batch.size == 0:
            return NO_SAMPLES
        fault = scale.fault()
        if fault is not None:
            return fault
        if gathered.mixed or (gathered.passes.unexplained and scale.expected):
            return (
                "gradients came in a backward pass of another loss than the one given as 'loss'; give "
                "all that are backpropagated in the with block, loss=(loss_a, loss_b), and run what "
                "does not belong to the step before it"
            )
        if gathered.early and scale.factor is not None and float(scale.factor) != 1.0:
            return (
                "the gradient reached a layer before it reached the tensor given as 'loss', so the "
                "factor on it was not known in time; give the loss on which backward() is called"
            )
        return None

    def reduced(
        self,
        global_step: int,
        batch_size: int,
        loss: Tensor,
        run: Pass,
        reduction: Callable[[IndividualGradients], Any],
        report: bool = True,
    ) -> PerParameter:
        """Run a backward pass of ours, and reduce the individual gradients that it brings, as they are.

        Args:
            global_step: Number of the step.
            batch_size: Number of samples; 0 where it is not known.
            loss: The loss, through a part of whose graph the pass goes.
            run: Runs the pass.
            reduction: What to keep of the handle of each parameter.
            report: Whether to report the parameters that have no individual gradients.
        """
        values = PerParameter()

        def keep(parameter: nn.Parameter, handle: IndividualGradients) -> None:
            if parameter in self._names:
                values[self._names[parameter]] = reduction(handle)
                handle.release()

        graph = self._graph([loss])
        direct = self._direct(global_step, batch_size, graph)
        ends = direct.ends(graph)
        if self.overslept:
            raise NotChecked(OVERSLEPT)
        collector = Collector(
            partial(self._batch_of_call, global_step, batch_size),
            keep,
            judge=self._trust.objection,
            known=self._trust.known,
            direct=direct,
        )
        if self._recorder is None:
            with backpack(HandleFeed(collector.add), retain_graph=True):
                arrived = run(None)
        else:
            with ExitStack() as cleanup:
                self._listen(collector, direct, cleanup)
                # The gradients themselves, a third of the pass, are not wanted.
                arrived = run(ends)
        if ends is None:
            for parameter, gradient in zip(self._parameters.values(), arrived, strict=True):
                if gradient is not None:
                    collector.complete(parameter)
        if collector.batch is None:
            raise NotChecked(
                "no layer reported its gradient: give the model as Cockpit(model, ...), or extend "
                "it with backpack.extend(model) before the forward pass"
            )
        if collector.batch.size == 0:
            raise NotChecked(NO_SAMPLES)
        collector.finish(self._parameters.values())
        if report:
            self._report_refused(global_step, collector)
        return PerParameter((name, values[name]) for name in self._parameters if name in values)


def _mean_of(arrived: Tensor, dtype: torch.dtype, batch: Batch) -> Tensor:
    """Return g from the gradient that arrived at the parameter."""
    return arrived.to(dtype) * (batch.scale / batch.size)


def hooked_by_others(parameter: nn.Parameter) -> bool:
    """Whether somebody else listens to the gradient, or to its being there, and may change it."""
    return has_hooks_of_others(parameter) or bool(parameter._post_accumulate_grad_hooks)


def _used(passes: Passes, taker: Collector | Arrivals, use: Use, grad: Tensor) -> None:
    passes.note()
    taker.add_use(use, grad)


def _arrived(passes: Passes, take: Sink, call: Call, grads: tuple[Tensor | None, ...]) -> None:
    passes.note()
    take(call, grads)


def _add(arriving: dict[str, Tensor], name: str, grad: Tensor) -> None:
    """Add up what arrives at a parameter."""
    arriving[name] = grad if name not in arriving else arriving[name] + grad
