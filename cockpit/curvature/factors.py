"""Kronecker factors of the GGN's blocks, layer by layer: KFAC, KFLR and KFRA.

With the layer's input x (for a convolution, the patches under the kernel) and T output positions,
the block of a weight is approximated by B ⊗ A, where A = (1/N) Σ_n Σ_t x_nt x_ntᵀ and B is the
(exact, sampled or recursively averaged) GGN with respect to the bias, and the block of the bias
itself is B.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from cockpit.curvature.chain import chain, refuse_shared
from cockpit.curvature.kronecker import Kronecker
from cockpit.curvature.linearised import Linearised, refuse_coupled, unnoticed
from cockpit.curvature.losses import (
    LossFunction,
    sqrt_hessian,
    sqrt_hessian_sampled,
    sum_hessian,
)
from cockpit.errors import InvalidArgument, Unsupported
from cockpit.gradients import IndividualGradients
from cockpit.gradients.batch import Batch
from cockpit.gradients.products import Products
from cockpit.gradients.rules import Call, find_rule

APPROXIMATIONS = ("kfac", "kflr", "kfra")
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
LAYERS = (nn.Linear, *CONVOLUTIONS)

OTHERWISE = "block_products(kind='hessian'), whose products are exact here, too"


def kronecker_factors(
    model: nn.Module,
    loss: LossFunction,
    inputs: Tensor,
    targets: Tensor,
    approximation: str = "kfac",
    mc_samples: int = 1,
    generator: torch.Generator | None = None,
) -> dict[str, Kronecker]:
    """Compute the Kronecker factors of the blocks of a loss's GGN, for Linear and Conv layers.

    Args:
        model: The model; it takes one tensor and returns one. ``"kfra"`` needs a chain of layers.
        loss: From outputs and targets to the loss, `[]`: a module or a function.
        inputs: The mini-batch, `[N, ...]`.
        targets: As the loss takes them.
        approximation: ``"kflr"`` sends an exact square root of the loss's Hessian backwards,
            ``"kfac"`` a sampled one, and ``"kfra"`` the sum of the Hessians, which every layer's
            Jacobian is averaged with: M ← (1/N) Σ_n J_nᵀ M J_n. This is a matrix of the size of a
            layer's output: for small models.
        mc_samples: Number of samples of ``"kfac"``.
        generator: Where its random numbers come from.

    Returns:
        By the parameters' names `Kronecker(B, A)` for weights, whose rows are those of the flattened
        weight, and `Kronecker(B)` for biases. Parameters of other layers are left out. For one
        sample and one position, KFLR is the block itself.

    Raises:
        InvalidArgument: if there is no such approximation.
        Unsupported: if a layer is used several times, couples the samples or has groups, or the
            model is no chain.

    Source: Martens & Grosse (2015), arXiv:1503.05671 (KFAC); Grosse & Martens (2016),
    arXiv:1602.01407 (convolutions); Botev, Ritter & Barber (2017), arXiv:1706.03662 (KFLR, KFRA).
    """
    if approximation not in APPROXIMATIONS:
        raise InvalidArgument(
            f"kronecker_factors has no approximation {approximation!r}. Choose from "
            f"{', '.join(map(repr, APPROXIMATIONS))}."
        )
    refuse_coupled(model, OTHERWISE)
    if approximation == "kfra":
        return _recursive(model, loss, inputs, targets)
    if generator is None:
        generator = torch.Generator(inputs.device).manual_seed(0)

    def root(outputs: Tensor) -> Tensor:
        if approximation == "kflr":
            return sqrt_hessian(loss, outputs, targets)
        return sqrt_hessian_sampled(loss, outputs, targets, mc_samples, generator)

    return _propagated(model, inputs, root)


def _propagated(
    model: nn.Module, inputs: Tensor, root: Callable[[Tensor], Tensor]
) -> dict[str, Kronecker]:
    """Send the columns of a square root backwards to the outputs of all layers."""
    refuse_shared(model)
    layers = {n: m for n, m in model.named_modules() if isinstance(m, LAYERS)}
    names: dict[nn.Module, str] = {module: name for name, module in layers.items()}
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def see(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        name = names[module]
        if name in seen:
            raise Unsupported(f"{name} is called several times, which has no Kronecker factors")
        seen[name] = args[0].detach(), output
        return output.clone()  # what follows may work in place

    hooks = [module.register_forward_hook(see) for module in layers.values()]
    try:
        with unnoticed(inputs):
            whole = Linearised(_Whole(model), inputs)
    finally:
        for hook in hooks:
            hook.remove()
    sums = {name: torch.zeros(()).to(z) for name, (_, z) in seen.items()}
    for column in root(whole.output.detach()) if seen else ():
        arrived = torch.autograd.grad(
            whole.output,
            [z for _, z in seen.values()],
            column,
            retain_graph=True,
            materialize_grads=True,
        )
        for name, b in zip(seen, arrived, strict=True):
            b = _summed(layers[name], b)  # [N, O]
            sums[name] = sums[name] + b.mT @ b
    found: dict[str, Kronecker] = {}
    for name, (x, z) in seen.items():
        found |= _factors(f"{name}." if name else "", layers[name], x, z, sums[name])
    return found


class _Whole(nn.Module):
    """Calls a model with its hooks."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs)


