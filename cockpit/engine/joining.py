"""Puts together what the processes of one training bring of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cockpit.engine.distributed import Ranks
from cockpit.engine.scale import AccumulatedScale, LossScale
from cockpit.engine.step import Missing, PerModule
from cockpit.gradients import Batch, IndividualGradients, joint
from cockpit.gradients.distributed import Layout, Spread, layout
from cockpit.transforms import Need

if TYPE_CHECKING:
    from cockpit.engine.gathering import Gathered
    from cockpit.engine.needs import InForward
    from cockpit.engine.reports import Reports, Result


# -- the backward passes --------------------------------------------------------------------------


@dataclass(frozen=True)
class PassReport:
    """What a process tells of one of its backward passes, on the host.

    Args:
        size: Number of samples.
        factor: Factor on the loss.
        reduction: What the loss is divided by to be the mean loss.
        loss: The loss, `[]`, if there is one.
        individual: The losses of the samples, `[N]`, where they were given.
        weights: What these are multiplied with to give ℓ_i.
    """

    size: int
    factor: float
    reduction: float
    loss: Tensor | None
    individual: Tensor | None
    weights: Tensor | float

    @classmethod
    def of(cls, gathered: Gathered) -> PassReport:
        """Report a backward pass. This waits for the device."""
        scale, size = gathered.scale, gathered.batch_size
        weights = scale.sample_weights()
        return cls(
            size,
            1.0 if scale.factor is None else float(scale.factor),
            float(scale.reduction(size or 1)),
            scale.loss.cpu() if scale.given else None,
            None if scale.individual is None else scale.individual.cpu(),
            weights.cpu() if isinstance(weights, Tensor) else weights,
        )


class ReportedScale(LossScale):
    """How the loss went into a backward pass of some process.

    Args:
        report: What that process tells.
        device: Where to compute with it.
    """

    def __init__(self, report: PassReport, device: torch.device) -> None:
        super().__init__(None, None)
        self._loss = None if report.loss is None else report.loss.to(device)
        self._individual = None if report.individual is None else report.individual.to(device)
        self._reduction, weights = report.reduction, report.weights
        self._weights = weights.to(device) if isinstance(weights, Tensor) else weights
        self.factor = torch.tensor(report.factor, dtype=torch.float64)

    def reduction(self, batch_size: int) -> float:
        """Return r as it was seen there."""
        return self._reduction

    def sample_weights(self) -> Tensor | float:
        """Return the weights as they were seen there."""
        return self._weights


@dataclass
class Report:
    """What a process tells of its part of a step.

    Args:
        passes: Its backward passes.
        layouts: For each parameter with individual gradients, the layout of their factors.
        fault: Why they cannot be trusted as a whole, if so.
        notes: What is to be known of it, as calls of `Reports`.
    """

    passes: list[PassReport]
    layouts: dict[str, Layout | None] = field(default_factory=dict)
    fault: str | None = None
    notes: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)


class Joined:
    """The step of all processes.

    Args:
        reports: What each of them tells, in their order.
        ranks: The processes.
        device: Where to compute.
    """

    def __init__(self, reports: Sequence[Report], ranks: Ranks, device: torch.device) -> None:
        self._reports, self._ranks = reports, ranks
        passes = [of_pass for report in reports for of_pass in report.passes]
        self._scales = [(ReportedScale(p, device), p.size or 1) for p in passes]
        self.scale = AccumulatedScale(self._scales)
        self.sizes = [sum(p.size for p in report.passes) for report in reports]
        own = slice(
            first := sum(len(report.passes) for report in reports[: ranks.rank]),
            first + len(reports[ranks.rank].passes),
        )
        self._factors = [float(factor) for factor in self.scale.factors()][own]

    @property
    def size(self) -> int:
        """Number of samples, N."""
        return sum(self.sizes)

    @property
    def loss(self) -> Tensor | None:
        """The loss of the whole, `[]`, if every process has one."""
        if not all(scale.given for scale, _ in self._scales):
            return None
        return self.scale.loss()

    @property
    def individual(self) -> Tensor | None:
        """The losses of the samples, `[N]`, where every process was given them."""
        losses = [scale.individual for scale, _ in self._scales]
        known = [of_pass for of_pass in losses if of_pass is not None]
        return torch.cat(known) if len(known) == len(losses) else None

    @property
    def fault(self) -> str | None:
        """Why the individual gradients cannot be trusted as a whole, if so."""
        for rank, report in enumerate(self._reports):
            if report.fault is not None:
                return report.fault if rank == 0 else f"rank {rank}: {report.fault}"
            if report.layouts and not self.sizes[rank]:
                return f"rank {rank} has no samples in this step"
        return None

    def tracked(self, parameters: Sequence[str]) -> list[str]:
        """Return the parameters that have individual gradients on every process, in the order of the model."""
        return [name for name in parameters if all(name in r.layouts for r in self._reports)]

    def spread(
        self, handles: Sequence[IndividualGradients], own: Batch, whole: Batch
    ) -> IndividualGradients:
        """Put the individual gradients of one parameter side by side.

        Args:
            handles: Those of this process, one for each of its backward passes.
            own: The samples of this process.
            whole: The samples of all of them.
        """
        local = handles[0]
        if len(handles) > 1 or self._factors != [1.0]:
            local = joint(own, handles, self._factors)
        name = local.name
        layouts = {report.layouts[name] for report in self._reports}
        closed = len(layouts) == 1 and None not in layouts and len(handles) == 1
        closed = closed and layout(local) is not None
        return Spread(whole, local, self.sizes, self._ranks, closed)

    def replay(self, reports: Reports) -> None:
        """Report what is to be known of any process, as all of them do."""
        told = list(self._reports[0].notes)
        for name, arguments in told:
            getattr(reports, name)(*arguments)
        for rank, report in enumerate(self._reports[1:], start=1):
            for name, arguments in report.notes:
                if (name, arguments) in told:
                    continue
                told.append((name, arguments))
                if name == "untracked":
                    *what, reason = arguments
                    arguments = (*what, f"rank {rank}: {reason}")
                getattr(reports, name)(*arguments)


class Relay:
    """Takes what a process has to report of its own part, until the processes meet.

    Args:
        reports: Where results go, which are those of all processes.
    """

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._notes: list[tuple[str, tuple[Any, ...]]] = []

    def take(self) -> list[tuple[str, tuple[Any, ...]]]:
        """Return what was reported, and forget it."""
        notes, self._notes = self._notes, []
        return notes

    def results(self, results: list[Result]) -> None:
        """Hand results on."""
        self._reports.results(results)

    def untracked(self, global_step: int, parameter: str, reason: str) -> None:
        """Keep the note of a parameter whose individual gradients cannot be had."""
        self._notes.append(("untracked", (global_step, parameter, reason)))

    def mismatch(self, global_step: int, parameter: str, layer: str, apart: float) -> None:
        """Keep the note of one whose individual gradients do not add up to its gradient."""
        self._notes.append(("mismatch", (global_step, parameter, layer, apart)))

    def doubt(self, global_step: int, times: float) -> None:
        """Keep the note of a loss that is neither a mean nor a sum."""
        self._notes.append(("doubt", (global_step, times)))

    def drawn(self, global_step: int, count: int, size: int) -> None:
        """Keep the note of how many samples were drawn."""
        self._notes.append(("drawn", (global_step, count, size)))

    def layout(self, global_step: int, subject: str, reason: str) -> None:
        """Keep the note of what is not known for sure of where the samples lie."""
        self._notes.append(("layout", (global_step, subject, reason)))


# -- the forward pass -----------------------------------------------------------------------------


@dataclass(frozen=True)
class EntryReport:
    """What a process tells when it enters a step.

    Args:
        size: Number of samples; 0 where it is not known.
        asked: What it is about to do, as text.
        seen: What each need that looks at the forward pass has seen; see `InForward.part`.
        refused: Modules of which it can see nothing, and why.
    """

    size: int
    asked: str
    seen: list[Any]
    refused: list[dict[str, str]]


def joined_forward(
    needs: Sequence[InForward], reports: Sequence[EntryReport]
) -> tuple[dict[Need, Any], dict[Need, dict[str, str]]]:
    """Return the values of needs that look at the forward pass, and which modules were left out why."""
    values: dict[Need, Any] = {}
    refused: dict[Need, dict[str, str]] = {}
    for place, need in enumerate(needs):
        values[need] = _joined_modules(need, [report.seen[place] for report in reports])
        for report in reports:
            for module, reason in report.refused[place].items():
                refused.setdefault(need, {}).setdefault(module, reason)
    return values, refused


def _joined_modules(need: InForward, seen: Sequence[Any]) -> Any:
    for rank, of_one in enumerate(seen):
        if isinstance(of_one, Missing):
            reason = of_one.reason if rank == 0 else f"rank {rank}: {of_one.reason}"
            return Missing(reason, of_one.usual)
    modules = dict.fromkeys(name for of_one in seen for name in of_one)
    try:
        return PerModule(
            (name, need.joined([of_one[name] for of_one in seen if name in of_one]))
            for name in modules
        )
    except NotImplementedError:
        return Missing(
            f"{type(need).__name__} looks at the forward pass, and does not say how the values of "
            "several processes are put together; define part(name, call, output) and joined(parts)"
        )


# -- values --------------------------------------------------------------------------------------


def agreed(ranks: Ranks, results: Sequence[Result]) -> list[Result]:
    """Return the results of a moment, without those that one of the processes could not compute."""
    reasons = {
        (result.global_step, result.quantity): result.value
        for result in results
        if isinstance(result.value, Missing)
    }
    missing = ranks.failures(reasons)
    return [
        replace(result, value=missing[key])
        if (key := (result.global_step, result.quantity)) in missing
        else result
        for result in results
    ]


def on_host(value: Any) -> Any:
    """Return a copy of nested values whose tensors are on the host."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, Mapping):
        return type(value)((key, on_host(item)) for key, item in value.items())  # type: ignore[call-arg]
    if isinstance(value, tuple | list):
        items = [on_host(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
