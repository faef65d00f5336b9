"""A module at one input: one forward pass that leaves no trace, and the products with its derivatives.

Nothing of the module changes: not its mode, its buffers or its gradients, nor the global random
state. It is run with copies of its parameters and buffers, and its own hooks are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cockpit.curvature.products import _differentiating
from cockpit.curvature.twice import differentiable_again
from cockpit.errors import InvalidArgument, InvalidType, Unsupported
from cockpit.gradients import couples_samples
from cockpit.gradients.randomness import RandomState, accelerators
from cockpit.gradients.rules.rerun import Forward, unseen


class Linearised:
    """A module at one input: the graph of one forward pass, for products with its derivatives.

    To be made within `unnoticed`.

    Args:
        module: The module; it takes one tensor and returns one.
        inputs: Its input, `[N, ...]`.

    Raises:
        InvalidType: if the input is no tensor.
        Unsupported: if the output is no tensor.
    """

    def __init__(self, module: nn.Module, inputs: Tensor) -> None:
        if not isinstance(inputs, Tensor):
            raise InvalidType(f"inputs must be a tensor [N, ...], got {type(inputs).__name__}.")
        self.module = module
        self.inputs = inputs.detach().clone()
        if self.inputs.is_floating_point():
            self.inputs.requires_grad_()
        self.parameters = {
            name: value.detach().clone().requires_grad_()
            for name, value in module.named_parameters()
        }
        places = {f"module.{name}": value for name, value in self.parameters.items()}
        places |= {f"module.{name}": value.clone() for name, value in module.named_buffers()}
        # The clone is for modules that work in place.
        output = functional_call(Forward(module), places, (self.inputs.clone(),))
        if not isinstance(output, Tensor):
            raise Unsupported(
                f"{type(module).__name__} returns a {type(output).__name__}, not one tensor; wrap it "
                "in a module that does"
            )
        self.output = output
        self._pulled: dict[str | None, tuple[Tensor | None, Tensor]] = {}

    def push(self, vectors: Tensor, name: str | None = None) -> Tensor:
        """Return J v for each vector, `[V, *output.shape]`.

        Args:
            vectors: `[V, *inputs.shape]`, or `[V, *parameter.shape]`.
            name: Parameter with respect to which J is; None for the input.
        """
        source = self._source(name)
        check_vectors(vectors, source)
        if name not in self._pulled:
            # Jᵀu is linear in u, and so its derivative by u, applied to v, is J v, whatever u is.
            cotangent = torch.zeros_like(self.output, requires_grad=True)
            self._pulled[name] = self._slope(source, cotangent, keep=True), cotangent
        pulled, cotangent = self._pulled[name]
        return self._rows(lambda v: _derivative(pulled, cotangent, v), vectors, cotangent)

    def pull(self, vectors: Tensor, name: str | None = None) -> Tensor:
        """Return Jᵀ v for each vector, `[V, *inputs.shape]` or `[V, *parameter.shape]`.

        Args:
            vectors: `[V, *output.shape]`.
            name: Parameter with respect to which J is; None for the input.
        """
        source = self._source(name)
        check_vectors(vectors, self.output)
        return self._rows(lambda v: self._slope(source, v), vectors, source)

    def residual(self, upstream: Tensor, vectors: Tensor) -> Tensor:
        """Return Σ_k g_k ∇²f_k v for each vector, `[V, *inputs.shape]`.

        Args:
            upstream: The weights g of the outputs f, of their shape.
            vectors: `[V, *inputs.shape]`.
        """
        source = self._source(None)
        check_vectors(vectors, source)
        if upstream.shape != self.output.shape:
            raise InvalidArgument(
                f"The upstream gradient has shape {list(upstream.shape)}; it must have that of the "
                f"output, {list(self.output.shape)}."
            )
        slope = self._slope(source, upstream, keep=True)
        return self._rows(lambda v: _derivative(slope, source, v), vectors, source)

    def _source(self, name: str | None) -> Tensor:
        if name is None:
            if not self.inputs.requires_grad:
                raise InvalidArgument(
                    f"There is no derivative with respect to inputs of {self.inputs.dtype}; ask for "
                    f"that with respect to a parameter: {', '.join(self.parameters) or 'none'}."
                )
            return self.inputs
        if name not in self.parameters:
            raise InvalidArgument(
                f"{type(self.module).__name__} has no parameter {name!r}. Choose from "
                f"{', '.join(map(repr, self.parameters)) or 'none'}."
            )
        return self.parameters[name]

    def _slope(self, source: Tensor, weights: Tensor, keep: bool = False) -> Tensor | None:
        if not self.output.requires_grad:
            return None
        differentiate = partial(
            torch.autograd.grad,
            self.output,
            source,
            weights.to(self.output),
            create_graph=keep,
            retain_graph=True,
            allow_unused=True,
        )
        with _differentiating(source.device):
            (slope,) = differentiable_again(self.output, differentiate) if keep else differentiate()
        return slope

    @staticmethod
    def _rows(product: Callable[[Tensor], Tensor | None], vectors: Tensor, like: Tensor) -> Tensor:
        rows = torch.zeros(len(vectors), *like.shape, dtype=like.dtype, device=like.device)
        for row, vector in zip(rows, vectors, strict=True):
            found = product(vector)
            if found is not None:
                row.copy_(found.detach())
        return rows


def _derivative(values: Tensor | None, source: Tensor, vector: Tensor) -> Tensor | None:
    if values is None or not values.requires_grad:
        return None
    with _differentiating(source.device):
        (found,) = torch.autograd.grad(
            values, source, vector.to(values), retain_graph=True, allow_unused=True
        )
    return found


def check_vectors(vectors: Tensor, like: Tensor) -> None:
    """Refuse vectors that do not have the shape `[V, *like.shape]`."""
    if vectors.shape[1:] != like.shape or vectors.dim() == 0:
        wanted = ", ".join(map(str, ("V", *like.shape)))
        raise InvalidArgument(
            f"The vectors have shape {list(vectors.shape)}; they must have [{wanted}]."
        )


@contextmanager
def unnoticed(inputs: Tensor) -> Iterator[None]:
    """Run a model, of which neither the cockpit nor BackPACK takes notice, and put the random state back."""
    devices = accelerators([inputs] if isinstance(inputs, Tensor) else [])
    with RandomState.capture(*devices).restored(), unseen():
        yield


def refuse_coupled(module: nn.Module, way_out: str) -> None:
    """Refuse a module that contains a BatchNorm which normalises with the statistics of the batch.

    Args:
        module: The module.
        way_out: What to do instead, besides choosing another mode or layer.

    Raises:
        Unsupported: if it does.
    """
    for name, part in module.named_modules():
        if couples_samples(part):
            raise Unsupported(
                f"{name or type(part).__name__} normalises with the statistics of the batch, so the "
                "outputs of a sample depend on all samples, and there are no parts by sample; use "
                f"eval(), a normalisation that does not couple samples (GroupNorm), or {way_out}"
            )
