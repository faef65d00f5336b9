"""Reads and checks what the user hands over."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cockpit.errors import InvalidArgument, InvalidType
from cockpit.quantities import Quantity


def read_parameters(params: Any) -> tuple[dict[str, nn.Parameter], nn.Module | None]:
    """Return the tracked parameters by name, and the model if that was given.

    Raises:
        InvalidType: if something is no parameter.
        InvalidArgument: if there is none, or one given by itself does not require a gradient.
    """
    if isinstance(params, nn.Module):
        return _of_module(params), params
    if isinstance(params, Tensor | str | Mapping) or not isinstance(params, Iterable):
        raise InvalidType(
            "Cockpit takes a torch.nn.Module, an iterable of parameters, or of (name, parameter) "
            "pairs, got "
            f"{_kind(params)}. Pass the model itself: Cockpit(model, ...)."
        )
    named: dict[str, Any] = {}
    for position, entry in enumerate(params):
        pair = isinstance(entry, tuple) and len(entry) == 2
        name, parameter = entry if pair else (f"parameter{position}", entry)
        if not isinstance(parameter, Tensor):
            raise InvalidType(
                "Cockpit takes a torch.nn.Module, an iterable of parameters, or of (name, "
                "parameter) pairs; entry "
                f"{position} is {_kind(parameter)}. Pass the model itself: Cockpit(model, ...)."
            )
        if not parameter.requires_grad:
            raise InvalidArgument(
                f"Parameter {name!r} of shape {list(parameter.shape)} has requires_grad=False, so "
                "no gradient can be "
                "tracked for it. Leave it out, or pass the model itself, whose frozen parameters "
                "are left out by "
                "themselves."
            )
        named[str(name)] = parameter
    if not named:
        raise InvalidArgument(
            "Cockpit got no parameters: the iterable is empty. An iterator such as "
            "model.parameters() can be read only "
            "once; pass the model itself: Cockpit(model, ...)."
        )
    return named, None


def _of_module(model: nn.Module) -> dict[str, nn.Parameter]:
    everything = dict(model.named_parameters())
    if not everything:
        raise InvalidArgument(
            f"{type(model).__name__} has no parameters, so there is nothing to track. If they are "
            "created in the first "
            "forward pass, run one before Cockpit(model, ...)."
        )
    named = {name: p for name, p in everything.items() if p.requires_grad}
    if not named:
        raise InvalidArgument(
            f"None of the {len(everything)} parameters of {type(model).__name__} requires a "
            "gradient, so there is "
            "nothing to track. Set requires_grad=True on those that are trained before "
            "Cockpit(model, ...)."
        )
    return named


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
        "NormTest(), got "
        f"{_kind(quantity)}."
    )


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
        f"{_kind(loss_function)}. A function cannot have BackPACK's hooks; leave it out where no quantity "
        "needs BackPACK."
    )


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
            "scalar on which "
            "backward() is called, for example losses.mean(), and the losses of the samples as "
            "'individual_losses'."
        )
    return loss


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
            "'micro_batch' must be a pair (k, K) with 0 <= k < K, the number of the backward pass and how "
            f"many make up the step, got {micro_batch!r}."
        )
    return number, passes


def _kind(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__}: {text if len(text) <= 60 else text[:57] + '...'}"