def _recursive(
    model: nn.Module, loss: LossFunction, inputs: Tensor, targets: Tensor
) -> dict[str, Kronecker]:
    with unnoticed(inputs):
        links = chain(model, inputs)
    return recursive_factors(links, sum_hessian(loss, links[-1][1].output.detach(), targets))


def recursive_factors(
    links: Sequence[tuple[str, Linearised]], curvature: Tensor
) -> dict[str, Kronecker]:
    """Send the sum of the loss's Hessians backwards through a chain of layers, averaged at each of them.

    Args:
        links: The chain, with the prefixes of the parameters' names.
        curvature: The sum of the Hessians with respect to the outputs of a sample, `[M, M]`.
    """
    found: dict[str, Kronecker] = {}
    for position, (prefix, link) in reversed(list(enumerate(links))):
        module, z = link.module, link.output
        if isinstance(module, LAYERS):
            size = z[0].numel()
            # The GGN of the bias: [O, M], then [O, O].
            half = _summed(module, curvature.reshape(size, *z.shape[1:])).mT
            B = _summed(module, half.reshape(-1, *z.shape[1:])).mT
            found = _factors(prefix, module, link.inputs.detach(), z, B) | found
        elif any(isinstance(part, LAYERS) for part in module.modules()):
            raise Unsupported(
                f"{prefix.rstrip('.') or 'the model'} is no chain of layers (nn.Sequential), and KFRA "
                "goes from layer to layer; use approximation='kfac' or 'kflr'"
            )
        if position:
            units = torch.eye(len(curvature)).to(z).reshape(-1, 1, *z.shape[1:])
            J = link.pull(units.expand(-1, *z.shape)).flatten(2)  # [D_out, N, D_in]
            curvature = torch.einsum("kni,kl,lnj->ij", J, curvature, J) / len(z)
    return found


def _factors(
    prefix: str, module: nn.Module, x: Tensor, z: Tensor, B: Tensor
) -> dict[str, Kronecker]:
    A = _input_factor(prefix, module, x, z)
    products = {f"{prefix}weight": Kronecker(B, A)}
    if module.bias is not None:
        products[f"{prefix}bias"] = Kronecker(B)
    return products


def factors_of(handle: IndividualGradients) -> Kronecker | None:
    """Return the factors of a parameter's block from what a square root's column brings to its layer.

    Args:
        handle: The "individual gradients" J_nᵀ s_n, with s_n the part of the column at sample n.

    Returns:
        As in `kronecker_factors`; None for a parameter that has no factors.
    """
    if len(handle.calls) != 1 or not isinstance(handle.calls[0].module, LAYERS):
        return None
    if isinstance(handle, Products) and handle.groups == 1:
        b = handle.b[:, 0].sum(2)  # [N, O]
        A = torch.zeros(handle.inputs, handle.inputs, dtype=b.dtype, device=b.device)
        for samples in handle.batch.pieces(handle.inputs * handle.positions * b.element_size()):
            patches = handle.a(samples)[:, 0]  # [n, I, T]
            A += torch.einsum("nit,njt->ij", patches, patches)
        return Kronecker(b.mT @ b, A / handle.batch.size)
    if len(handle.shape) == 1:
        b = handle.dense()
        return Kronecker(b.mT @ b)
    return None


def _input_factor(prefix: str, module: nn.Module, x: Tensor, z: Tensor) -> Tensor:
    """Return (1/N) Σ_n Σ_t x_nt x_ntᵀ, `[I, I]`."""
    name, rule = prefix.rstrip(".") or "the model", find_rule(module)
    if rule is None:
        raise Unsupported(
            f"{name} is a {type(module).__name__} with a forward of its own; block_products serves "
            "every layer"
        )
    if getattr(module, "groups", 1) != 1:
        raise Unsupported(
            f"{name} has {module.groups} groups, which have no Kronecker factors; block_products "
            "serves every layer"
        )
    handle = rule(Call.of(module, (x,), {}), (z,), Batch(len(z)))["weight"]
    assert isinstance(handle, Products)
    patches = handle.a(slice(None))[:, 0]  # [N, I, T]
    return torch.einsum("nit,njt->ij", patches, patches) / len(z)


def _summed(module: nn.Module, values: Tensor) -> Tensor:
    """Sum over the positions of a layer's output, `[N, O]`."""
    if isinstance(module, CONVOLUTIONS):
        return values.flatten(2).sum(2)
    return values.reshape(len(values), -1, values.shape[-1]).sum(1)
