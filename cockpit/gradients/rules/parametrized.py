"""Layers whose weight is computed from parameters: weight and spectral norm, orthogonal weights, LoRA, pruning.

The layer's rule serves the weight that its forward used, on a plain layer that stands in for it, and
the chain rule leads from there to the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from cockpit.errors import Unsupported
from cockpit.gradients.batch import Batch
from cockpit.gradients.handle import IndividualGradients
from cockpit.gradients.pulled import PulledBack
from cockpit.gradients.rules.generic import generic, no_random_numbers
from cockpit.gradients.rules.registry import Call, find_entry, find_rule
from cockpit.gradients.rules.rerun import unseen

Values = Mapping[str, Tensor]


@dataclass
class Computed:
    """A tensor of a module that is computed from parameters.

    Args:
        name: Its name in the module.
        parameters: The parameters, by their names in the module.
        compute: From values of these, by the same names, to the tensor. Has no side effects.
    """

    name: str
    parameters: dict[str, nn.Parameter]
    compute: Callable[[Values], Tensor]

    def from_one(self, name: str, value: Tensor) -> Tensor:
        """Compute it from a value of one parameter, with the others as they are."""
        values = {n: p.detach().to(value.dtype) for n, p in self.parameters.items()} | {name: value}
        with unseen(), no_random_numbers(value):
            return self.compute(values)


def serve(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch
) -> Mapping[str, IndividualGradients]:
    """Return the individual gradients of the parameters that a module has, or that its tensors are computed from."""
    computed = {tensor.name: tensor for tensor in _computed(call)}
    if not computed:
        rule = find_rule(call.module)
        return (generic if rule is None else rule)(call, grads, batch)
    plain = _plain(call.module, computed)
    rule = find_rule(plain)
    found = (generic if rule is None else rule)(replace(call, module=plain), grads, batch)
    handles: dict[str, IndividualGradients] = {}
    for name, handle in found.items():
        if name not in computed:
            handles[name] = handle
            continue
        tensor = computed[name]
        for source, parameter in tensor.parameters.items():
            if parameter.requires_grad:
                compute = partial(tensor.from_one, source)
                handles[source] = PulledBack(handle, parameter, compute)
    return handles


# -- what a module computes -----------------------------------------------------------------------


def _computed(call: Call) -> Iterator[Computed]:
    """Yield the tensors that a module, and what its rule borrows, compute from parameters."""
    for prefix, module in _and_borrowed(call.module):
        for name, parametrizations in _parametrizations(module).items():
            yield _parametrized(
                call, f"{prefix}parametrizations.{name}", prefix + name, parametrizations
            )
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm | SpectralNorm | BasePruningMethod):
                yield _hooked(call, prefix, module, hook)


def _and_borrowed(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    yield "", module
    if module._modules.keys() <= {"parametrizations"}:  # it has nothing to borrow from
        return
    entry = find_entry(module)
    for name in () if entry is None else entry.borrows:
        yield f"{name}.", module.get_submodule(name)


def _parametrizations(module: nn.Module) -> dict[str, nn.Module]:
    parametrizations = module._modules.get("parametrizations")
    return {} if parametrizations is None else dict(parametrizations.named_children())


def _parametrized(call: Call, place: str, name: str, parametrizations: nn.Module) -> Computed:
    """Describe a tensor that is computed by modules registered with `torch.nn.utils.parametrize`."""
    parameters = {f"{place}.{n}": p for n, p in parametrizations.named_parameters()}
    buffers = {
        local: _kept(call, f"{place}.{local}", buffer)
        for local, buffer in parametrizations.named_buffers()
    }

    def compute(values: Values) -> Tensor:
        own = {n.removeprefix(f"{place}."): value for n, value in values.items()}
        dtype = next(iter(own.values())).dtype
        copies = {n: _like(b, dtype).clone() for n, b in buffers.items()}
        before = {n: copy.clone() for n, copy in copies.items()}
        with _at_rest(parametrizations):
            result: Tensor = functional_call(parametrizations, own | copies, ())
        if any(not torch.equal(copies[n], before[n]) for n in copies):
            raise Unsupported(
                f"its {name} is computed by a parametrization that changes its buffers whenever it runs, "
                "so running it again gives another one; let it change them in eval mode only"
            )
        return result

    return Computed(name, parameters, compute)


Hook = WeightNorm | SpectralNorm | BasePruningMethod


def _hooked(call: Call, prefix: str, module: nn.Module, hook: Hook) -> Computed:
    """Describe a tensor that is computed by a hook before each forward."""
    name = hook._tensor_name if isinstance(hook, BasePruningMethod) else hook.name
    endings = ("g", "v") if isinstance(hook, WeightNorm) else ("orig",)
    parameters = {f"{prefix}{name}_{end}": module.get_parameter(f"{name}_{end}") for end in endings}
    buffers = {
        local: _kept(call, prefix + local, buffer)
        for local, buffer in module._buffers.items()
        if buffer is not None and local.startswith(f"{name}_")
    }

    def compute(values: Values) -> Tensor:
        own = {n.removeprefix(prefix): value for n, value in values.items()}
        dtype = next(iter(own.values())).dtype
        holder: Any = SimpleNamespace(**own, **{n: _like(b, dtype) for n, b in buffers.items()})
        if isinstance(hook, SpectralNorm):
            return hook.compute_weight(holder, do_power_iteration=False)
        return (
            hook.apply_mask(holder)
            if isinstance(hook, BasePruningMethod)
            else hook.compute_weight(holder)
        )

    return Computed(prefix + str(name), parameters, compute)


def _like(buffer: Tensor, dtype: torch.dtype) -> Tensor:
    return buffer.detach().to(dtype) if buffer.is_floating_point() else buffer.detach()


@contextmanager
def _at_rest(module: nn.Module) -> Iterator[None]:
    """Leave the vectors of spectral norms as they are: those that the forward ended with are those that it used."""
    iterating = [m for m in module.modules() if isinstance(m, _SpectralNorm) and m.training]
    for norm in iterating:
        norm.training = False
    try:
        yield
    finally:
        for norm in iterating:
            norm.training = True


# -- buffers as they were -------------------------------------------------------------------------


def buffers_of(module: nn.Module) -> dict[str, tuple[Tensor, int]]:
    """Return the buffers that a module's tensors are computed with, and how often each has been modified in place.

    Vectors, as power iterations keep them, are copied: the next call of the module changes them.
    """
    kept: dict[str, tuple[Tensor, int]] = {}
    if not _may_compute(module):  # nearly all layers, at every call
        return kept
    for prefix, part in _and_borrowed(module):
        buffers = dict(part.named_buffers(recurse=False)) if _is_hooked(part) else {}
        for name, parametrizations in _parametrizations(part).items():
            if _has_buffers(parametrizations):
                buffers |= dict(parametrizations.named_buffers(f"parametrizations.{name}"))
        for name, buffer in buffers.items():
            value = buffer.clone() if buffer.dim() <= 1 else buffer
            kept[prefix + name] = value, value._version
    return kept


def _may_compute(module: nn.Module) -> bool:
    """Whether anything in a module or its children computes weights; the quick way, without its rule."""
    for part in (module, *module._modules.values()):
        if part is None:
            continue
        if "parametrizations" in part._modules or (part._forward_pre_hooks and _is_hooked(part)):
            return True
    return False


def _has_buffers(module: nn.Module) -> bool:
    parts = (part for part in module._modules.values() if part is not None)
    return bool(module._buffers) or any(map(_has_buffers, parts))


def computes_weights(module: nn.Module) -> bool:
    """Whether tensors of a module, or of what its rule borrows, are computed from parameters."""
    return any(_is_hooked(part) or _parametrizations(part) for _, part in _and_borrowed(module))


def _is_hooked(module: nn.Module) -> bool:
    return any(isinstance(hook, Hook) for hook in module._forward_pre_hooks.values())


def _kept(call: Call, name: str, now: Tensor) -> Tensor:
    """Return a buffer as it was in the forward."""
    value, version = call.buffers.get(name, (now, now._version))
    if value._version != version:
        raise Unsupported(
            f"its buffer {name} was modified after the forward pass, which had computed with it"
        )
    return value


# -- the plain module -----------------------------------------------------------------------------


def _plain(module: nn.Module, computed: Mapping[str, Computed], prefix: str = "") -> nn.Module:
    """Return a module that shares everything with the given one, but holds the computed tensors as parameters."""
    plain: nn.Module = object.__new__(parametrize.type_before_parametrizations(module))
    plain.__dict__.update(module.__dict__)
    own = {
        name.removeprefix(prefix): tensor
        for name, tensor in computed.items()
        if name.startswith(prefix) and "." not in name.removeprefix(prefix)
    }
    sources = {source for tensor in own.values() for source in tensor.parameters}
    parameters = {n: p for n, p in module._parameters.items() if prefix + n not in sources}
    for name, tensor in own.items():
        plain.__dict__.pop(name, None)
        first = next(iter(tensor.parameters.items()))
        with torch.no_grad():
            value = tensor.from_one(*first).detach()
        trained = any(parameter.requires_grad for parameter in tensor.parameters.values())
        parameters[name] = nn.Parameter(value, requires_grad=trained)
    modules = {n: m for n, m in module._modules.items() if n != "parametrizations"}
    for name in () if prefix else {n.split(".")[0] for n in computed if "." in n}:
        modules[name] = _plain(module.get_submodule(name), computed, f"{name}.")
    plain.__dict__.update(_parameters=parameters, _modules=modules)
    return plain
