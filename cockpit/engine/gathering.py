"""Gathers the individual gradients of a backward pass, and says what cannot be had."""

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

from cockpit.engine.live import Pass
from cockpit.engine.reports import Reports
from cockpit.engine.scale import LossScale
from cockpit.engine.step import NotChecked, PerParameter
from cockpit.gradients import (
    Batch,
    Call,
    Collector,
    HandleFeed,
    IndividualGradients,
    Recorder,
)

Deliver = Callable[[IndividualGradients], None]


@dataclass
class Gathered:
    """What one backward pass brings.

    Args:
        global_step: Number of the step that it belongs to.
        scale: How the loss goes into it.
        batch_size: Number of samples; 0 until it is known.
        handles: The individual gradients by parameter, where they are kept beyond the pass.
        refused: Parameters that have no individual gradients in it.
        fault: Why none of them can be trusted, if so.
    """

    global_step: int
    scale: LossScale
    batch_size: int
    handles: dict[str, IndividualGradients] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    fault: str | None = None
    cleanup: ExitStack = field(default_factory=ExitStack)
    collector: Collector | None = None
    arriving: dict[str, Tensor] = field(default_factory=dict)
    early: bool = False  # whether gradients reached a layer before they reached the loss


class Gathering:
    """Listens to backward passes.

    Args:
        parameters: The tracked parameters by name.
        recorder: The hooks on the model. Without it, BackPACK's hooks deliver what is needed: the
            user has extended the model.
        memory_budget: Bytes that dense pieces of individual gradients may take.
        seed: Of the random numbers that are drawn.
        reports: Hears of what cannot be had.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        recorder: Recorder | None,
        memory_budget: int,
        seed: int,
        reports: Reports,
    ) -> None:
        self._parameters = parameters
        self._names: dict[Tensor, str] = {p: name for name, p in parameters.items()}
        self._sizes = tuple(p.numel() for p in parameters.values())
        self._recorder = recorder
        self._memory_budget, self._seed, self._reports = memory_budget, seed, reports
        self._unchecked = set(parameters)  # whose individual gradients were never summed
        self._reduction_checked = False

    def seed_of(self, global_step: int) -> int:
        """Return the seed of the random numbers of a step."""
        return self._seed + global_step

    def batch(self, global_step: int, size: int, scale: Tensor | float = 1.0) -> Batch:
        """Return what the handles of a pass have in common."""
        seed = self.seed_of(global_step)
        return Batch(size, scale, self._memory_budget, seed, self._sizes)

    def begin(
        self,
        gathered: Gathered,
        extensions: Sequence[BackpropExtension],
        deliver: Deliver | None,
    ) -> None:
        """Listen to the backward pass that comes.

        Args:
            gathered: Where it is noted.
            extensions: Other extensions of BackPACK to run along.
            deliver: Called with each parameter's individual gradients as soon as they are complete;
                None where these are not needed.
        """
        cleanup = gathered.cleanup
        cleanup.callback(gathered.scale.close)
        if deliver is not None:
            collector = Collector(
                partial(self._batch_of, gathered), partial(self._complete, gathered, deliver)
            )
            gathered.collector = collector
            # Accumulating its gradient is the last thing that happens to a parameter in a backward
            # pass (except that BackPACK's hooks may come later).
            accumulated = collector.complete
            if self._recorder is None:
                extensions = [HandleFeed(collector.add), *extensions]
                accumulated = collector.note_accumulated
            else:
                self._recorder.listen(collector.add)
                cleanup.callback(self._recorder.stop)
            for name, parameter in self._parameters.items():
                if not parameter.requires_grad:
                    continue
                cleanup.callback(parameter.register_post_accumulate_grad_hook(accumulated).remove)
                if name in self._unchecked:
                    see = partial(gathered.arriving.__setitem__, name)
                    cleanup.callback(parameter.register_hook(see).remove)
        if extensions:
            cleanup.enter_context(backpack(*extensions))

    def _batch_of(self, gathered: Gathered, call: Call) -> Batch:
        self.infer_batch_size(gathered)
        gathered.batch_size = gathered.batch_size or len(call.input)
        gathered.early = not gathered.scale.seen
        return self._scaled_batch(gathered)

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
        if name in gathered.arriving:
            self._unchecked.discard(name)
            if not _adds_up(handle, gathered.arriving.pop(name)):
                self._reports.mismatch(gathered.global_step, name)
        deliver(handle)

    def finish(self, gathered: Gathered) -> None:
        """Take what no layer has reported, and note what cannot be had."""
        gathered.cleanup.close()
        self.infer_batch_size(gathered)
        collector = gathered.collector
        if collector is None:
            return
        known = collector.batch or (self._scaled_batch(gathered) if gathered.batch_size else None)
        collector.finish([p for p in self._parameters.values() if p.requires_grad], known)
        gathered.arriving.clear()
        gathered.collector = None  # it refers back, and a circle would outlive the step
        gathered.fault = self._fault(gathered, collector)
        if gathered.fault is not None:
            return
        if not self._reduction_checked:
            self._reduction_checked = True
            times = gathered.scale.doubt(gathered.batch_size)
            if times is not None:
                self._reports.doubt(gathered.global_step, times)
        gathered.refused |= self._report_refused(gathered.global_step, collector)

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
        if collector.batch is None and self._recorder is None:
            return (
                "no layer reported to BackPACK: the cockpit was given bare parameters, and then "
                "the model has to be extended with backpack.extend(model) before the forward pass, "
                "or better, given as Cockpit(model, ...)"
            )
        if collector.batch is not None and not scale.seen:
            return (
                "the tensor given as 'loss' took no part in the backward pass; give the one on "
                "which backward() is called"
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
        run: Pass,
        reduction: Callable[[IndividualGradients], Any],
    ) -> PerParameter:
        """Run a backward pass of ours, and reduce the individual gradients that it brings, as they are."""
        values = PerParameter()

        def keep(parameter: nn.Parameter, handle: IndividualGradients) -> None:
            if parameter in self._names:
                values[self._names[parameter]] = reduction(handle)
                handle.release()

        collector = Collector(
            lambda call: self.batch(global_step, batch_size or len(call.input)), keep
        )
        if self._recorder is None:
            with backpack(HandleFeed(collector.add), retain_graph=True):
                arrived = run()
        else:
            self._recorder.listen(collector.add)
            try:
                arrived = run()
            finally:
                self._recorder.stop()
        for parameter, gradient in zip(self._parameters.values(), arrived, strict=True):
            if gradient is not None:
                collector.complete(parameter)
        if collector.batch is None:
            raise NotChecked(
                "no layer reported its gradient: give the model as Cockpit(model, ...), or extend "
                "it with backpack.extend(model) before the forward pass"
            )
        collector.finish(self._parameters.values())
        self._report_refused(global_step, collector)
        return PerParameter((name, values[name]) for name in self._parameters if name in values)


def _adds_up(handle: IndividualGradients, arrived: Tensor) -> bool:
    """Compare the mean of the individual gradients with the gradient that arrived; waits for the device."""
    if arrived.is_sparse or handle.batch.size == 0:
        return True
    gradient = arrived.to(handle.dtype) * (handle.batch.scale / handle.batch.size)
    difference = torch.linalg.vector_norm(handle.mean() - gradient)
    digits = torch.finfo(arrived.dtype).eps
    allowed = 10 * digits**0.5 * torch.linalg.vector_norm(gradient)
    # Where the samples' gradients cancel, rounding is relative to these and not to their sum.
    allowed = allowed + 1e3 * digits * handle.square_norms().mean().sqrt()
    return not bool(difference > allowed)
