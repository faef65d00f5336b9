"""Individual gradients of parameters from which a layer's weight is computed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cockpit.gradients.batch import Draw
from cockpit.gradients.handle import IndividualGradients


class PulledBack(IndividualGradients):
    """Gradients g_i = Jᵀ G_i of a parameter θ, from those of a tensor W(θ), with J = ∂W/∂θ.

    Args:
        effective: The gradients G_i with respect to W.
        parameter: The value of θ.
        compute: Computes W from θ, differentiably and without side effects.
    """

    def __init__(
        self,
        effective: IndividualGradients,
        parameter: Tensor,
        compute: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__(effective.batch, parameter.shape, effective.dtype, effective.device)
        self.effective = effective
        self._leaf = parameter.detach().to(effective.dtype).clone().requires_grad_()
        with torch.enable_grad():
            self._computed = compute(self._leaf)

    def select(self, draw: Draw) -> PulledBack:
        """Return those of some of the samples, pulled back through the same graph."""
        chosen: PulledBack = self._with(draw.batch)
        chosen.effective = self.effective.select(draw)
        return chosen

    def _pull(self, cotangent: Tensor) -> Tensor:
        """Return Jᵀ c, `[*shape]`."""
        (pulled,) = torch.autograd.grad(
            self._computed, self._leaf, cotangent, retain_graph=True, materialize_grads=True
        )
        return pulled

    def piece(self, samples: slice) -> Tensor:
        """Pull the gradients of some samples back one by one, `[n, *shape]`."""
        pulled = [self._pull(gradient) for gradient in self.effective.piece(samples)]
        return torch.stack(pulled) if pulled else self._empty(0, *self.shape)

    def mean(self) -> Tensor:
        """Return g = Jᵀ G, `[*shape]`."""
        return self._pull(self.effective.mean())

    def release(self) -> None:
        """Forget what can be computed again, here and for W."""
        super().release()
        self.effective.release()
