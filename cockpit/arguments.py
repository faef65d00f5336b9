"""Reads and checks what the user hands over."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from cockpit.errors import InvalidArgument, InvalidType
from cockpit.presets import configuration
from cockpit.quantities import Quantity

COMPILED = "_orig_mod"
"""Name of the module in what `torch.compile` makes of it."""


def read_parameters(params: Any) -> tuple[dict[str, nn.Parameter], nn.Module | None]:
    """Return the tracked parameters by name, and the model if that was given.

    Raises:
        InvalidType: if something is no parameter.
        InvalidArgument: if there is none, or one given by itself does not require a gradient.
    """
    params = _bare(params)
    if isinstance(params, nn.Module):
        _refuse_shards(params)
        return _of_module(params), params
    if isinstance(params, Tensor | str | Mapping) or not isinstance(params, Iterable):
        raise InvalidType(
            "Cockpit takes a torch.nn.Module, an iterable of parameters, or of (name, parameter) "
            f"pairs, got {_kind(params)}. Pass the model itself: Cockpit(model, ...)."
        )
    named: dict[str, Any] = {}
    for position, entry in enumerate(params):
        pair = isinstance(entry, tuple) and len(entry) == 2
        name, parameter = entry if pair else (f"parameter{position}", entry)
        if not isinstance(parameter, Tensor):
            raise InvalidType(
                "Cockpit takes a torch.nn.Module, an iterable of parameters, or of (name, "
                f"parameter) pairs; entry {position} is {_kind(parameter)}. Pass the model itself: "
                "Cockpit(model, ...)."
            )
        if not parameter.requires_grad:
            raise InvalidArgument(
                f"Parameter {name!r} of shape {list(parameter.shape)} has requires_grad=False, so "
                "no gradient can be tracked for it. Leave it out, or pass the model itself, whose "
                "frozen parameters are left out by themselves."
            )
        named[str(name)] = parameter
    if not named:
        raise InvalidArgument(
            "Cockpit got no parameters: the iterable is empty. An iterator such as "
            "model.parameters() can be read only once; pass the model itself: Cockpit(model, ...)."
        )
    return named, None


def _bare(model: Any) -> Any:
    """Take off what a model is wrapped in for several processes or by `torch.compile`."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return _bare(model.module)
    if isinstance(model, nn.Module) and COMPILED in model._modules:
        return _bare(model._modules[COMPILED])
    return model


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of a model, by their names without what `torch.compile` adds to them."""
    return {name.replace(f"{COMPILED}.", ""): p for name, p in model.named_parameters()}


def _of_module(model: nn.Module) -> dict[str, nn.Parameter]:
    everything = named_parameters(model)
    if not everything:
        raise InvalidArgument(
            f"{type(model).__name__} has no parameters, so there is nothing to track. If they are "
            "created in the first forward pass, run one before Cockpit(model, ...)."
        )
    named = {name: p for name, p in everything.items() if p.requires_grad}
    if not named:
        raise InvalidArgument(
            f"None of the {len(everything)} parameters of {type(model).__name__} requires a "
            "gradient, so there is nothing to track. Set requires_grad=True on those that are "
            "trained before Cockpit(model, ...)."
        )
    return named


def _refuse_shards(model: nn.Module) -> None:
    """Refuse a model whose parameters are cut into pieces that lie on different processes.

    Raises:
        InvalidArgument: if it is one.
    """
    kinds = [kind.__name__ for module in model.modules() for kind in type(module).__mro__]
    # By name, since the classes stand in modules that only distributed programs load.
    for name, way in SHARDING.items():
        if name in kinds:
            raise InvalidArgument(
                f"{type(model).__name__} is sharded by {way}: every process holds only a piece of "
                "each parameter, and of its gradient and its update. Watch the model, or a "
                "smaller one with the same layers, in DistributedDataParallel: Cockpit(ddp_model, "
                "...)."
            )


SHARDING = {
    "FSDPModule": "torch.distributed.fsdp.fully_shard (FSDP2)",
    "FullyShardedDataParallel": "FullyShardedDataParallel",
}
"""Classes of modules whose parameters are shards, and what makes them."""


def read_quantity(quantity: Any) -> Quantity:
    """Return a quantity, or say why it is none.

    Raises:
        InvalidType: if it is none.
    """
    if isinstance(quantity, Quantity):
        return quantity
    if isinstance(quantity, type) and issubclass(quantity, Quantity):
        name = quantity.__name__
        raise InvalidType(f"{name} is a class; give an instance of it: {name}().")
    raise InvalidType(
        "Cockpit takes quantities, that is, instances of cockpit.quantities.Quantity such as "
        f"NormTest(), got {_kind(quantity)}."
    )


def read_quantities(quantities: Any) -> dict[str, Quantity]:
    """Return the quantities by the names under which they are tracked; a label is that of a set of them.

    Raises:
        InvalidType: if something is no quantity.
        InvalidArgument: if there is no set of that label, or two are equal.
    """
    if isinstance(quantities, str):
        quantities = configuration(quantities)
    if isinstance(quantities, Quantity):
        raise InvalidType(
            f"Cockpit takes a list of quantities, or the label of a set, got {_kind(quantities)} "
            f"by itself. Give [{quantities.name}(...)]."
        )
    named: dict[str, Quantity] = {}
    for quantity in quantities or ():
        named[free_name(quantity, named)] = quantity
    return named


def free_name(quantity: Any, taken: Mapping[str, Quantity]) -> str:
    """Return the name under which a further quantity is tracked: its own, or that with a number.

    Raises:
        InvalidType: if it is no quantity.
        InvalidArgument: if an equal one is tracked already.
    """
    quantity = read_quantity(quantity)
    if quantity in taken.values():
        raise InvalidArgument(
            f"{quantity.name} was given twice with the same settings. Give it once, or change a "
            "setting."
        )
    name, count = quantity.name, 1
    while name in taken:
        count += 1
        name = f"{quantity.name}-{count}"
    return name


def read_optimizers(optimizer: Any) -> list[Any]:
    """Return the optimizers as a list.

    Raises:
        InvalidType: if one is no optimizer.
    """
    if optimizer is None:
        return []
    optimizers = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
    for one in optimizers:
        if not hasattr(one, "step") or not hasattr(one, "param_groups"):
            raise InvalidType(
                f"optimizer must be a torch.optim.Optimizer or a list of them, got {_kind(one)}."
            )
    return optimizers


def read_loss_function(loss_function: Any) -> nn.Module | None:
    """Return the loss module.

    Raises:
        InvalidType: if it is none.
    """
    if loss_function is None or isinstance(loss_function, nn.Module):
        return loss_function
    raise InvalidType(
        "loss_function must be a torch.nn.Module such as torch.nn.CrossEntropyLoss(), got "
        f"{_kind(loss_function)}. A function cannot have BackPACK's hooks; leave it out where no "
        "quantity needs BackPACK."
    )


def read_batch_dim(batch_dim: Any) -> int | None:
    """Return the dimension in which the samples lie, None where that is not said.

    Raises:
        InvalidArgument: if it is neither 0 nor 1.
    """
    if batch_dim is None or (batch_dim in (0, 1) and not isinstance(batch_dim, bool)):
        return batch_dim
    raise InvalidArgument(
        f"batch_dim must be 0 or 1, or None to see by oneself, got {_kind(batch_dim)}. If the "
        "samples are in a later dimension, transpose the model's input."
    )


def read_subsample(subsample: Any) -> int | None:
    """Return the number of samples that are drawn from larger batches, None for all.

    Raises:
        InvalidType: if it is no whole number.
        InvalidArgument: if it is less than 2.
    """
    if subsample is None:
        return None
    what = "the samples that are drawn from larger batches, or None for all"
    count = _whole(subsample, f"subsample must be a whole number, {what}")
    if count < 2:
        raise InvalidArgument(
            f"subsample must be at least 2, since one sample has no variance, got {count}. Leave it out "
            "to use all samples."
        )
    return count


def read_retention(retention: Any) -> int | None:
    """Return how many of the last arrays of each series the run file keeps in any case, None for all.

    Raises:
        InvalidType: if it is no whole number.
        InvalidArgument: if it is less than 1.
    """
    if retention is None:
        return None
    what = "the histograms of each kind that all stay in the run file, or None for all"
    count = _whole(retention, f"retention must be a whole number, {what}")
    if count < 1:
        raise InvalidArgument(
            f"retention must be at least 1, got {count}. Leave it out to keep all."
        )
    return count


def read_step(global_step: Any) -> int:
    """Return the number of a step.

    Raises:
        InvalidType: if it is no integer.
        InvalidArgument: if it is negative.
    """
    try:
        step = operator.index(global_step)
    except TypeError:
        raise InvalidType(
            f"The global step must be an integer, got {_kind(global_step)}. Count the updates from "
            "0."
        ) from None
    if step < 0:
        raise InvalidArgument(f"The global step must be at least 0, got {step}.")
    return step


def read_loss(loss: Any) -> Tensor | None:
    """Return the loss as a tensor with no dimensions, in its graph.

    Raises:
        InvalidType: if it is no number.
        InvalidArgument: if it has several elements.
    """
    if loss is None:
        return None
    if isinstance(loss, int | float):
        return torch.tensor(float(loss))
    if not isinstance(loss, Tensor):
        raise InvalidType(
            f"'loss' must be the tensor on which backward() is called, got {_kind(loss)}."
        )
    if loss.numel() != 1:
        raise InvalidArgument(
            f"'loss' must have one element, got a tensor of shape {list(loss.shape)}. Pass the "
            "scalar on which backward() is called, for example losses.mean(), and the losses of "
            "the samples as 'individual_losses'."
        )
    return loss


def read_losses(
    info: Mapping[str, Any], batch_sizes: Collection[int]
) -> tuple[Tensor | None, Tensor | None, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the loss and the losses of the samples, and, where there are several losses, both for each.

    Raises:
        InvalidType: if they are no tensors.
        InvalidArgument: if their shapes or numbers do not fit.
    """
    loss, individual = info.get("loss"), info.get("individual_losses")
    parts = _read_parts(loss)
    each = _read_individual_parts(individual, len(parts), batch_sizes) if parts else ()
    if len(parts) == 1:
        loss, individual, parts, each = parts[0], each[0] if each else individual, (), ()
    scalars = tuple(part.reshape(()) for part in parts)
    whole = _sum(scalars) if scalars else read_loss(loss)
    of_samples = _sum(each) if each else read_individual_losses(individual, batch_sizes)
    return whole, of_samples, parts, each


