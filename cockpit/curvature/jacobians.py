"""Products with the Jacobians of one module, and with its second derivatives.

Nothing of the module changes: not its mode, its buffers or its gradients, nor the global random
state.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cockpit.curvature.linearised import Linearised, check_vectors, refuse_coupled, unnoticed
from cockpit.errors import Unsupported
from cockpit.gradients.batch import Batch
from cockpit.gradients.rules import Call, find_rule
from cockpit.gradients.rules.generic import generic


def jac_mat_prod(module: nn.Module, inputs: Tensor, vectors: Tensor) -> Tensor:
    """Multiply a module's Jacobian J = ∂output/∂input with vectors, by differentiation.

    Exact for every differentiable module, also where it couples the samples (BatchNorm in training
    mode).

    Args:
        module: The module; it takes one tensor and returns one.
        inputs: Its input, `[N, ...]`.
        vectors: The vectors v, `[V, *inputs.shape]`.

    Returns:
        J v, `[V, *output.shape]`.

    Raises:
        InvalidArgument: if the shapes do not fit.
        Unsupported: if the module's output is no tensor, or cannot be differentiated twice.
    """
    return _linearised(module, inputs).push(vectors)


def jac_t_mat_prod(module: nn.Module, inputs: Tensor, vectors: Tensor) -> Tensor:
    """Multiply a module's transposed Jacobian with vectors `[V, *output.shape]`.

    Arguments and errors are those of `jac_mat_prod`.

    Returns:
        Jᵀ v, `[V, *inputs.shape]`.
    """
    return _linearised(module, inputs).pull(vectors)


def param_jac_mat_prod(module: nn.Module, inputs: Tensor, name: str, vectors: Tensor) -> Tensor:
    """Multiply the Jacobian with respect to a parameter, ∂output/∂θ, with vectors.

    Args:
        module: The module; it takes one tensor and returns one.
        inputs: Its input, `[N, ...]`.
        name: The parameter's name in the module, as ``"weight"``.
        vectors: The vectors, `[V, *parameter.shape]`.

    Returns:
        J v, `[V, *output.shape]`.

    Raises:
        InvalidArgument: if there is no such parameter, or the shapes do not fit.
    """
    return _linearised(module, inputs).push(vectors, name)


def param_jac_t_mat_prod(
    module: nn.Module, inputs: Tensor, name: str, vectors: Tensor, sum_batch: bool = True
) -> Tensor:
    """Multiply the transposed Jacobian with respect to a parameter with vectors.

    Args:
        module: The module; it takes one tensor and returns one.
        inputs: Its input, `[N, ...]`.
        name: The parameter's name in the module, as ``"weight"``.
        vectors: The vectors, `[V, *output.shape]`.
        sum_batch: Whether to sum over the samples.

    Returns:
        Jᵀ v = Σ_n J_nᵀ v_n, `[V, *parameter.shape]`; or the J_nᵀ v_n, `[V, N, *parameter.shape]`.

    Raises:
        InvalidArgument: if there is no such parameter, or the shapes do not fit.
        Unsupported: if parts by sample are asked of a module that couples the samples, or draws random
            numbers, or for a parameter that is frozen or one of a submodule.
    """
    here = _linearised(module, inputs)
    if sum_batch:
        return here.pull(vectors, name)
    parameter = here._source(name)
    check_vectors(vectors, here.output)
    refuse_coupled(module, "sum_batch=True, whose products are exact here, too")
    if "." in name or not module.get_parameter(name).requires_grad:
        raise Unsupported(
            f"{name} is frozen, or a submodule's, and has no parts by sample here; let it require a "
            "gradient, call this with the submodule, or use sum_batch=True"
        )
    call, rule = Call.of(module, (inputs,), {}), find_rule(module) or generic
    batch = Batch(len(inputs))
    parts = [rule(call, (vector,), batch)[name].dense() for vector in vectors]
    return torch.stack(parts).to(parameter)


def residual_mat_prod(
    module: nn.Module, inputs: Tensor, upstream_gradient: Tensor, vectors: Tensor
) -> Tensor:
    """Multiply the residual of a module with vectors: what separates the Hessian from the GGN.

    With g the gradient of the loss with respect to the outputs f_k, the Hessian with respect to the
    inputs is Jᵀ H J + R with R = Σ_k g_k ∇²f_k. For an activation φ that works elementwise, R is the
    diagonal matrix of g ∘ φ''(x): `upstream_gradient * phi_second * v`.

    Args:
        module: The module; it takes one tensor and returns one.
        inputs: Its input, `[N, ...]`.
        upstream_gradient: g, of the output's shape.
        vectors: The vectors, `[V, *inputs.shape]`.

    Returns:
        R v, `[V, *inputs.shape]`.

    Raises:
        InvalidArgument: if the shapes do not fit.
    """
    return _linearised(module, inputs).residual(upstream_gradient, vectors)


def _linearised(module: nn.Module, inputs: Tensor) -> Linearised:
    with unnoticed(inputs):
        return Linearised(module, inputs)
