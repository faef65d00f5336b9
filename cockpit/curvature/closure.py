"""Curvature from a function that computes the loss anew, where the graph of the loss cannot give it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from backpack import disable as backpack_disabled
from torch import Tensor, nn

from cockpit.curvature.products import Curvature, Tensors
from cockpit.errors import Unsupported
from cockpit.gradients.graph import Graph
from cockpit.gradients.randomness import RandomState
from cockpit.gradients.rules.rerun import plain_attention, replaying

Closure = Callable[..., Tensor]
"""Computes the loss of a mini-batch, or of the samples in a slice of it, if it takes one."""

HOW_TO_SLICE = (
    "write it as def closure(samples=slice(None)): return loss_fn(model(x[samples]), y[samples])"
)

SMOOTH = 0.03
"""Relative difference of the changes of the gradient ahead and behind that is taken for smooth."""

ROUGH = 0.5
"""Error of a product, in units of the longest one of a unit vector so far, from which on it is refused."""

WIDTHS = tuple(8.0**-k for k in range(4))
"""Widths that are tried where it is not smooth, in units of the first one."""

ANOTHER_LOSS = (
    "info['closure'] computes another loss than the one given as 'loss'. It has to compute that of "
    "the same mini-batch in the same way (data, mode of the model, weights, factor, autocast), and "
    "may draw no random numbers before it calls the model: draw these before, outside of it"
)


class Reevaluation:
    """Computes the loss of a mini-batch anew, and leaves no trace of it.

    Buffers (running statistics) and the global random state are put back. Every evaluation begins
    in the same random state: where that is the one of the user's forward pass, with its dropout
    masks. Before the first evaluation, the loss of the whole mini-batch is computed anew and
    compared with the one that was given.

    Args:
        closure: Computes the loss, `[]`, with its graph.
        model: The model whose buffers are to be put back.
        given: The loss that the user's forward pass gave.
        start: The random state that this began in.
        otherwise: The random state to begin in where that is not known. A closure that draws random
            numbers then draws others, and its loss is not compared.
    """

    def __init__(
        self,
        closure: Closure,
        model: nn.Module | None,
        given: Tensor,
        start: RandomState | None,
        otherwise: RandomState,
    ) -> None:
        self._closure, self._model, self._given = closure, model, given.detach()
        self._start, self._repeats = start or otherwise, start is not None
        self._whole: _Evaluation | None = None

    def __call__(self, samples: slice | None = None, *, differentiable: bool = True) -> Tensor:
        """Return the loss; see `with_outputs`."""
        return self.with_outputs(samples, differentiable=differentiable)[0]

    def with_outputs(
        self, samples: slice | None = None, *, differentiable: bool = True
    ) -> tuple[Tensor, Any]:
        """Return the loss, and what the model returned when it was called last.

        Args:
            samples: The part of the mini-batch to compute it for; None for the whole.
            differentiable: Whether to take kernels that have second derivatives.

        Raises:
            Unsupported: if the closure computes another loss than the one given, or takes no slice,
                or makes nothing of it.
        """
        whole = self._confirmed()
        found = self._evaluate(samples, differentiable)
        if samples is not None and found.shapes and found.shapes == whole.shapes:
            raise Unsupported(
                "info['closure'] was asked for a part of the mini-batch, and called the model with all "
                f"of it; {HOW_TO_SLICE}"
            )
        return found.loss, found.output

    def confirm(self) -> float:
        """Return the loss of the whole mini-batch.

        Raises:
            Unsupported: if it is not the one given.
        """
        return float(self._confirmed().loss)

    def _confirmed(self) -> _Evaluation:
        if self._whole is None:
            whole = self._evaluate(None, differentiable=False)
            comparable = self._repeats or not whole.drew
            whole = replace(whole, loss=whole.loss.detach(), output=None)  # without their graph
            if comparable and not _equal(whole.loss, self._given):
                raise Unsupported(ANOTHER_LOSS)
            self._whole = whole
        return self._whole

    def _evaluate(self, samples: slice | None, differentiable: bool) -> _Evaluation:
        buffers = [] if self._model is None else list(self._model.buffers())
        kept = [buffer.clone() for buffer in buffers]
        kernels = plain_attention() if differentiable else nullcontext()
        shapes: list[torch.Size] = []
        outputs: list[Any] = [None]
        token = replaying.set(True)  # nobody is to take this forward pass for that of the user
        try:
            with (
                self._start.restored(),
                torch.enable_grad(),
                backpack_disabled(),
                kernels,
                _watching(self._model, shapes, outputs),
            ):
                loss = self._call(samples)
                drew = not self._start.is_present
        finally:
            replaying.reset(token)
            with torch.no_grad():
                for buffer, value in zip(buffers, kept, strict=True):
                    buffer.data = value  # not in place: the graph of the user's loss may need it
        return _Evaluation(loss, outputs[-1], shapes, drew)

    def _call(self, samples: slice | None) -> Tensor:
        if samples is None:
            return self._closure() if _takes(self._closure) else self._closure(slice(None))
        if not _takes(self._closure, samples):
            raise Unsupported(
                "max_samples needs an info['closure'] that takes a slice of the mini-batch, and this "
                f"one takes none; {HOW_TO_SLICE}"
            )
        return self._closure(samples)


def _takes(function: Closure, *args: Any) -> bool:
    try:
        inspect.signature(function).bind(*args)
    except TypeError:
        return False
    except ValueError:  # a builtin, of which nothing is known
        return True
    return True


def _equal(value: Tensor, given: Tensor) -> bool:
    """Compare two evaluations of a loss: equal but for rounding, that of TF32 where there is any."""
    eps = max(torch.finfo(tensor.dtype).eps for tensor in (value, given))
    tolerance = min(10 * eps**0.5, 2e-2)
    a, b = float(value), float(given)
    return a == b or math.isclose(a, b, rel_tol=tolerance) or (math.isnan(a) and math.isnan(b))


@dataclass(frozen=True)
class _Evaluation:
    """One evaluation of a closure.

    Args:
        loss: The loss, `[]`.
        output: What the model returned last.
        shapes: Shapes of the tensors that it was called with.
        drew: Whether random numbers were drawn.
    """

    loss: Tensor
    output: Any
    shapes: list[torch.Size]
    drew: bool


@contextmanager
def _watching(
    model: nn.Module | None, shapes: list[torch.Size], outputs: list[Any]
) -> Iterator[None]:
    """Note the shapes that a model is called with, and what it returns."""

    def see(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        shapes.extend(v.shape for v in (*args, *kwargs.values()) if isinstance(v, Tensor))
        outputs.append(output)

    if model is None:
        yield
        return
    hook = model.register_forward_hook(see, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


class Differences(Curvature):
    """The Hessian by central differences of the gradient: two gradients for a product.

    The parameters are moved and put back, bit for bit, without the graphs that they are part of
    noticing. They move by h = ε^{1/3}, with the precision ε of the numbers: rounding contributes an
    error of the order ε/h and the third derivative of the gradient one of the order h², and their
    sum is smallest there, whatever the size of the parameters. Where the gradient changes ahead and
    behind in different ways, there is a kink between (ReLU), and smaller widths are tried. ε is that
    of the coarsest precision in the graph of the loss: under autocast, a smaller step would change
    nothing in what is computed.

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
        self._rounding = max(torch.finfo(p.dtype).eps for p in self.parameters)
        self._longest = 0.0  # of the products of unit vectors so far

    @cached_property
    def _here(self) -> Tensors:
        return self._slope()

    def gradient(self) -> Tensors:
        """Return the gradient, in the parameters' shapes."""
        return [g * self._scale for g in self._here]

    def _slope(self) -> Tensors:
        with torch.enable_grad():
            loss = self._loss()
            if loss.grad_fn is not None:
                self._rounding = max(self._rounding, Graph(loss.grad_fn).rounding())
            grads = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        zeros = (torch.zeros_like(p) for p in self.parameters)
        return [z if g is None else g.detach() for g, z in zip(grads, zeros, strict=True)]

    def times(self, vectors: Sequence[Tensor | None]) -> Tensors:
        """Return (∇L(θ + hv) − ∇L(θ − hv)) / 2h, to about half the digits.

        Raises:
            Unsupported: if kinks or rounding leave too little of it.
        """
        direction = [
            torch.zeros_like(p) if v is None else v.to(p)
            for v, p in zip(vectors, self.parameters, strict=True)
        ]
        norm = self._norm(direction)
        if norm == 0:
            return direction
        here = self._here  # tells the precision
        step = self._rounding ** (1 / 3)
        tried = []
        for shorter in WIDTHS:
            tried.append(self._difference(here, direction, step / norm * shorter))
            if tried[-1].uneven <= max(SMOOTH, step):
                break
        best = min(tried, key=lambda difference: difference.uneven)
        if best.uneven == math.inf and not any(difference.moves for difference in tried):
            return [torch.zeros_like(p) for p in self.parameters]
        length = self._norm(best.product) / norm
        self._longest = max(self._longest, length)
        if not best.uneven * length <= ROUGH * self._longest:
            raise Unsupported(
                "the gradients that info['closure'] yields change too unevenly along a direction to tell "
                "a second derivative: there are kinks, or they are rounded too coarsely (relative error "
                f"{self._rounding:.1g}); compute the loss in the closure in a higher precision, without "
                "autocast"
            )
        return [value * self._scale for value in best.product]

    def _difference(self, here: Tensors, direction: Tensors, width: float) -> _Difference:
        with moved(self.parameters, direction, width):
            ahead = self._slope()
        with moved(self.parameters, direction, -width):
            behind = self._slope()
        change = [a - b for a, b in zip(ahead, behind, strict=True)]
        bend = [a + b - 2 * g for a, b, g in zip(ahead, behind, here, strict=True)]
        size, uneven = self._norm(change), self._norm(bend)
        return _Difference(
            product=[c / (2 * width) for c in change],
            uneven=uneven / size if size else math.inf,
            moves=size > 0 or uneven > 0,
        )

    def _norm(self, tensors: Sequence[Tensor]) -> float:
        norms = [torch.linalg.vector_norm(t.detach()).to(self.device) for t in tensors]
        return float(torch.linalg.vector_norm(torch.stack(norms)))


