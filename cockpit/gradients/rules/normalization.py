"""Normalisation layers with a scale and a shift per feature: their gradients are small, and stored.

With x̂ the normalised input and b the gradient with respect to the output, the scale's gradient is
the sum of b ∘ x̂ over the dimensions that share it, and the shift's that of b.

BatchNorm in training mode couples the samples: the loss of one sample depends on all of them. What
is computed then is the share of sample i in the gradient, that is, what flows through its slice of
the output. The shares add up to the gradient exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cockpit.gradients.batch import Batch, working_dtype
from cockpit.gradients.handle import Dense, IndividualGradients
from cockpit.gradients.rules.registry import Call, factors, rule_for


def couples_samples(module: nn.Module) -> bool:
    """Whether a module normalises with the statistics of the batch, so that its outputs depend on all samples."""
    batch_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
    return batch_norm and (module.training or module.running_mean is None)


def _handles(
    module: nn.Module, batch: Batch, normalized: Tensor, grad: Tensor, dims: tuple[int, ...]
) -> dict[str, IndividualGradients]:
    """Sum over the dimensions that share a parameter."""
    sums = {"weight": grad * normalized, "bias": grad}
    return {
        name: Dense(batch, values.sum(dims) if dims else values)
        for name, values in sums.items()
        if getattr(module, name, None) is not None
    }


@rule_for(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, how="dense")
def batch_norm(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch
) -> dict[str, IndividualGradients]:
    """Serve BatchNorm on `[N, C, *]`, with the statistics that the forward pass used."""
    module = call.module
    assert isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)
    x, grad = factors(call, grads, batch)
    positions = tuple(range(2, x.dim()))
    channels = (1, -1, *(1 for _ in positions))
    if call.training or module.running_mean is None or module.running_var is None:
        variance, mean = torch.var_mean(x, dim=(0, *positions), correction=0)
    else:
        variance, mean = module.running_var.to(x.dtype), module.running_mean.to(x.dtype)
    normalized = (x - mean.reshape(channels)) * (variance + module.eps).rsqrt().reshape(channels)
    return _handles(module, batch, normalized, grad, positions)


@rule_for(nn.LayerNorm, how="dense")
def layer_norm(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch
) -> dict[str, IndividualGradients]:
    """Serve LayerNorm on `[N, *, *normalized_shape]`."""
    module = call.module
    assert isinstance(module, nn.LayerNorm)
    features = len(module.normalized_shape)
    x, grad = factors(call, grads, batch, batched_dims=1 + features)
    over = tuple(range(x.dim() - features, x.dim()))
    variance, mean = torch.var_mean(x, dim=over, correction=0, keepdim=True)
    normalized = (x - mean) * (variance + module.eps).rsqrt()
    return _handles(module, batch, normalized, grad, tuple(range(1, x.dim() - features)))


@rule_for(nn.GroupNorm, how="dense")
def group_norm(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch
) -> dict[str, IndividualGradients]:
    """Serve GroupNorm on `[N, C, *]`."""
    module = call.module
    assert isinstance(module, nn.GroupNorm)
    x, grad = factors(call, grads, batch)
    grouped = x.reshape(batch.size, module.num_groups, -1)
    variance, mean = torch.var_mean(grouped, dim=2, correction=0, keepdim=True)
    normalized = ((grouped - mean) * (variance + module.eps).rsqrt()).reshape(x.shape)
    return _handles(module, batch, normalized, grad, tuple(range(2, x.dim())))


@rule_for(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, how="dense")
def instance_norm(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch
) -> dict[str, IndividualGradients]:
    """Serve InstanceNorm on `[N, C, *]`, with statistics of each sample, or with running ones in eval mode."""
    module = call.module
    assert isinstance(module, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d)
    x, grad = factors(call, grads, batch, batched_dims=_dims(module))
    positions = tuple(range(2, x.dim()))
    if call.training or module.running_mean is None or module.running_var is None:
        variance, mean = torch.var_mean(x, dim=positions, correction=0, keepdim=True)
    else:
        channels = (1, -1, *(1 for _ in positions))
        variance = module.running_var.to(x.dtype).reshape(channels)
        mean = module.running_mean.to(x.dtype).reshape(channels)
    return _handles(module, batch, (x - mean) * (variance + module.eps).rsqrt(), grad, positions)


def _dims(module: nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d) -> int:
    """Return the number of dimensions of a batch."""
    kinds = {nn.InstanceNorm1d: 3, nn.InstanceNorm2d: 4, nn.InstanceNorm3d: 5}
    return next(dims for kind, dims in kinds.items() if isinstance(module, kind))


def rms_norm(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch
) -> dict[str, IndividualGradients]:
    """Serve RMSNorm on `[N, *, *normalized_shape]`."""
    module = call.module
    assert isinstance(module, nn.RMSNorm)
    features = len(module.normalized_shape)
    x, grad = factors(call, grads, batch, batched_dims=1 + features)
    over = tuple(range(x.dim() - features, x.dim()))
    # torch's default is that of the precision it computes in, which is single at least.
    eps = torch.finfo(working_dtype(call.input)).eps if module.eps is None else module.eps
    normalized = x * (x.square().mean(over, keepdim=True) + eps).rsqrt()
    return _handles(module, batch, normalized, grad, tuple(range(1, x.dim() - features)))


if hasattr(nn, "RMSNorm"):  # since torch 2.4
    rule_for(nn.RMSNorm, how="dense")(rms_norm)
