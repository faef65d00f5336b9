"""What can be said of a model's parameters before any data is seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from cockpit.coverage.coverage import Coverage
from cockpit.coverage.grouping import joined_names
from cockpit.coverage.rows import (
    EMPTY,
    FROZEN,
    NOTHING,
    REPLAYED,
    UNDECIDED,
    ParameterCoverage,
)
from cockpit.errors import InvalidArgument
from cockpit.gradients import couples_samples, find_rule
from cockpit.gradients.rules import describe
from cockpit.gradients.rules.registry import served_parameters
from cockpit.gradients.untrackable import Reason, untrackable

UNINITIALIZED = Reason(
    "its shape is not known before the first forward pass",
    "run one first, such as model(inputs) under torch.no_grad()",
)
SCRIPTED = Reason(
    "it belongs to a ScriptModule, which takes no hooks",
    "use the module it was scripted from, or torch.compile instead of torch.jit.script",
)
REPLICATED = Reason(
    "DataParallel calls copies of the modules, whose parameters are not those of the model",
    "give the cockpit one device, or use DistributedDataParallel",
)


def known(model: nn.Module, optimizers: Sequence[Any] = ()) -> Coverage:
    """Return what is known of a model before it sees data; see `cockpit.inspect`."""
    places = _places(model)
    replicated = any(_replicates(module) for module in model.modules())
    updated = Counter(
        p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]
    )
    serving = _serving(model)
    rows = []
    for parameter, found in places.items():
        owner, module = serving[parameter]
        reason = _gap(parameter, module, replicated)
        served_by, rule = _served(parameter, module, reason)
        trained = served_by not in (FROZEN, EMPTY)
        notes = [*_of_sharing(found), *_of_layer(module, served_by)] if trained else []
        if optimizers and trained:
            notes += _of_updates(updated[parameter])
        rows.append(
            ParameterCoverage(
                name=found[0],
                shape=None if _uninitialized(parameter) else tuple(parameter.shape),
                elements=0 if _uninitialized(parameter) else parameter.numel(),
                module=owner,
                layer=type(module).__name__,
                served_by=served_by,
                rule=rule,
                notes=tuple(notes),
                gap=reason.why if reason and trained else None,
                way_out=reason.way_out if reason and trained else None,
            )
        )
    return Coverage(type(model).__name__, tuple(rows), tuple(_of_model(model, places)))


def require_usable(model: nn.Module) -> None:
    """Refuse a model with which nothing can be begun.

    Raises:
        InvalidArgument: if it has parameters without a shape, or takes no hooks.
    """
    lazy = [name for name, p in model.named_parameters() if _uninitialized(p)]
    if lazy:
        raise InvalidArgument(
            f"{type(model).__name__} has parameters that do not exist yet: {joined_names(lazy)}: "
            f"{UNINITIALIZED}, before Cockpit(model, ...) and before the optimizer is made."
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise InvalidArgument(f"{type(model).__name__} cannot be watched: {SCRIPTED}.")


def _places(model: nn.Module) -> dict[Tensor, list[str]]:
    """Return the names of each parameter, of which a shared one has several."""
    places: dict[Tensor, list[str]] = {}
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(prefix, False, remove_duplicate=False):
            places.setdefault(parameter, []).append(name)
    return places


def _serving(model: nn.Module) -> dict[Tensor, tuple[str, nn.Module]]:
    """Return the module at whose calls each parameter is served, by name and itself.

    That is its own, or one further out that uses it without calling its own.
    """
    serving: dict[Tensor, tuple[str, nn.Module]] = {}
    for name, module in model.named_modules():
        for parameter in served_parameters(module).values():
            serving.setdefault(parameter, (name, module))
    return serving


def _uninitialized(parameter: Tensor) -> bool:
    return isinstance(parameter, UninitializedParameter)


def _replicates(module: nn.Module) -> bool:
    return isinstance(module, nn.DataParallel) and len(module.device_ids) > 1


def _gap(parameter: Tensor, module: nn.Module, replicated: bool) -> Reason | None:
    if _uninitialized(parameter):
        return UNINITIALIZED
    if isinstance(module, torch.jit.ScriptModule):
        return SCRIPTED
    return REPLICATED if replicated else untrackable(parameter)


def _served(parameter: Tensor, module: nn.Module, reason: Reason | None) -> tuple[str, str]:
    """Return what computes a parameter's individual gradients, and the name of the rule."""
    if not parameter.requires_grad:
        return FROZEN, ""
    if not _uninitialized(parameter) and parameter.numel() == 0:
        return EMPTY, ""
    if reason is not None:
        return NOTHING, ""
    service = describe(module)
    return (UNDECIDED if find_rule(module) is None else service.how), service.rule


# -- notes ----------------------------------------------------------------------------------------


def _of_sharing(names: list[str]) -> Iterator[str]:
    if len(names) > 1:
        yield f"shared with {joined_names(names[1:])}: the parts of its gradients are added up"


def _of_layer(module: nn.Module, served_by: str) -> Iterator[str]:
    if served_by == REPLAYED or "run again" in served_by:
        yield "its layer runs once more at every watched step"
    if served_by == UNDECIDED:
        yield (
            "its layer has no rule: what it does with the parameter is seen in the graph, and where "
            "that does not say enough, the layer runs once more at every watched step"
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
        yield "its gradient is sparse, which is not compared with the sum of the individual ones"
    if isinstance(module, nn.RNNBase):
        yield (
            "cuDNN has no second derivative of its layer: for curvature on a GPU, compute the loss "
            "under torch.backends.cudnn.flags(enabled=False)"
        )


def _of_updates(optimizers: int) -> Iterator[str]:
    if optimizers == 0:
        yield "no optimizer has it, so its update is zero"
    if optimizers > 1:
        yield f"{optimizers} optimizers have it: its update is the sum of theirs"


def _of_model(model: nn.Module, places: Iterable[Tensor]) -> Iterator[str]:
    coupling = [name for name, module in model.named_modules() if couples_samples(module)]
    if coupling:
        layers = "layer normalises" if len(coupling) == 1 else "layers normalise"
        yield (
            f"batch-coupled: {len(coupling)} {layers} with the statistics of the batch "
            f"({joined_names(coupling)}), so the loss of a sample depends on all of them. Individual "
            "gradients of the layers before are the samples' shares in the gradient; they add up to "
            "it exactly. In eval mode they are the gradients of the samples' losses"
        )
    devices = sorted({str(parameter.device) for parameter in places})
    if len(devices) > 1:
        yield f"parameters are on several devices: {', '.join(devices)}"
    if hasattr(model, "_orig_mod"):
        yield "compiled: the layers inside are served, under names that begin with _orig_mod"
