"""Where values stop being finite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cockpit.engine.needs import InForward, Moment, Observation
from cockpit.engine.step import PerModule, PerParameter, Step
from cockpit.gradients import Call
from cockpit.quantities.quantity import Outcome, Quantity


@dataclass(frozen=True)
class NonFiniteOutputs(InForward):
    """Counts of NaN and infinities in the output of every module, `[n]` by its first dimension."""

    def see(self, name: str, call: Call, output: Any) -> Tensor | None:
        """Return the counts; `[1]` where the output's tensors differ in their first dimension."""
        counts = [non_finite(tensor) for tensor in floating(output)]
        if len({len(of_one) for of_one in counts}) > 1:
            counts = [of_one.sum().reshape(1) for of_one in counts]
        return torch.stack(counts).sum(0) if counts else None


@dataclass(frozen=True)
class NonFiniteGradients(Observation):
    """Count of NaN and infinities in ``parameter.grad``, per parameter `[]`; 0 where there is none."""

    moment = Moment.EXIT

    def observe(self, step: Step) -> PerParameter:
        """Return the counts."""
        counts = PerParameter()
        for name, parameter in step.parameters.items():
            grad = parameter.grad
            if grad is None:
                counts[name] = torch.zeros((), dtype=torch.int64, device=parameter.device)
            else:
                values = grad.coalesce().values() if grad.is_sparse else grad
                counts[name] = (values - values).count_nonzero()
        return counts


def non_finite(tensor: Tensor) -> Tensor:
    """Return how many values are not finite in each entry of the first dimension, `[n]`."""
    tensor = tensor.detach()
    rows = tensor.reshape(len(tensor), -1) if tensor.dim() else tensor.reshape(1, 1)
    return (rows - rows).count_nonzero(1)  # x - x is 0 for finite x, and else NaN, which is not 0


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
    the first such output. The details tell which: ``values`` (count of such values in the output of
    every module), ``order`` (place of the module among all, in the order in which they returned, from
    0), ``gradient_values`` (count in ``parameter.grad`` of every parameter), ``by_sample`` (`[N]`,
    count for each sample in that first output).

    The first module is the one of the smallest ``order`` with ``values`` above 0. A module that
    contains others returns after them. Gradients flow from the end of the model to its beginning,
    so that the last parameter, in the order of the model, with ``gradient_values`` above 0 is the
    first one that was hit. Samples are told apart where the first dimension of an output is as long
    as the batch; "the first output" is the first one for which that holds.

    How to read it: all are 0 in a healthy run. With gradient scaling, an infinite gradient now and
    then is usual: the scaler skips that step. With finite modules and gradients that are not, look
    at the loss, and at roots, norms and divisions whose derivative has a pole. A few samples point
    at the data, all of them at the step size or the precision.

    Source: the definition of floating-point numbers, IEEE 754.
    """

    outputs = NonFiniteOutputs()
    gradients = NonFiniteGradients()

    def compute(self, step: Step) -> Outcome:
        """Return the three numbers, each `[]`; by module, parameter and sample in the details."""
        outputs, gradients = step[self.outputs], step[self.gradients]
        values = PerModule((name, rows.sum()) for name, rows in outputs.items())
        value = {"modules": number_above_zero(values), "gradients": number_above_zero(gradients)}
        details: dict[str, Any] = {
            "values": values,
            "order": PerModule((name, place) for place, name in enumerate(outputs)),
            "gradient_values": gradients,
        }
        aligned = [rows for rows in outputs.values() if len(rows) == step.batch_size]
        if aligned:
            table = torch.stack([rows.to(aligned[0].device) for rows in aligned])  # [modules, N]
            first = table.any(1).int().argmax()  # of all zeros, it is 0
            details["by_sample"] = table.index_select(0, first.reshape(1))[0]
            value["samples"] = details["by_sample"].count_nonzero()
        return Outcome(value, details)


def number_above_zero(counts: Mapping[str, Tensor]) -> Tensor | int:
    """Return how many of the counts are above 0."""
    if not counts:
        return 0
    device = next(iter(counts.values())).device
    return torch.stack([count.to(device) for count in counts.values()]).count_nonzero()
