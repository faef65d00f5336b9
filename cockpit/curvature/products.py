"""Products of the Hessian and of the GGN with vectors, by differentiation, on a graph that stays alive.

The gradient is computed once with a graph of its own; every product differentiates it once more. All
live as long as the object that holds them: drop it, and the graph is free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from cockpit.curvature.twice import Gradients, differentiable_again, no_second_derivative
from cockpit.errors import Unsupported

Tensors = list[Tensor]


class Curvature:
    """A symmetric matrix over the parameters that is known by its products with vectors.

    Args:
        parameters: Tensors that the matrix has rows and columns for.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.device = self.parameters[0].device
        self.dtype = torch.float32  # of flat vectors: that of the parameters, float32 at least
        for parameter in self.parameters:
            self.dtype = torch.promote_types(self.dtype, parameter.dtype)

    @property
    def size(self) -> int:
        """Number of rows, D."""
        return sum(self.sizes)

    def gradient(self) -> Tensors:
        """Return the gradient of what the matrix is the second derivative of, in the parameters' shapes."""
        raise NotImplementedError

    def times(self, vectors: Sequence[Tensor | None]) -> Tensors:
        """Return the product with a vector, given and returned in the parameters' shapes.

        None stands for zeros.

        Raises:
            Unsupported: if the model contains something that cannot be differentiated so often.
        """
        raise NotImplementedError

    def __matmul__(self, vector: Tensor) -> Tensor:
        """Return the product with a flat vector, `[D]`."""
        return self.flat(self.times(self.shaped(vector)))

    def block(self, index: int, vector: Tensor) -> Tensor:
        """Return the product of one parameter's diagonal block with a vector of its shape, `[*shape]`."""
        vectors: list[Tensor | None] = [None] * len(self.parameters)
        vectors[index] = vector
        return self.times(vectors)[index]

    def flat(self, tensors: Sequence[Tensor]) -> Tensor:
        """Join tensors of the parameters' shapes into one vector, `[D]`."""
        return torch.cat([t.detach().reshape(-1).to(self.device, self.dtype) for t in tensors])

    def shaped(self, vector: Tensor) -> Tensors:
        """Cut a vector `[D]` into tensors of the parameters' shapes, types and devices."""
        pieces = vector.split(self.sizes)
        return [v.reshape(p.shape).to(p) for v, p in zip(pieces, self.parameters, strict=True)]

    def noise(self, generator: torch.Generator, signs: bool = False) -> Tensor:
        """Draw a vector of independent normal numbers, or of random signs, `[D]`."""
        if signs:
            bits = torch.randint(2, (self.size,), generator=generator, device=generator.device)
            return (2 * bits - 1).to(self.device, self.dtype)
        normal = torch.randn(self.size, generator=generator, device=generator.device)
        return normal.to(self.device, self.dtype)


class Hessian(Curvature):
    """The Hessian of a scalar, by differentiating its gradient.

    Args:
        scalar: What is differentiated, `[]`, in its graph.
        parameters: With respect to what. Those without a part in it have a Hessian of zero.
        scale: Factor on everything.
    """

    def __init__(
        self, scalar: Tensor, parameters: Sequence[Tensor], scale: Tensor | float = 1.0
    ) -> None:
        super().__init__(parameters)
        self._scalar, self._scale = scalar, scale
        self._gradient: list[Tensor | None] | None = None

    def _differentiated(self) -> list[Tensor | None]:
        if self._gradient is None:
            with _differentiating(self.device):
                self._gradient = list(_gradients(self._scalar.sum(), self.parameters))
        return self._gradient

    def gradient(self) -> Tensors:
        """Return the gradient, in the parameters' shapes."""
        return self._filled([None if g is None else g.detach() for g in self._differentiated()])

    def times(self, vectors: Sequence[Tensor | None]) -> Tensors:
        """Return H v, by one pass through the graph of the gradient."""
        pairs = [
            (g, v.to(g))
            for g, v in zip(self._differentiated(), vectors, strict=True)
            if g is not None and v is not None and g.requires_grad
        ]
        if not pairs:
            return self._filled([None] * len(self.parameters))
        with _differentiating(self.device):
            products = torch.autograd.grad(
                [g for g, _ in pairs],
                self.parameters,
                [v for _, v in pairs],
                retain_graph=True,
                allow_unused=True,
            )
        return self._filled(products)

    def _filled(self, values: Sequence[Tensor | None]) -> Tensors:
        return [
            torch.zeros_like(p) if v is None else v.detach() * self._scale
            for v, p in zip(values, self.parameters, strict=True)
        ]


class GGN(Curvature):
    """The generalised Gauss-Newton matrix Jᵀ H_z J of a scalar that depends on the parameters through z.

    Args:
        scalar: What is differentiated, `[]`, in its graph.
        outputs: The outputs z of the model, in the graph between.
        parameters: With respect to what.
        scale: Factor on everything.

    Raises:
        Unsupported: if the scalar is not computed from the outputs, or cannot be differentiated.
    """

    def __init__(
        self,
        scalar: Tensor,
        outputs: Tensor,
        parameters: Sequence[Tensor],
        scale: Tensor | float = 1.0,
    ) -> None:
        super().__init__(parameters)
        self._outputs, self._scale = outputs, scale
        with _differentiating(self.device):
            (slope,) = _gradients(scalar.sum(), [outputs])
            if slope is None:
                raise Unsupported(
                    "the loss is not computed from the outputs of the model that are known; give "
                    "those that it is computed from as info={'outputs': ...}"
                )
            self._slope: Tensor = slope
            # Jᵀu is linear in u, and so its derivative by u, applied to v, is J v, whatever u is.
            self._cotangent = torch.zeros_like(outputs, requires_grad=True)
            self._pulled = _gradients(outputs, self.parameters, self._cotangent)

    def times(self, vectors: Sequence[Tensor | None]) -> Tensors:
        """Return Jᵀ H_z J v."""
        pairs = [
            (pulled, v.to(pulled))
            for pulled, v in zip(self._pulled, vectors, strict=True)
            if pulled is not None and v is not None and pulled.requires_grad
        ]
        zeros = [torch.zeros_like(p) for p in self.parameters]
        if not pairs or not self._slope.requires_grad:
            return zeros
        with _differentiating(self.device):
            (pushed,) = torch.autograd.grad(
                [pulled for pulled, _ in pairs],
                self._cotangent,
                [v for _, v in pairs],
                retain_graph=True,
            )
            (bent,) = torch.autograd.grad(self._slope, self._outputs, pushed, retain_graph=True)
            products = torch.autograd.grad(
                self._outputs, self.parameters, bent, retain_graph=True, allow_unused=True
            )
        return [
            zero if p is None else p.detach() * self._scale
            for p, zero in zip(products, zeros, strict=True)
        ]


def _gradients(end: Tensor, sources: Sequence[Tensor], weights: Tensor | None = None) -> Gradients:
    """Differentiate, in order to differentiate again."""
    return differentiable_again(
        end,
        partial(torch.autograd.grad, end, sources, weights, create_graph=True, allow_unused=True),
    )


@contextmanager
def _differentiating(device: torch.device) -> Iterator[None]:
    """Differentiate in the precision of the forward pass, and say clearly where that is not possible."""
    try:
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            yield
    except (RuntimeError, NotImplementedError) as error:
        text = str(error).splitlines()[0]
        signs = (
            *("is not implemented", "differentiate twice", "double backward", "once_differ"),
            "donated buffer",  # of a compiled model
        )
        if any(sign in text for sign in signs):
            raise no_second_derivative(text.rstrip(".")) from error
        raise
