"""Individual gradients of convolution weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

from cockpit.gradients.batch import Batch, Draw
from cockpit.gradients.products import Products

Convolution = (
    nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
)

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
WEIGHT_GRADIENTS = {1: conv1d_weight, 2: conv2d_weight, 3: conv3d_weight}

MANY_POSITIONS = 200
"""Output positions from which on the backward kernel, mapped over the samples, beats unfolding and
a matrix product.

Measured on two cores with 128 samples: 22 against 49 ms for 96 → 128 channels at 6 × 6; equal
    around 14 × 14; 125
against 47 ms for 64 → 64 channels at 32 × 32."""


class ConvolutionGradients(Products):
    """Gradients of a convolution's weight: `Products` whose positions are those of the output.

    The patches under the kernel, `a`, are unfolded for some samples at a time, and not at all for
    products with a direction, which are one forward convolution, and for the mean, which is the
    usual backward convolution.

    The product is the same if `inputs` and `grad_output` change places: so a transposed convolution,
    which is a convolution's backward pass, is served with its roles swapped.

    Args:
        batch: What all handles of the backward pass share.
        module: The layer.
        inputs: Its input, padded, `[N, C, *spatial]`.
        grad_output: Individual gradients with respect to its output, `[N, O, *spatial_out]`. One of the
            two holds the scale of g_i.
    """

    def __init__(
        self,
        batch: Batch,
        module: Convolution,
        inputs: Tensor,
        grad_output: Tensor,
    ) -> None:
        n, groups = len(grad_output), module.groups
        b = grad_output.reshape(n, groups, grad_output.shape[1] // groups, -1)
        super().__init__(batch, module.weight.shape, inputs, b)
        self.grad_output = grad_output
        self.kernel_size, self.stride = tuple(module.kernel_size), tuple(module.stride)
        self.dilation = tuple(module.dilation)
        self.spatial = len(self.kernel_size)

    def select(self, draw: Draw) -> ConvolutionGradients:
        """Return those of some of the samples."""
        chosen: ConvolutionGradients = self._with(draw.batch)
        index = draw.on(self.device)
        chosen._a = self._a.index_select(0, index)
        chosen.grad_output = self.grad_output.index_select(0, index)
        chosen.b = chosen.grad_output.reshape(len(index), *self.b.shape[1:])
        return chosen

    def a(self, samples: slice) -> Tensor:
        """Unfold the patches under the kernel, `[n, G, (C/G)·K, T]`."""
        patches = self._patches(self._a[samples])
        return patches.reshape(len(patches), self.groups, self.inputs, self.positions)

    def _patches(self, inputs: Tensor) -> Tensor:
        """Return a view of the patches, `[n, C, *kernel, *spatial_out]`."""
        for axis in range(self.spatial):
            dilation, kernel = self.dilation[axis], self.kernel_size[axis]
            inputs = inputs.unfold(2 + axis, dilation * (kernel - 1) + 1, self.stride[axis])
            inputs = inputs[..., ::dilation]
        # What the stride leaves over at the end is left out already: [n, C, *spatial_out, *kernel].
        first, second = range(2, 2 + self.spatial), range(2 + self.spatial, 2 + 2 * self.spatial)
        return inputs.permute(0, 1, *second, *first)

    def columns(self, index: Tensor) -> Tensor:
        """Unfold some channels and kernel positions only, `[N, G, len(index), T]`."""
        patches = self._patches(self._a).unflatten(1, (self.groups, -1))
        offsets = torch.unravel_index(index, (patches.shape[2], *self.kernel_size))
        chosen = patches[(slice(None), slice(None), *offsets)]  # [N, G, len(index), *spatial_out]
        return chosen.flatten(3)

    def piece(self, samples: slice) -> Tensor:
        """Return the gradients of some samples, by unfolding or by the mapped backward kernel."""
        if self.positions < MANY_POSITIONS:
            return super().piece(samples)
        return vmap(self._weight_gradient)(
            self._a[samples].unsqueeze(1), self.grad_output[samples].unsqueeze(1)
        )

    def _weight_gradient(self, inputs: Tensor, grad_output: Tensor) -> Tensor:
        weight_gradient = WEIGHT_GRADIENTS[self.spatial]
        return weight_gradient(
            inputs, self.shape, grad_output, self.stride, 0, self.dilation, self.groups
        )

    def mean(self) -> Tensor:
        """Return g, by the usual backward convolution."""
        if self._whole is not None:
            return super().mean()
        return self._weight_gradient(self._a, self.grad_output) / self.batch.size

    def dot(self, direction: Tensor) -> Tensor:
        """Return g_i·d = ⟨conv(a_i, d), b_i⟩: one forward convolution with d as its weight."""
        if self._whole is not None:
            return super().dot(direction)
        forward = CONVOLUTIONS[self.spatial](
            self._a,
            direction.to(self.dtype),
            stride=self.stride,
            dilation=self.dilation,
            groups=self.groups,
        )
        return (forward * self.grad_output).flatten(1).sum(1)
