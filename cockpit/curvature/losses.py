"""The Hessian of a loss with respect to the outputs of a model: products, square roots, its sum over the batch.

All take the loss as a function of outputs and targets, a loss module or a function, with any
reduction to a number. Cross-entropy and mean-squared error are what they are made for; every other
twice differentiable loss is served, too, where it is convex or need not be.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cockpit.curvature.ggn import sampled_backward
from cockpit.curvature.heads import Blocks, blocks_of
from cockpit.curvature.linearised import check_vectors, unnoticed
from cockpit.curvature.products import Hessian
from cockpit.errors import InvalidArgument, Unsupported

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""From outputs and targets to the loss, `[]`."""


def hessian_mat_prod(
    loss: LossFunction, outputs: Tensor, targets: Tensor, vectors: Tensor
) -> Tensor:
    """Multiply the Hessian H of a loss with respect to the outputs with vectors.

    For cross-entropy, H is (diag(p) − ppᵀ)/N for each sample, or the same without 1/N where the loss
    is a sum; for mean-squared error 2/NC times the identity, or twice it.

    Args:
        loss: From outputs and targets to the loss, `[]`: a module or a function.
        outputs: `[N, ...]`.
        targets: As the loss takes them.
        vectors: `[V, *outputs.shape]`.

    Returns:
        H v, `[V, *outputs.shape]`.

    Raises:
        InvalidArgument: if the loss is no number, or the shapes do not fit.
    """
    z, value = evaluated(loss, outputs, targets)
    check_vectors(vectors, z)
    hessian = Hessian(value, [z])
    return torch.stack([hessian.times([vector])[0] for vector in vectors])


def sqrt_hessian(loss: LossFunction, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return S with S Sᵀ = H exactly, for each sample.

    Args:
        loss: From outputs and targets to the loss, `[]`: a module or a function.
        outputs: `[N, ...]`, with M numbers for each sample.
        targets: As the loss takes them.

    Returns:
        The columns of S, `[M, *outputs.shape]`: H_n = Σ_v s_vn s_vnᵀ is the Hessian with respect to
        all outputs of sample n, with zeros between positions that the loss does not couple.

    Raises:
        InvalidArgument: if the loss is no number.
        Unsupported: if it couples the samples, or is not convex, or couples more than 512 outputs.
    """
    z, value = evaluated(loss, outputs, targets)
    return torch.stack(list(_by_sample(value, z).root(len(z)))).to(z)


def sqrt_hessian_sampled(
    loss: LossFunction,
    outputs: Tensor,
    targets: Tensor,
    mc_samples: int,
    generator: torch.Generator,
) -> Tensor:
    """Return a random S with E[S Sᵀ] = H, for each sample.

    Args:
        loss: From outputs and targets to the loss, `[]`: a module or a function.
        outputs: `[N, ...]`.
        targets: As the loss takes them.
        mc_samples: Number of columns.
        generator: Where the random numbers come from.

    Returns:
        The columns of S, `[mc_samples, *outputs.shape]`.

    Raises:
        InvalidArgument: if the loss is no number, or there are no columns.
        Unsupported: if it couples the samples, or is not convex.
    """
    if mc_samples < 1:
        raise InvalidArgument(f"sqrt_hessian_sampled needs mc_samples >= 1, got {mc_samples!r}.")
    z, value = evaluated(loss, outputs, targets)
    columns = []
    for _ in range(mc_samples):
        (column,) = sampled_backward(value, z, [z], generator)
        columns.append(torch.zeros_like(z) if column is None else column)
    return torch.stack(columns).detach() / mc_samples**0.5


def sum_hessian(loss: LossFunction, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return Σ_n H_n, the sum of the samples' Hessians, which is `[M, M]` for M outputs per sample.

    Args:
        loss: From outputs and targets to the loss, `[]`: a module or a function. Where it is a mean,
            each H_n has the factor 1/N already.
        outputs: `[N, ...]`.
        targets: As the loss takes them.

    Raises:
        InvalidArgument: if the loss is no number.
        Unsupported: if it couples the samples, or more than 512 outputs.
    """
    z, value = evaluated(loss, outputs, targets)
    return sum_of(value, z)


def sum_of(value: Tensor, z: Tensor) -> Tensor:
    """Return `sum_hessian` of a loss that is there already, in the graph of the outputs z."""
    _by_sample(value, z)
    size, hessian = z[0].numel(), Hessian(value, [z])
    units = torch.eye(size, dtype=z.dtype, device=z.device).reshape(size, 1, *z.shape[1:])
    columns = [hessian.times([unit.expand_as(z)])[0] for unit in units]
    return torch.stack(columns).reshape(size, len(z), size).sum(1)


def evaluated(loss: LossFunction, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs, in a graph of their own unless they have one, and the loss of them, `[]`."""
    with unnoticed(outputs):
        z = outputs
        if z.grad_fn is None:
            leaf = z.detach().requires_grad_()
            z = leaf.view_as(leaf)  # not a leaf: what lies between loss and outputs is to be seen
        value = loss(z, targets)
    if value.dim() != 0 or not value.requires_grad:
        raise InvalidArgument(
            f"The loss must be a number that depends on the outputs, got shape {list(value.shape)}; "
            "give one with reduction='mean' or 'sum'."
        )
    return z, value


def _by_sample(value: Tensor, outputs: Tensor) -> Blocks:
    generator = torch.Generator(outputs.device).manual_seed(0)
    blocks = blocks_of(value, outputs, generator)
    if outputs.dim() < 2 and not blocks.diagonal:
        raise Unsupported("the loss couples the samples, so its Hessian has no parts by sample")
    return blocks