def _sum(tensors: tuple[Tensor, ...]) -> Tensor:
    """Add tensors of one shape up; a single one stays itself, with its place in the graph."""
    return reduce(operator.add, tensors)


def _read_parts(losses: Any) -> tuple[Tensor, ...]:
    """Return several losses, each in its graph; none if a single one was given.

    Raises:
        InvalidType: if one is no number.
        InvalidArgument: if there is none, one has several elements, or is made from another.
    """
    if not isinstance(losses, tuple | list):
        return ()
    if not losses:
        raise InvalidArgument("'loss' is empty: give the tensor on which backward() is called.")
    read = []
    for loss in losses:
        one = read_loss(loss)
        if one is None:
            raise InvalidType("'loss' must hold tensors on which backward() is called, got None.")
        read.append(one)
    for place, loss in enumerate(read):
        for other, part in enumerate(read):
            if place != other and _made_from(loss, part):
                raise InvalidArgument(
                    f"loss[{place}] is made from loss[{other}], so that this would count twice. "
                    "Give the parts, each once, or the one loss on which backward() is called."
                )
    return tuple(read)


def _made_from(loss: Tensor, part: Tensor) -> bool:
    if loss is part:
        return True
    if not (loss.requires_grad and part.requires_grad):
        return False
    (grad,) = torch.autograd.grad(
        loss, part, torch.ones_like(loss), retain_graph=True, allow_unused=True
    )
    return grad is not None