class _Difference(NamedTuple):
    """A central difference of the gradient.

    Args:
        product: What it makes of the product with the Hessian.
        uneven: Relative difference of the changes ahead and behind.
        moves: Whether the gradient changes at all.
    """

    product: Tensors
    uneven: float
    moves: bool


@contextmanager
def moved(
    parameters: Sequence[Tensor], direction: Sequence[Tensor], length: float
) -> Iterator[None]:
    """Move parameters along a direction, and put the very same values back afterwards.

    Autocast is made to forget the copies in another precision that it keeps of them.
    """
    kept = [parameter.data for parameter in parameters]
    try:
        for parameter, value, step in zip(parameters, kept, direction, strict=True):
            parameter.data = value + length * step
        torch.clear_autocast_cache()
        yield
    finally:
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.data = value
        torch.clear_autocast_cache()


class FirstPossible(Curvature):
    """A matrix that can be had in several ways, of which the first one that works is taken.

    Args:
        ways: Functions that return the matrix by the name of the way, from the best one to the last
            resort.
        parameters: Tensors that the matrix has rows and columns for.
    """

    def __init__(
        self, ways: Mapping[str, Callable[[], Curvature]], parameters: Sequence[Tensor]
    ) -> None:
        super().__init__(parameters)
        self._ways = list(ways.items())
        self._chosen: Curvature | None = None

    @property
    def way(self) -> str:
        """Name of the way that is taken."""
        return self._ways[0][0]

    def times(self, vectors: Sequence[Tensor | None]) -> Tensors:
        """Return the product with a vector, in the first way that works."""
        return self._first(lambda matrix: matrix.times(vectors))

    def gradient(self) -> Tensors:
        """Return the gradient of what the matrix is the second derivative of."""
        return self._first(lambda matrix: matrix.gradient())

    def _first(self, function: Callable[[Curvature], Tensors]) -> Tensors:
        while True:
            try:
                if self._chosen is None:
                    self._chosen = self._ways[0][1]()
                return function(self._chosen)
            except Unsupported:
                if len(self._ways) == 1:
                    raise
                del self._ways[0]
                self._chosen = None
