"""Where values stop being finite."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cockpit.engine.needs import GradientNorms, InForward, Moment, Observation
from cockpit.engine.step import PerModule, PerParameter, Step
from cockpit.gradients import Call
from cockpit.quantities.quantity import Outcome, Quantity


@dataclass(frozen=True)
class NonFiniteOutputs(InForward):
    """NaN and infinities in the output of every module: their count, `[]`, and which entries have them.

    The entries are those of the first dimension, `[n]`; None where the tensors of an output differ in
    its length.
    """

    def see(self, name: str, call: Call, output: Any) -> tuple[Tensor, Tensor | None] | None:
        """Return both."""
        tensors = floating(output)
        if not tensors:
            return None
        told_apart = len({tensor.shape[:1] for tensor in tensors}) == 1 and tensors[0].dim() > 0
        if are_finite(tensors):
            rows = tensors[0].new_zeros(len(tensors[0]), dtype=torch.bool) if told_apart else None
            return torch.zeros((), dtype=torch.int64), rows
        differences = [zero_or_nan(tensor) for tensor in tensors]
        count = torch.stack([d.count_nonzero() for d in differences]).sum()
        if not told_apart:
            return count, None
        rows = torch.stack([d.reshape(len(d), -1).sum(1) for d in differences])
        return count, rows.isnan().any(0)

    def joined(self, parts: Sequence[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None]:
        """Add the counts up, and put the entries one after the other."""
        counts, rows = zip(*parts, strict=True)
        count = torch.stack(counts).sum()
        return count, None if any(r is None for r in rows) else torch.cat(rows)


@dataclass(frozen=True)
class NonFiniteGradients(Observation):
    """Whether ``parameter.grad`` has NaN or infinities, per parameter `[]`; false where there is none."""

    moment = Moment.EXIT

    def observe(self, step: Step) -> PerParameter:
        """Return the answers."""
        seen = step.values.get(GradientNorms())  # finite only if the gradient is
        norms = seen if isinstance(seen, PerParameter) else PerParameter()
        extremes = {}
        for name, parameter in step.parameters.items():
            if name in norms and are_finite([norms[name]]):
                continue
            grad = parameter.grad
            if grad is not None and grad.is_sparse:
                grad = grad.coalesce().values()
            if grad is not None and grad.numel() and not are_finite([grad]):
                extremes[name] = torch.stack(torch.aminmax(grad.detach()))  # NaN if one is
        device = next(iter(step.parameters.values())).device
        hit = dict.fromkeys(step.parameters, torch.zeros((), dtype=torch.bool, device=device))
        if extremes:
            table = torch.stack([of_one.to(device) for of_one in extremes.values()])
            hit |= zip(extremes, table.isfinite().all(1).logical_not().unbind(), strict=True)
        return PerParameter(hit)


def are_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether tensors are known to be finite: their sums cannot be, unless all values are.

    On the processor that takes a tenth of the time that looking at every value does. Elsewhere, and
    where a compiler records what is done, one would have to wait for the answer, and nothing is known.
    """
    if torch.compiler.is_compiling() or any(t.device.type != "cpu" for t in tensors):
        return False
    return all(
        math.isfinite(tensor.detach().sum(dtype=torch.promote_types(tensor.dtype, torch.float32)))
        for tensor in tensors
    )


def zero_or_nan(tensor: Tensor) -> Tensor:
    """Return x - x: 0 where x is finite, and NaN, which counts as nonzero, where it is not."""
    return tensor.detach() - tensor.detach()


def floating(output: Any) -> list[Tensor]:
    """Return the floating-point tensors in the output of a module."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() and output.numel() else []
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, tuple | list):
        return [tensor for value in output for tensor in floating(value)]
    return []


@dataclass(frozen=True)
class NonFinite(Quantity):
    r"""Where NaN and infinities come from: modules, gradients, samples.

    Formula: ``modules`` and ``gradients``, how many modules returned, and how many parameters got
    in their gradient, a value that is not finite; ``samples``, how many samples have such a value in
    the first such output. The details, where there are any, tell which: ``values`` (count of such
    values in the output of every module), ``order`` (place of the module among all, in the order in
    which they returned, from 0), ``hit`` (1 for every parameter with such a gradient, 0 for the
    others), ``by_sample`` (`[N]`, true for those samples).

    The first module is the one of the smallest ``order`` with ``values`` above 0. A module that
    contains others returns after them. Gradients flow from the end of the model to its beginning,
    so that of the parameters with ``hit`` the last one, in the order of the model, was hit first.
    Samples are told apart where the first dimension of an output is as long as the batch; "the
    first output" is the first one for which that holds.

    How to read it: all are 0 in a healthy run. With gradient scaling, an infinite gradient now and
    then is usual: the scaler skips that step. With finite modules and gradients that are not, look
    at the loss, and at roots, norms and divisions whose derivative has a pole. A few samples point
    at the data, all of them at the step size or the precision.

    Source: the definition of floating-point numbers, IEEE 754.

    With accumulation: the outputs of the first micro-batch, whose samples are not told apart; the
    gradients of the whole batch.
    """

    outputs = NonFiniteOutputs()
    gradients = NonFiniteGradients()

    def compute(self, step: Step) -> Outcome:
        """Return the three numbers, each `[]`; by module, parameter and sample in the details."""
        outputs, gradients = step[self.outputs], step[self.gradients]
        values = PerModule((name, count) for name, (count, _) in outputs.items())
        value = {"modules": number_above_zero(values), "gradients": number_above_zero(gradients)}
        aligned = [
            rows
            for _, rows in outputs.values()
            if rows is not None and len(rows) == step.batch_size
        ]
        if aligned:
            table = torch.stack([rows.to(aligned[0].device) for rows in aligned])  # [modules, N]
            first = table.any(1).int().argmax()  # 0 where there is none
            by_sample = table.index_select(0, first.reshape(1))[0]
            value["samples"] = by_sample.sum()
        if all(are_none(count) for count in value.values()):
            return Outcome(value, {})
        details: dict[str, Any] = {
            "values": values,
            "order": PerModule((name, place) for place, name in enumerate(outputs)),
            "hit": gradients,
        }
        if aligned:
            details["by_sample"] = by_sample
        return Outcome(value, details)


def are_none(count: Tensor | int) -> bool:
    """Whether a count is known to be 0, without waiting for a device."""
    return (isinstance(count, int) or count.device.type == "cpu") and int(count) == 0


def number_above_zero(counts: Mapping[str, Tensor]) -> Tensor | int:
    """Return how many of the counts are above 0."""
    if not counts:
        return 0
    device = next(iter(counts.values())).device
    return torch.stack([count.to(device) for count in counts.values()]).count_nonzero()
