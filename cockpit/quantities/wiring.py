"""How a training is put together: what the doctor checks in its first steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cockpit.engine.needs import InForward, Moment, Observation
from cockpit.engine.step import NotChecked, PerModule, PerParameter, Step
from cockpit.gradients import Call
from cockpit.quantities.loss_graph import LossFacts, loss_facts
from cockpit.quantities.quantity import Outcome, Quantity

OF_MODE = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
"""Modules that compute something else in evaluation mode; those with a `dropout` above 0 as well."""

OF_DATA = (nn.Linear, nn.modules.conv._ConvNd)
"""Layers whose input has a scale that matters."""


class Entry(NamedTuple):
    """What the optimizers know of a parameter: its learning rate, NaN for none, and how often it is listed."""

    rate: float | Tensor
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
        entries = dict.fromkeys(step.parameters.values(), Entry(math.nan, 0))
        for optimizer in step.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter in entries:
                        times = entries[parameter].times + 1
                        entries[parameter] = Entry(group.get("lr", math.nan), times)
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
    """Of every module that has a part in it, whether it is in training mode, and whether that matters to it."""

    def see(self, name: str, call: Call, output: Any) -> tuple[bool, bool]:
        """Return both."""
        module = call.module
        share = getattr(module, "dropout", 0.0)
        drops = isinstance(share, float) and share > 0
        return module.training, drops or isinstance(module, OF_MODE)

    def joined(self, parts: Sequence[tuple[bool, bool]]) -> tuple[bool, bool]:
        """Return what holds for any of them."""
        return any(training for training, _ in parts), any(matters for _, matters in parts)


@dataclass(frozen=True)
class OfData(InForward):
    """Of the layers that are given data: count, mean, mean square, least and largest value, `[5]`.

    Data are what does not depend on a trained parameter.
    """

    def see(self, name: str, call: Call, output: Any) -> Tensor | None:
        """Return the five."""
        if not isinstance(call.module, OF_DATA) or not call.args:
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
        count = x.new_tensor(x.numel())
        return torch.stack([count, x.mean(), x.square().mean(), *torch.aminmax(x)])

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the five of all together."""
        table = torch.stack(list(parts))
        counts = table[:, :1]
        means = (counts * table[:, 1:3]).sum(0) / counts.sum()
        return torch.cat([counts.sum(0), means, table[:, 3].amin()[None], table[:, 4].amax()[None]])


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


@dataclass(frozen=True)
class Wiring(Quantity):
    r"""How the training is put together: facts, and nothing to be drawn.

    Formula: all of it is in the details. By parameter: ``learning_rate``, NaN where no known optimizer
    has it; ``optimizers``, how often these list it; ``has_gradient``, whether the backward pass has left
    a gradient; ``added_to``, norm of the gradient that was there before and that this was added to. By
    layer that is given data: ``data/mean``, ``data/rms``, ``data/min`` and ``data/max``. Of the model:
    ``modes/training``, whether it is in training mode, ``modes/matter``, how many modules go by that,
    and ``modes/evaluating``, how many of these are in evaluation mode. Of the loss, as its graph
    shows: ``loss/classes`` and ``loss/over_guess``, the loss over that of a blind guess,
    :math:`\log C` for each of the targets, where it is a cross-entropy, and 1 for what is wrong with
    what goes into it: see `cockpit.quantities.loss_graph.LossFacts`.

    How to read it: leave that to the doctor.

    Source: Karpathy (2019), "A Recipe for Training Neural Networks".

    With accumulation: the loss, the data and the modes are those of the first micro-batch.
    """

    entries = OptimizerEntries()
    of_loss = OfLoss()
    leftover = LeftoverGradients()
    arrivals = Arrivals()
    modes = Modes()
    data = OfData()

    def compute(self, step: Step) -> Outcome:
        """Return the facts that could be had."""
        details: dict[str, Any] = {}
        reasons = []
        for part in (self._of_optimizers, self._of_gradients, self._of_modules, self._of_loss):
            try:
                details |= part(step)
            except NotChecked as error:
                reasons.append(str(error))
        if not details:
            raise NotChecked("; ".join(reasons), usual=True)
        return Outcome({}, details)

    def _of_optimizers(self, step: Step) -> dict[str, Any]:
        entries = step[self.entries]
        return {
            "learning_rate": PerParameter((name, one.rate) for name, one in entries.items()),
            "optimizers": PerParameter((name, one.times) for name, one in entries.items()),
        }

    def _of_gradients(self, step: Step) -> dict[str, Any]:
        arrivals = step[self.arrivals]
        return {
            "has_gradient": PerParameter(
                (name, int(there)) for name, (there, _) in arrivals.items()
            ),
            "added_to": PerParameter((name, norm) for name, (_, norm) in arrivals.items()),
        }

    def _of_modules(self, step: Step) -> dict[str, Any]:
        modes, data = step[self.modes], step[self.data]
        of_mode = [training for training, matters in modes.values() if matters]
        root = list(modes.values())[-1:]  # a module returns after those that it contains
        return {
            "modes": {
                "training": int(all(training for training, _ in root)),
                "matter": len(of_mode),
                "evaluating": len(of_mode) - sum(of_mode),
            },
            "data": dict(_columns(data)),
        }

    def _of_loss(self, step: Step) -> dict[str, Any]:
        facts: LossFacts = step[self.of_loss]
        return {"loss": facts.record()}


def _columns(data: PerModule) -> Iterator[tuple[str, PerModule]]:
    """Yield the statistics of the data by their names, each by layer."""
    for place, name in ((1, "mean"), (2, "rms"), (3, "min"), (4, "max")):
        values = ((layer, five[place]) for layer, five in data.items())
        yield name, PerModule((k, v.sqrt() if name == "rms" else v) for k, v in values)
