"""Gradients to be differentiated again, and what says that a function has no second derivative."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction

from cockpit.errors import Unsupported

MATH_ATTENTION = (
    "compute the loss under PyTorch's math attention, with "
    "torch.nn.attention.sdpa_kernel(SDPBackend.MATH), or "
)

MARK = "torch::autograd::Error"
"""Node of the graph that raises when it is run: ``@once_differentiable`` puts it there."""

Gradients = Sequence["Tensor | None"]


def no_second_derivative(which: str) -> Unsupported:
    """Return the refusal of a function that cannot be differentiated twice.

    Args:
        which: Names the function, in the words of whoever noticed.
    """
    kernel = MATH_ATTENTION if "attention" in which else ""
    return Unsupported(
        f"a function of the model has no second derivative ({which}); {kernel}hand over "
        "info={'closure': ...}, a function that computes the loss of the same mini-batch anew"
    )


def differentiable_again(end: Tensor, differentiate: Callable[[], Gradients]) -> Gradients:
    """Return gradients that can be differentiated, with ``create_graph=True``.

    Functions that are written in Python may have a backward pass that leaves no graph. PyTorch then
    takes what it returns for a constant, and where that is marked with ``@once_differentiable``,
    `torch.autograd.grad` passes the mark by, since it runs only what leads to its inputs. Either
    way the second derivative would be wrong without a word.

    Args:
        end: What is differentiated, in its graph.
        differentiate: Computes the gradients of it.

    Raises:
        Unsupported: if there is such a function.
    """
    lost: list[str] = []
    with ExitStack() as hooks:
        for node in _nodes([end]):
            if isinstance(node, BackwardCFunction):
                hook = node.register_hook(partial(_see, node, lost))
                hooks.callback(hook.remove)
        gradients = differentiate()
    if lost:
        raise no_second_derivative(f"that of {lost[0]} leaves no graph")
    if any(node.name() == MARK for node in _nodes(gradients)):
        raise no_second_derivative("it is marked with @once_differentiable")
    return gradients


def _see(node: Any, lost: list[str], given: Gradients, arrived: Gradients) -> None:
    """Note a function whose result should depend on something, and does not."""
    sources = [*arrived, *node.saved_tensors]
    if any(_depends(source) for source in sources) and not any(map(_depends, given)):
        lost.append(node.name())


def _depends(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and tensor.requires_grad


def _nodes(tensors: Gradients) -> Iterator[Any]:
    """Yield the nodes of the graph that the tensors come from."""
    seen: set[Any] = set()
    stack = [tensor.grad_fn for tensor in tensors if tensor is not None]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        stack += [parent for parent, _ in node.next_functions]