def read_batch_size(batch_size: Any) -> int | None:
    """Return the number of samples, None where it is not given.

    Raises:
        InvalidType: if it is no whole number.
        InvalidArgument: if it is not positive.
    """
    if batch_size is None:
        return None
    size = _whole(batch_size, "'batch_size' must be a whole number, the samples of the batch")
    if size < 1:
        raise InvalidArgument(f"'batch_size' must be at least 1, got {size}.")
    return size


def read_loss_factor(factor: Any) -> Tensor | float:
    """Return the factor that is on the loss already.

    Raises:
        InvalidArgument: if it is no positive number, or a tensor with more than one element.
    """
    if factor is None:
        return 1.0
    if isinstance(factor, Tensor) and factor.numel() == 1:
        return factor.detach().reshape(())
    if isinstance(factor, int | float) and 0 < factor < math.inf:
        return float(factor)
    raise InvalidArgument(
        "'loss_factor' must be a positive number or a tensor with one element, what the loss has "
        f"been multiplied with, got {_kind(factor)}."
    )


def read_individual_losses(losses: Any, batch_sizes: Collection[int]) -> Tensor | None:
    """Return the losses of the samples.

    Args:
        losses: What was given.
        batch_sizes: How many samples there may be; empty where that is not known.

    Raises:
        InvalidType: if they are no tensor.
        InvalidArgument: if there is not one for each sample.
    """
    if losses is None:
        return None
    if not isinstance(losses, Tensor):
        raise InvalidType(
            "'individual_losses' must be a tensor with the loss of every sample, got "
            f"{_kind(losses)}."
        )
    if losses.dim() != 1:
        raise InvalidArgument(
            "'individual_losses' must have one dimension, the samples, got shape "
            f"{list(losses.shape)}. Sum or average over the others, for example "
            "losses.flatten(1).mean(1)."
        )
    if batch_sizes and len(losses) not in batch_sizes:
        sizes = " or ".join(str(size) for size in sorted(batch_sizes))
        raise InvalidArgument(
            f"'individual_losses' has {len(losses)} entries, but the batch has {sizes} samples. "
            "Give one loss per sample; if the samples are not in the first dimension of the "
            "model's input, say how many there are with batch_size=."
        )
    return losses


