"""Convolutions in one, two and three dimensions, with groups, strides, dilation and every padding mode."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from cockpit.gradients.batch import Batch
from cockpit.gradients.convolution import ConvolutionGradients
from cockpit.gradients.handle import Dense, IndividualGradients
from cockpit.gradients.rules.registry import Call, factors, rule_for

PADDING_MODES = {
    "zeros": "constant",
    "reflect": "reflect",
    "replicate": "replicate",
    "circular": "circular",
}


@rule_for(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch
) -> dict[str, IndividualGradients]:
    """Serve a convolution of `[N, C, *spatial]`."""
    module = call.module
    assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    inputs, grad = factors(call, grads, batch, batched_dims=2 + len(module.kernel_size))
    inputs = _padded(inputs, module)
    handles: dict[str, IndividualGradients] = {
        "weight": ConvolutionGradients(batch, module, inputs, grad)
    }
    if module.bias is not None:
        handles["bias"] = Dense(batch, grad.flatten(2).sum(2))
    return handles


def _padded(inputs: Tensor, module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> Tensor:
    """Pad the input as the layer does."""
    sides: list[tuple[int, int]]
    if module.padding == "valid":
        return inputs
    if module.padding == "same":
        totals = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        sides = [(total // 2, total - total // 2) for total in totals]
    else:
        sides = [(int(side), int(side)) for side in module.padding]
    flat = [side for pair in reversed(sides) for side in pair]  # the last dimension comes first
    if not any(flat):
        return inputs
    return F.pad(inputs, flat, mode=PADDING_MODES[module.padding_mode])
