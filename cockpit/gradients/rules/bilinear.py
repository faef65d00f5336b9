"""Bilinear layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cockpit.gradients.batch import Batch, Draw
from cockpit.gradients.handle import Dense, IndividualGradients
from cockpit.gradients.products import Products
from cockpit.gradients.rules.registry import Call, factors, rule_for


class BilinearGradients(Products):
    """Gradients of a bilinear layer's weight `[O, I, J]`: `Products` whose inputs are those of x₁x₂ᵀ.

    Args:
        batch: What all handles of the backward pass share.
        shape: Shape of the weight.
        first: First input, `[N, T, I]`.
        second: Second input, `[N, T, J]`.
        grad_output: Individual gradients with respect to the output, `[N, T, O]`, in the scale of g_i.
    """

    def __init__(
        self, batch: Batch, shape: torch.Size, first: Tensor, second: Tensor, grad_output: Tensor
    ) -> None:
        super().__init__(batch, shape, first, grad_output.mT.unsqueeze(1))
        self._second = second

    def select(self, draw: Draw) -> BilinearGradients:
        """Return those of some of the samples."""
        chosen = super().select(draw)
        assert isinstance(chosen, BilinearGradients)
        chosen._second = self._second.index_select(0, draw.on(self.device))
        return chosen

    def a(self, samples: slice) -> Tensor:
        """Multiply the inputs of some samples, `[n, 1, I·J, T]`."""
        pairs = self._a[samples].unsqueeze(3) * self._second[samples].unsqueeze(2)  # [n, T, I, J]
        return pairs.flatten(2).mT.unsqueeze(1)


@rule_for(nn.Bilinear)
def bilinear(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch
) -> dict[str, IndividualGradients]:
    """Serve y = x₁ᵀ W x₂ + b with x₁ `[N, *, I]` and x₂ `[N, *, J]`."""
    module = call.module
    assert isinstance(module, nn.Bilinear)
    first, grad = factors(call, grads, batch)
    second = [*call.args, *call.kwargs.values()][1].detach().to(first.dtype)
    sizes = module.in1_features, module.in2_features, module.out_features
    first, second, grad = (
        value.reshape(batch.size, -1, size)
        for value, size in zip((first, second, grad), sizes, strict=True)
    )  # [N, T, ·]
    handles: dict[str, IndividualGradients] = {
        "weight": BilinearGradients(batch, module.weight.shape, first, second, grad)
    }
    if module.bias is not None:
        handles["bias"] = Dense(batch, grad.sum(1))
    return handles