def _read_individual_parts(
    losses: Any, count: int, batch_sizes: Collection[int]
) -> tuple[Tensor, ...]:
    """Return the losses of the samples for each of several losses; none if they were not given so.

    Raises:
        InvalidType: if they are no tensors.
        InvalidArgument: if there are not as many as losses, or not one for each sample.
    """
    if not isinstance(losses, tuple | list):
        return ()
    if len(losses) != count:
        raise InvalidArgument(
            f"'individual_losses' has {len(losses)} tensors for {count} losses. Give one for each "
            "of them, in their order, or one tensor [N] with the sums over the losses."
        )
    read = [read_individual_losses(one, batch_sizes) for one in losses]
    known = tuple(one for one in read if one is not None)
    if len(known) != count or len({len(one) for one in known}) != 1:
        raise InvalidArgument(
            "'individual_losses' must hold one tensor [N] for each loss, got "
            f"{[None if one is None else list(one.shape) for one in read]}."
        )
    return known


def read_grad_scaler(scaler: Any) -> None:
    """Check the gradient scaler.

    Raises:
        InvalidType: if it is none.
    """
    if scaler is not None and not callable(getattr(scaler, "scale", None)):
        raise InvalidType(
            "'grad_scaler' must be a torch.amp.GradScaler, with which the loss is scaled, got "
            f"{_kind(scaler)}."
        )


def read_micro_batch(micro_batch: Any) -> tuple[int, int]:
    """Return the number of a backward pass, and how many make up the step.

    Raises:
        InvalidArgument: if they are no such pair.
    """
    if micro_batch is None:
        return 0, 1
    try:
        number, passes = (operator.index(value) for value in micro_batch)
    except (TypeError, ValueError):
        number, passes = 0, 0
    if not 0 <= number < passes:
        raise InvalidArgument(
            "'micro_batch' must be a pair (k, K) with 0 <= k < K, the number of the backward pass "
            f"and how many make up the step, got {micro_batch!r}."
        )
    return number, passes


def _whole(value: Any, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidType(f"{what}, got {_kind(value)}.") from None


def _kind(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__}: {text if len(text) <= 60 else text[:57] + '...'}"
