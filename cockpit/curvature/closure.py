"""Curvature from a function that computes the loss anew, where the graph of the loss cannot give it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from backpack import disable as backpack_disabled
from torch import Tensor, nn

from cockpit.curvature.products import Curvature, Tensors
from cockpit.errors import Unsupported
from cockpit.gradients.rules.generic import _plain_attention, replaying

Closure = Callable[[], Tensor]


class Reevaluation:
    """Computes the loss of a mini-batch anew, and leaves no trace of it.

    Buffers (running statistics) and the global random state are put back. Every evaluation draws
    the same random numbers, and so the same dropout masks.

    Args:
        closure: Computes the loss, `[]`, with its graph.
        model: The model whose buffers are to be put back.
        seed: Of the random numbers that the closure draws.
    """

    def __init__(self, closure: Closure, model: nn.Module | None, seed: int) -> None:
        self._closure, self._model, self._seed = closure, model, seed

    def __call__(self, *, differentiable: bool = True) -> Tensor:
        """Return the loss; `differentiable` asks for kernels with second derivatives."""
        buffers = [] if self._model is None else list(self._model.buffers())
        kept = [buffer.clone() for buffer in buffers]
        seen = None
        devices = {b.device for b in buffers if b.device.type == "cuda"}
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            devices.add(torch.device("cuda", torch.cuda.current_device()))
        try:
            with torch.random.fork_rng([d.index or 0 for d in devices]):
                torch.manual_seed(self._seed)
                # Nobody is to take this forward pass for that of the user.
                seen = replaying.set(True)
                kernels = _plain_attention() if differentiable else nullcontext()
                with torch.enable_grad(), backpack_disabled(), kernels:
                    return self._closure()
        finally:
            if seen is not None:
                replaying.reset(seen)
            with torch.no_grad():
                for buffer, value in zip(buffers, kept, strict=True):
                    buffer.data = value  # not in place: the graph of the user's loss may need it


class Differences(Curvature):
    """The Hessian by central differences of the gradient: two gradients for a product.

    The parameters are moved and put back, bit for bit, without the graphs that they are part of
    noticing.

    Args:
        loss: Computes the loss, `[]`, with its graph.
        parameters: With respect to what.
        scale: Factor on everything.
    """

    def __init__(
        self, loss: Closure, parameters: Sequence[Tensor], scale: Tensor | float = 1.0
    ) -> None:
        super().__init__(parameters)
        self._loss, self._scale = loss, scale

    def gradient(self) -> Tensors:
        """Return the gradient, in the parameters' shapes."""
        return [g * self._scale for g in self._slope()]

    def _slope(self) -> Tensors:
        with torch.enable_grad():
            grads = torch.autograd.grad(self._loss(), self.parameters, allow_unused=True)
        zeros = (torch.zeros_like(p) for p in self.parameters)
        return [z if g is None else g.detach() for g, z in zip(grads, zeros, strict=True)]

    def times(self, vectors: Sequence[Tensor | None]) -> Tensors:
        """Return (∇L(θ + hv) − ∇L(θ − hv)) / 2h, to about half the digits."""
        direction = [
            torch.zeros_like(p) if v is None else v.to(p)
            for v, p in zip(vectors, self.parameters, strict=True)
        ]
        norm = self._norm(direction)
        if norm == 0:
            return direction
        digits = max(torch.finfo(p.dtype).eps for p in self.parameters)
        width = digits ** (1 / 3) * (1 + self._norm(self.parameters)) / norm
        with moved(self.parameters, direction, width):
            ahead = self._slope()
        with moved(self.parameters, direction, -width):
            behind = self._slope()
        factor = self._scale / (2 * width)
        return [(a - b) * factor for a, b in zip(ahead, behind, strict=True)]

    def _norm(self, tensors: Sequence[Tensor]) -> float:
        norms = [torch.linalg.vector_norm(t.detach()).to(self.device) for t in tensors]
        return float(torch.linalg.vector_norm(torch.stack(norms)))


@contextmanager
def moved(
    parameters: Sequence[Tensor], direction: Sequence[Tensor], length: float
) -> Iterator[None]:
    """Move parameters along a direction, and put the very same values back afterwards."""
    kept = [parameter.data for parameter in parameters]
    try:
        for parameter, value, step in zip(parameters, kept, direction, strict=True):
            parameter.data = value + length * step
        yield
    finally:
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.data = value


class FirstPossible(Curvature):
    """A matrix that can be had in several ways, of which the first one that works is taken.

    Args:
        ways: Functions that return the matrix, from the best way to the last resort.
        parameters: Tensors that the matrix has rows and columns for.
    """

    def __init__(
        self, ways: Sequence[Callable[[], Curvature]], parameters: Sequence[Tensor]
    ) -> None:
        super().__init__(parameters)
        self._ways = list(ways)
        self._chosen: Curvature | None = None

    def times(self, vectors: Sequence[Tensor | None]) -> Tensors:
        """Return the product with a vector, in the first way that works."""
        while True:
            try:
                if self._chosen is None:
                    self._chosen = self._ways[0]()
                return self._chosen.times(vectors)
            except Unsupported:
                if len(self._ways) == 1:
                    raise
                del self._ways[0]
                self._chosen = None

    def gradient(self) -> Tensors:
        """Return the gradient of what the matrix is the second derivative of."""
        if self._chosen is None:
            self._chosen = self._ways[0]()
        return self._chosen.gradient()
