"""How a training is put together: what the doctor checks in its first steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cockpit.engine.needs import InForward, Moment, Observation, ParameterNorms
from cockpit.engine.scale import AccumulatedScale
from cockpit.engine.step import Missing, NotChecked, PerModule, PerParameter, Step
from cockpit.gradients import Call
from cockpit.quantities.layer_scales import WEIGHTED, LayerScales, Norms
from cockpit.quantities.loss_graph import LossFacts, loss_facts
from cockpit.quantities.quantity import Outcome, Quantity
from cockpit.quantities.sample_coupling import SampleCoupling
from cockpit.transforms import Need

OF_MODE = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
"""Modules that compute something else in evaluation mode; those with a `dropout` above 0 as well."""

CLOSE, EVERY = 3, 8
"""At the first tracked steps all is looked at, and then at every eighth: little of it changes."""


class Entry(NamedTuple):
    """What the optimizers know of a parameter: its rates, NaN for none, and how often it is listed."""

    rate: float | Tensor
    decay: float
    times: int


@dataclass(frozen=True)
class OptimizerEntries(Observation):
    """What the known optimizers have of every parameter, an `Entry` each."""

    moment = Moment.ENTRY

    def observe(self, step: Step) -> PerParameter:
        """Return the entries."""
        if not step.optimizers:
            reason = "no optimizer is known: give it to the cockpit, Cockpit(..., optimizer=opt)"
            raise NotChecked(reason, usual=True)
        entries = dict.fromkeys(step.parameters.values(), Entry(math.nan, math.nan, 0))
        for optimizer in step.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter in entries:
                        times = entries[parameter].times + 1
                        rate, decay = (group.get(k, math.nan) for k in ("lr", "weight_decay"))
                        entries[parameter] = Entry(rate, decay, times)
        return PerParameter((name, entries[p]) for name, p in step.parameters.items())


@dataclass(frozen=True)
class OfLoss(Observation):
    """What the graph of the loss shows, `LossFacts`."""

    moment = Moment.ENTRY
    info = ("loss",)

    def observe(self, step: Step) -> LossFacts:
        """Return the facts."""
        if step.live is None or step.live.postponed is not None:
            raise NotChecked("the graph of the loss cannot be looked at", usual=True)
        return loss_facts(step.live.loss)


class Leftover(NamedTuple):
    """A gradient that is there before the backward pass, and how often it had been written to."""

    grad: Tensor
    version: int
    norm: Tensor


@dataclass(frozen=True)
class LeftoverGradients(Observation):
    """The gradients that lie on the parameters before the backward pass, a `Leftover` each."""

    moment = Moment.ENTRY

    def observe(self, step: Step) -> PerParameter:
        """Return those that are there and dense."""
        grads = {
            name: p.grad
            for name, p in step.parameters.items()
            if p.grad is not None and not p.grad.is_sparse
        }
        norms = torch._foreach_norm(list(grads.values())) if grads else ()
        return PerParameter(
            (name, Leftover(grad, grad._version, norm))
            for (name, grad), norm in zip(grads.items(), norms, strict=True)
        )


@dataclass(frozen=True)
class Arrivals(Observation):
    """Of every parameter, whether it has a gradient, and the norm of what this was added to, `[]`.

    Autograd adds to a gradient that is there in place, once in a backward pass; zeroing it within the
    block, or putting another in its place, shows as well. Where the batch comes in several passes,
    nothing is told apart and the norms are 0.
    """

    moment = Moment.EXIT

    def observe(self, step: Step) -> PerParameter:
        """Return both."""
        before = step.values.get(LeftoverGradients())
        leftovers = before if isinstance(before, PerParameter) else PerParameter()
        found = PerParameter()
        for name, parameter in step.parameters.items():
            grad, left = parameter.grad, leftovers.get(name)
            found[name] = grad is not None, 0.0
            if left is not None and left.grad is grad and grad._version == left.version + 1:
                found[name] = True, left.norm
        return found


@dataclass(frozen=True)
class Modes(InForward):
    """Of every module that has a part in it, its `Mode`."""

    def see(self, name: str, call: Call, output: Any) -> Mode:
        """Return it."""
        module = call.module
        return Mode(module.training, _goes_by_mode(module), _evaluated(module))

    def joined(self, parts: Sequence[Mode]) -> Mode:
        """Return what holds for any of them."""
        training, matters, evaluated = zip(*parts, strict=True)
        return Mode(any(training), any(matters), evaluated[0])


class Mode(NamedTuple):
    """What the mode of a module is, and does.

    Args:
        training: Whether it is in training mode.
        matters: Whether it computes something else in evaluation mode.
        evaluated: Of a module in evaluation mode whose parameters are trained all the same, whether something in it
            drops nothing for that reason, or normalises by what nobody has measured: 0 or 1, `[]`.
    """

    training: bool
    matters: bool
    evaluated: int | Tensor


def _goes_by_mode(module: nn.Module) -> bool:
    share = getattr(module, "dropout", 0.0)
    return isinstance(module, OF_MODE) or (isinstance(share, float) and share > 0)


def _evaluated(module: nn.Module) -> int | Tensor:
    """Return `Mode.evaluated`.

    Batch normalisation with statistics may be frozen, and its scale trained all the same; with the mean of 0 and the
    variance of 1 that it is made with, it does not normalise.
    """
    if module.training or not any(p.requires_grad for p in module.parameters()):
        return 0
    of_mode = [one for one in module.modules() if not one.training and _goes_by_mode(one)]
    norms = [one for one in of_mode if isinstance(one, nn.modules.batchnorm._NormBase)]
    if len(norms) < len(of_mode):
        return 1
    batches = [one.num_batches_tracked for one in norms if one.num_batches_tracked is not None]
    return (torch.stack(batches) == 0).any() if batches else 0


class DataPart(NamedTuple):
    """What is to be known of data that a layer is given, to join it with others.

    Args:
        elements: Number of values.
        mean: Their mean, `[]`.
        squares: Mean square of each feature or channel, `[features]`.
        low: The least value, `[]`.
        high: The largest value, `[]`.
    """

    elements: int
    mean: Tensor
    squares: Tensor
    low: Tensor
    high: Tensor


@dataclass(frozen=True)
class OfData(InForward):
    """Of the layers that are given data: mean, mean square, extremes, and share of the largest feature, `[5]`.

    Data are what does not depend on a trained parameter. The share is that of one feature or channel in the sum
    of all squares.
    """

    def see(self, name: str, call: Call, output: Any) -> Tensor | None:
        """Return the five."""
        part = self.part(name, call, output)
        return None if part is None else self.joined([part])

    def part(self, name: str, call: Call, output: Any) -> DataPart | None:
        """Return what the five of several batches together are made from."""
        if not isinstance(call.module, WEIGHTED) or not call.args:
            return None
        x = call.args[0]
        if (
            not isinstance(x, Tensor)
            or x.requires_grad
            or not x.is_floating_point()
            or not x.numel()
        ):
            return None
        x = x.detach().float()
        spatial = 0 if isinstance(call.module, nn.Linear) else len(call.module.kernel_size)
        features = x.dim() - 1 - spatial
        others = [dim for dim in range(x.dim()) if dim != features]
        squares = x.square()
        by_feature = squares.mean(others) if others else squares
        return DataPart(x.numel(), x.mean(), by_feature, *torch.aminmax(x))

    def joined(self, parts: Sequence[DataPart]) -> Tensor:
        """Return the five of all together."""
        total = sum(part.elements for part in parts)
        mean = torch.stack([part.mean * (part.elements / total) for part in parts]).sum(0)
        squares = torch.stack([part.squares * (part.elements / total) for part in parts]).sum(0)
        low = torch.stack([part.low for part in parts]).amin()
        high = torch.stack([part.high for part in parts]).amax()
        return torch.stack([mean, squares.mean(), low, high, squares.amax() / squares.sum()])


@dataclass(frozen=True)
class FirstAndWith:
    """A schedule: the first steps, and those at which something else is tracked.

    Args:
        others: What else there is.
        first: How many steps from the first one on.
    """

    others: tuple[Quantity, ...]
    first: int = 3

    def __call__(self, global_step: int) -> bool:
        """Whether it is due."""
        return global_step < self.first or any(one.is_due(global_step) for one in self.others)


def is_close(times: int) -> bool:
    """Whether it is time for a closer look, after so many times."""
    return times < CLOSE or times % EVERY == 0


@dataclass(frozen=True)
class Wiring(Quantity):
    r"""How the training is put together: facts, and nothing to be drawn.

    Formula: all of it is in the details. By parameter: ``learning_rate`` and ``weight_decay``, NaN where no known
    optimizer has it; ``optimizers``, how often these list it; ``has_gradient``, whether the backward pass has left
    a gradient; ``added_to``, norm of the gradient that was there before and that this was added to.
    ``accumulated``, whether the batch comes in several backward passes. By layer that is given data: ``data/mean``,
    ``data/rms``, ``data/min``, ``data/max`` and ``data/largest_share``, the share of one feature or channel in the
    sum of all squares. By linear layer and convolution: ``layers/gain``, ``layers/twins``, ``layers/input`` and
    ``layers/offset``: see `cockpit.quantities.layer_scales.LayerScales`. By module, once: ``coupling/share`` and
    ``coupling/by_design``: see `cockpit.quantities.sample_coupling.SampleCoupling`; ``norms/count``, how many
    normalisation layers there are, and ``norms/layers``, which. Of the model: ``modes/training``, whether it is in
    training mode, ``modes/matter``, how many modules go by that, and ``modes/evaluating``, how many of these are in
    evaluation mode; by module in evaluation mode that is trained all the same, ``modes/evaluated``: see `Mode`.
    ``norm``, that of all parameters before the update. Of the loss, as its graph shows: ``loss/classes`` and
    ``loss/over_guess``, the loss over that of a blind guess, :math:`\log C` for each of the targets, where it is a
    cross-entropy, ``loss/weight``, the sum of the targets' weights, 1 for a mean, and 1 for what is wrong with what
    goes into it: see `cockpit.quantities.loss_graph.LossFacts`.

    Learning rates, modes and ``added_to`` are looked at whenever it is tracked; the rest at the first three of
    these steps and at every eighth.

    How to read it: leave that to the doctor.

    Source: Karpathy (2019), "A Recipe for Training Neural Networks".

    With accumulation: the loss, the data and the modes are those of the first micro-batch.
    """

    entries = OptimizerEntries()
    of_loss = OfLoss()
    leftover = LeftoverGradients()
    arrivals = Arrivals()
    sizes = ParameterNorms()
    modes = Modes()
    data = OfData()
    layers = LayerScales()
    norms = Norms()
    places = SampleCoupling.places
    coupling = SampleCoupling()

    def needs_at(self, global_step: int, memory: Any) -> tuple[Need, ...]:
        """Return the needs of a step: which layers normalise and where samples meet is found out once."""
        memory = memory or {}
        needs: list[Need] = [self.entries, self.leftover, self.arrivals, self.sizes, self.modes]
        if is_close(memory.get("times", 0)):
            needs += [self.of_loss, self.data, self.layers]
        if "coupling" not in memory:
            needs += [self.norms, self.places, self.coupling]
        return tuple(needs)

    def remember(self, step: Step) -> Any:
        """Remember how often it has looked, and that it has been found out where samples meet."""
        memory = {**(step.memory or {})}
        memory["times"] = memory.get("times", 0) + 1
        if self.coupling in step.values and not isinstance(step.values[self.coupling], Missing):
            memory["coupling"] = 1
        return memory

    def compute(self, step: Step) -> Outcome:
        """Return the facts that could be had."""
        details: dict[str, Any] = {}
        reasons = []
        for part in (
            self._of_optimizers,
            self._of_gradients,
            self._of_parameters,
            self._of_modules,
            self._of_layers,
            self._of_loss,
            self._of_samples,
        ):
            try:
                details |= part(step)
            except NotChecked as error:
                reasons.append(str(error))
        if not details:
            raise NotChecked("; ".join(reasons), usual=True)
        return Outcome({}, details)

    def _of_optimizers(self, step: Step) -> dict[str, Any]:
        entries = step[self.entries]
        rates = PerParameter((name, one.rate) for name, one in entries.items())
        if self.data not in step.values:
            return {"learning_rate": rates}
        return {
            "learning_rate": rates,
            "weight_decay": PerParameter((name, one.decay) for name, one in entries.items()),
            "optimizers": PerParameter((name, one.times) for name, one in entries.items()),
        }

    def _of_gradients(self, step: Step) -> dict[str, Any]:
        arrivals = step[self.arrivals]
        added = PerParameter((name, norm) for name, (_, norm) in arrivals.items())
        if self.data not in step.values:
            return {"added_to": added}
        there = PerParameter((name, int(there)) for name, (there, _) in arrivals.items())
        several = isinstance(step.scale, AccumulatedScale)
        return {"has_gradient": there, "added_to": added, "accumulated": int(several)}

    def _of_parameters(self, step: Step) -> dict[str, Any]:
        return {"norm": torch.linalg.vector_norm(torch.stack(list(step[self.sizes].values())))}

    def _of_modules(self, step: Step) -> dict[str, Any]:
        modes = step[self.modes]
        of_mode = [one.training for one in modes.values() if one.matters]
        root = list(modes.values())[-1:]  # a module returns after those that it contains
        return {
            "modes": {
                "training": int(all(one.training for one in root)),
                "matter": len(of_mode),
                "evaluating": len(of_mode) - sum(of_mode),
                "evaluated": PerModule(
                    (name, one.evaluated)
                    for name, one in modes.items()
                    if isinstance(one.evaluated, Tensor) or one.evaluated
                ),
            },
        }

    def _of_layers(self, step: Step) -> dict[str, Any]:
        if self.data not in step.values:
            return {}
        return {
            "data": dict(_columns(step[self.data])),
            "layers": dict(_of_layers(step[self.layers])),
        }

    def _of_loss(self, step: Step) -> dict[str, Any]:
        if self.of_loss not in step.values:
            return {}
        facts: LossFacts = step[self.of_loss]
        return {"loss": facts.record()}

    def _of_samples(self, step: Step) -> dict[str, Any]:
        if self.coupling not in step.values:  # known already
            return {}
        facts: dict[str, Any] = {
            "batch_size": step.batch_size,
            "norms": {"count": len(step[self.norms]), "layers": step[self.norms]},
        }
        with suppress(NotChecked):
            shares, by_design = step[self.coupling]
            facts["coupling"] = {"share": shares, "by_design": by_design}
        return facts


def _columns(data: PerModule) -> Iterator[tuple[str, PerModule]]:
    """Yield the statistics of the data by their names, each by layer."""
    for place, name in enumerate(("mean", "rms", "min", "max", "largest_share")):
        values = ((layer, five[place]) for layer, five in data.items())
        yield name, PerModule((k, v.sqrt() if name == "rms" else v) for k, v in values)


def _of_layers(scales: PerModule) -> Iterator[tuple[str, PerModule]]:
    """Yield the scales of the layers by their names, each by layer."""
    for place, name in enumerate(("gain", "twins", "input", "offset")):
        yield name, PerModule((layer, four[place]) for layer, four in scales.items())
