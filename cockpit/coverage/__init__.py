"""Which parameters of a model have individual gradients, how they are computed, and which have none."""

from __future__ import annotations

from typing import Any

from torch import nn

from cockpit.arguments import read_batch_dim, read_optimizers
from cockpit.coverage.checking import check
from cockpit.coverage.coverage import Coverage
from cockpit.coverage.known import known, require_usable
from cockpit.coverage.rows import ParameterCoverage
from cockpit.errors import InvalidArgument, InvalidType

__all__ = ["Coverage", "ParameterCoverage", "inspect", "known", "require_usable"]


def inspect(
    model: nn.Module,
    *args: Any,
    optimizer: Any = None,
    batch_dim: int | None = None,
    **kwargs: Any,
) -> Coverage:
    r"""Say for each parameter of a model what serves it, what is special, and what is not tracked.

    ::

        print(cockpit.inspect(model))            # what the layers show
        print(cockpit.inspect(model, x[:4]))     # and what a small batch shows

    With inputs, the model is run forward once in the mode it is in, and backward from
    :math:`\ell_i = \frac1D\sum_d (y_{id} - r_{id})^2`, with the outputs :math:`y_i` of sample i and
    fixed random numbers r. The individual gradients of the first and the last sample are compared
    with those that autograd gives for :math:`\ell_i` alone, and their sum with the gradient of
    :math:`\sum_i \ell_i`. Parameters, their ``.grad``, buffers, modes and the states of random number
    generators are afterwards what they were.

    Args:
        model: The model, as it is trained.
        args: Its inputs for a small batch of two samples or more; none to do without data.
        optimizer: The optimizer, or a list of them, to see which parameters these leave out.
        batch_dim: Dimension of the inputs in which the samples are, as in `Cockpit`.
        kwargs: Its inputs by keyword.

    Raises:
        InvalidType: if `model` is no module, or `optimizer` is none.
        InvalidArgument: if the inputs do not let samples be told apart.
        Unsupported: if the model's backward pass cannot be run by ``torch.autograd.grad``.
    """
    if not isinstance(model, nn.Module):
        raise InvalidType(f"inspect takes a torch.nn.Module, got {type(model).__name__}.")
    coverage = known(model, read_optimizers(optimizer))
    if not args and not kwargs:
        return coverage
    require_usable(model)
    if not coverage.trained:
        raise InvalidArgument(
            f"{type(model).__name__} has no parameter that is trained, so there is nothing to check "
            "on data."
        )
    return check(coverage, model, args, kwargs, read_batch_dim(batch_dim))
