"""Evenly spaced parts of large tensors, always the same ones, for statistics that need not look at everything."""

from __future__ import annotations

import math

from torch import Tensor

SAMPLES = 16
"""Samples that are looked at, at least: the positions of one image or text are alike."""


def spaced_elements(tensor: Tensor, elements: int | None) -> Tensor:
    """Return evenly spaced elements of a tensor, `[n]`, from all its columns; all of them if n is None or enough.

    Args:
        tensor: The tensor.
        elements: The largest n.
    """
    flat = tensor.reshape(-1)
    if elements is None or len(flat) <= elements:
        return flat
    step = math.ceil(len(flat) / elements)
    while math.gcd(step, tensor.shape[-1]) > 1:  # it would come back to the same columns
        step += 1
    return flat[::step].contiguous()


def spaced_samples(outputs: Tensor, units: int, elements: int) -> Tensor:
    """Return evenly spaced samples and positions of a module's output, with all their units, as a view.

    Samples, in dimension 0, are left out first, down to `SAMPLES` of them, and then positions.

    Args:
        outputs: The output.
        units: The dimension of the units.
        elements: How many elements are to be left.
    """
    for dim in range(outputs.dim()):
        if dim != units and outputs.numel() > elements:
            least = SAMPLES if dim == 0 else 1
            wanted = max(least, outputs.shape[dim] * elements // outputs.numel())
            step = math.ceil(outputs.shape[dim] / wanted)
            start = (outputs.shape[dim] - 1) % step // 2
            outputs = outputs[(slice(None),) * dim + (slice(start, None, step),)]
    return outputs
