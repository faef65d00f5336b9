"""Convolutions, plain and transposed, in one to three dimensions, with every stride, padding, dilation and grouping."""

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
    batched_dims = 2 + len(module.kernel_size)
    inputs, grad = factors(call, grads, batch, batched_dims, scaled=False)
    inputs = _padded(inputs, module)
    sums = None if module.bias is None else grad.flatten(2).sum(2) * batch.scale
    # The weight's gradient is linear in both; early layers have few channels and many positions.
    if grad.numel() > inputs.numel():
        inputs = inputs * batch.scale
    else:
        grad = grad * batch.scale
    handles: dict[str, IndividualGradients] = {
        "weight": ConvolutionGradients(batch, module, inputs, grad)
    }
    if sums is not None:
        handles["bias"] = Dense(batch, sums)
    return handles


@rule_for(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def transposed_convolution(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch
) -> dict[str, IndividualGradients]:
    """Serve a transposed convolution: a convolution that leads from the output back to the input."""
    module = call.module
    assert isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d)
    inputs, grad = factors(call, grads, batch, batched_dims=2 + len(module.kernel_size))
    handles: dict[str, IndividualGradients] = {
        "weight": ConvolutionGradients(batch, module, _reached(grad, inputs, module), inputs)
    }
    if module.bias is not None:
        handles["bias"] = Dense(batch, grad.flatten(2).sum(2))
    return handles


def _reached(
    grad: Tensor,
    inputs: Tensor,
    module: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d,
) -> Tensor:
    """Pad or cut the output's gradient to what the kernel reaches from the input: `padding` takes off, the rest adds.

    Along each dimension that is (S − 1)·stride + dilation·(kernel − 1) + 1 for S inputs.
    """
    flat: list[int] = []
    for axis in reversed(range(len(module.kernel_size))):  # the last dimension comes first
        reach = module.dilation[axis] * (module.kernel_size[axis] - 1) + 1
        size = (inputs.shape[2 + axis] - 1) * module.stride[axis] + reach
        before = int(module.padding[axis])
        flat += [before, size - grad.shape[2 + axis] - before]
    return F.pad(grad, flat)


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
