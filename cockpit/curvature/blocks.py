"""Products of one parameter's block of the curvature with a matrix: Hessian, GGN, positive-curvature Hessian."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cockpit.curvature.chain import chain
from cockpit.curvature.linearised import Linearised, check_vectors, refuse_coupled, unnoticed
from cockpit.curvature.losses import LossFunction, evaluated, sqrt_hessian
from cockpit.curvature.products import GGN, Hessian
from cockpit.errors import InvalidArgument, Unsupported

KINDS = ("hessian", "ggn", "pch")

MODIFICATIONS = {"clip": lambda r: r.clamp(min=0), "abs": torch.abs}
"""What makes a residual positive."""


def block_products(
    model: nn.Module,
    loss: LossFunction,
    inputs: Tensor,
    targets: Tensor,
    name: str,
    matrix: Tensor,
    kind: str = "hessian",
    modify: str = "clip",
) -> Tensor:
    """Multiply a parameter's block of the loss's curvature with the columns of a matrix.

    The model is run once, and is left as it was.

    Args:
        model: The model; it takes one tensor and returns one. ``"pch"`` needs a chain of layers.
        loss: From outputs and targets to the loss, `[]`: a module or a function.
        inputs: The mini-batch, `[N, ...]`.
        targets: As the loss takes them.
        name: The parameter's name in the model.
        matrix: Its columns, in the parameter's shape: `[V, *parameter.shape]`.
        kind: ``"hessian"``; ``"ggn"``, Jᵀ H J with the loss's Hessian H, which leaves out the
            residuals of the layers; or ``"pch"``, which keeps those of elementwise layers, made
            positive. For a convex loss GGN and PCH are positive semi-definite.
        modify: How ``"pch"`` makes residuals g ∘ φ''(x) positive: ``"clip"`` replaces negative ones
            by zero, ``"abs"`` all by their magnitudes.

    Returns:
        The products, `[V, *parameter.shape]`.

    Raises:
        InvalidArgument: if there is no such parameter, kind or modification, or the shapes do not fit.
        Unsupported: if the model cannot be differentiated twice; for ``"pch"``, if it is no chain,
            has nonlinear layers that are not elementwise, or the loss is not convex.

    Source: Chen, Chou & Chang (2018), arXiv:1802.06502 (PCH); Dangel, Harmeling & Hennig (2020),
    arXiv:1902.01813 (its blocks, layer by layer).
    """
    for what, chosen, known in (("kind", kind, KINDS), ("modify", modify, tuple(MODIFICATIONS))):
        if chosen not in known:
            raise InvalidArgument(
                f"block_products has no {what} {chosen!r}. Choose from {', '.join(map(repr, known))}."
            )
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if name not in parameters:
        raise InvalidArgument(
            f"The model has no parameter {name!r}. Choose from {', '.join(map(repr, parameters))}."
        )
    check_vectors(matrix, parameters[name])
    if kind == "pch":
        return _positive(model, loss, inputs, targets, name, matrix, modify)
    with unnoticed(inputs):
        here = Linearised(model, inputs)
    # A shared parameter is known by its first name.
    first = next(n for n, p in model.named_parameters() if p is parameters[name])
    block = [here.parameters[first]]
    outputs, value = evaluated(loss, here.output, targets)
    curvature = Hessian(value, block) if kind == "hessian" else GGN(value, outputs, block)
    return torch.stack([curvature.times([vector])[0] for vector in matrix])


def _positive(
    model: nn.Module,
    loss: LossFunction,
    inputs: Tensor,
    targets: Tensor,
    name: str,
    matrix: Tensor,
    modify: str,
) -> Tensor:
    """Push the columns forward to the outputs, and pull them back, with the residuals on the way."""
    refuse_coupled(model, "kind='hessian', whose products are exact here, too")
    with unnoticed(inputs):
        links = chain(model, inputs)
    start = max(i for i, (prefix, _) in enumerate(links) if name.startswith(prefix))
    prefix, first = links[start]
    local, later = name.removeprefix(prefix), links[start + 1 :]
    if any(first.module.children()):
        raise Unsupported(
            f"{name} is within a {type(first.module).__name__}, and the positive-curvature Hessian "
            "goes from layer to layer of an nn.Sequential; use kind='ggn'"
        )
    pushed = [first.push(matrix, local)]  # at the inputs of the later layers, and at the outputs
    for _, link in later:
        pushed.append(link.push(pushed[-1]))
    outputs = links[-1][1].output.detach()
    z, value = evaluated(loss, outputs, targets)
    S = sqrt_hessian(loss, outputs, targets).flatten(2)  # [M, N, M]
    result = torch.einsum("kni,knj,vnj->vni", S, S, pushed.pop().flatten(2))
    result = result.reshape(-1, *outputs.shape)
    (upstream,) = torch.autograd.grad(value, z)
    for (_, link), vectors in zip(reversed(later), reversed(pushed), strict=True):
        residual = MODIFICATIONS[modify](_elementwise_residual(link, upstream))
        result = link.pull(result) + residual * vectors
        (upstream,) = link.pull(upstream.unsqueeze(0))
    return first.pull(result, local)


def _elementwise_residual(link: Linearised, upstream: Tensor) -> Tensor:
    """Return the diagonal of a layer's residual, of the shape of its inputs, and confirm that it is all."""
    generator = torch.Generator(upstream.device).manual_seed(0)
    noise = torch.randn(link.inputs.shape, generator=generator, device=upstream.device)
    noise = noise.to(link.inputs)
    vectors = torch.stack([torch.ones_like(noise), noise]).detach()
    diagonal, product = link.residual(upstream, vectors)
    error = torch.linalg.vector_norm(diagonal * noise - product)
    if error > torch.finfo(noise.dtype).eps ** 0.5 * torch.linalg.vector_norm(product):
        raise Unsupported(
            f"{type(link.module).__name__} is neither linear nor elementwise, and has no residual that "
            "could be made positive by element; use kind='ggn'"
        )
    return diagonal
