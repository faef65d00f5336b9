"""One backward pass whose individual gradients, squared, are a sample of the GGN's diagonal.

The GGN of a loss is Σ_n J_nᵀ H_n J_n, with J_n the Jacobian of the outputs of sample n and H_n the
loss's Hessian with respect to them. If E[s sᵀ] = H, with independent s_n, then J_nᵀ s_n is what an
individual gradient is of the loss, with s in place of the loss's gradient at the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from cockpit.curvature.heads import Blocks, Head, Root, blocks_of, closed_forms
from cockpit.curvature.portions import Source
from cockpit.errors import Unsupported

NO_FORM = (
    "the loss is no cross-entropy or squared error that is seen in the graph, and the model's outputs "
    "are not known; give them as info={'outputs': ...}"
)

COUPLED = (
    "the loss couples the entries of the first dimension of the outputs, the samples, so its Hessian "
    "has no parts by sample; HessTrace(curvature='hutchinson') does without it"
)

Ends = Sequence[Tensor] | Sequence[GradientEdge]
"""Leaves of a graph, or outputs of its nodes."""

Send = Callable[[Ends], "list[Tensor | None]"]
"""Sends something backwards to the given ends of the graph."""


def sampled_backward(
    loss: Tensor,
    outputs: Tensor | None,
    ends: Ends,
    generator: Source,
) -> list[Tensor | None]:
    """Send s, drawn with E[s sᵀ] = H, backwards from the outputs; hooks on the layers see J_nᵀ s_n in the making.

    Args:
        loss: The loss, in its graph, which is kept.
        outputs: The model's outputs, in the graph, where they are known.
        ends: Where the pass ends.
        generator: Where the random numbers come from.

    Returns:
        What arrives at the ends; None where nothing does.

    Raises:
        Unsupported: if the loss has no GGN that can be had.
    """
    heads = closed_forms(loss, outputs)
    if heads is not None:
        with ExitStack() as hooks:
            for head in heads:
                hook = head.node.register_hook(partial(_replace, head, generator))
                hooks.callback(hook.remove)
            return _pull_back(loss, None, ends)
    if outputs is None:
        raise Unsupported(NO_FORM)
    sample = blocks_of(loss, outputs, generator).sample(generator)
    return _pull_back(outputs, sample, ends)


@dataclass(frozen=True)
class ExactRoot:
    """The columns of an exact square root of a loss's Hessian, to be sent backwards one by one.

    Args:
        loss: The loss, in its graph, which is kept.
        outputs: The model's outputs, in the graph, where the columns start from these.
        parts: The columns, with the head that each starts from where the outputs are not known.
        apart: Whether there are columns for every position, since it is not known which of these
            belong to the same sample.
    """

    loss: Tensor
    outputs: Tensor | None
    parts: Sequence[tuple[Head | None, Root]]
    apart: bool

    def __len__(self) -> int:
        """Return the number of columns, each of which takes a backward pass."""
        return sum(len(root) for _, root in self.parts)

    def columns(self) -> Iterator[Send]:
        """Yield a function for each column that sends it backwards to some leaves of the graph."""
        for head, root in self.parts:
            for column in root:
                yield partial(self._send, head, column)

    def _send(self, head: Head | None, column: Tensor, ends: Ends) -> list[Tensor | None]:
        if head is None:
            assert self.outputs is not None
            return _pull_back(self.outputs, column.to(self.outputs), ends)
        with ExitStack() as hooks:
            for other, _ in self.parts:
                assert other is not None
                sent = column if other is head else None
                hook = other.node.register_hook(partial(_send_instead, sent))
                hooks.callback(hook.remove)
            return _pull_back(self.loss, None, ends)


def exact_root(
    loss: Tensor, outputs: Tensor | None, batch_size: int, generator: Source
) -> ExactRoot:
    """Return the columns s_k of an exact square root, Σ_k s_nk s_nkᵀ = H_n for every sample n.

    A column has a part for every sample, but only for one position of it: the sum over positions
    that a layer's parameters see would mix them otherwise.

    Args:
        loss: The loss, in its graph, which is kept.
        outputs: The model's outputs, in the graph; without them, the input of a softmax or of a
            mean-squared error is taken for what the model puts out.
        batch_size: Number of samples N; 0 where it is not known.
        generator: Where the random vector comes from that confirms the form of the Hessian.

    Raises:
        Unsupported: if the loss has no Hessian that can be had, or is not convex.
    """
    if outputs is not None:
        of_heads: list[tuple[Head | None, Blocks]] = [(None, blocks_of(loss, outputs, generator))]
    else:
        heads = closed_forms(loss, None)
        if heads is None:
            raise Unsupported(NO_FORM)
        edges = [GradientEdge(head.node, 0) for head in heads]
        arrived = torch.autograd.grad(loss, edges, retain_graph=True) if edges else ()
        of_heads = [(h, h.blocks(a)) for h, a in zip(heads, arrived, strict=True)]
    if any(blocks.couples_first for _, blocks in of_heads):
        raise Unsupported(COUPLED)
    apart = not all(_by_sample(blocks.positions, batch_size) for _, blocks in of_heads)
    rows = None if apart else batch_size
    return ExactRoot(loss, outputs, [(h, blocks.root(rows)) for h, blocks in of_heads], apart)


def _by_sample(positions: torch.Size, batch_size: int) -> bool:
    """Whether the first dimension is sure to be that of the samples."""
    if not positions or positions[0] != batch_size:
        return False
    return batch_size == 1 or batch_size not in positions[1:]


def other_leaves(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the leaves of a graph that are no parameters: inputs that require a gradient.

    A module's full backward hooks fire when the gradient reaches its inputs. Where only the
    parameters are asked for, it never reaches those of the first layers.
    """
    known = {id(parameter) for parameter in parameters}
    found: dict[int, Tensor] = {}
    seen: set[Any] = set()
    stack = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in known:
            found[id(leaf)] = leaf
        stack += [parent for parent, _ in node.next_functions]
    return list(found.values())


def _replace(
    head: Head, generator: Source, grad_inputs: Any, grad_outputs: Any
) -> tuple[Tensor | None, ...]:
    (arrived, *_) = grad_outputs
    return _send_instead(head.sample(arrived, generator), grad_inputs, grad_outputs)


def _send_instead(
    sent: Tensor | None, grad_inputs: Any, grad_outputs: Any
) -> tuple[Tensor | None, ...]:
    """Let a node of the graph send something else backwards than it would, or nothing."""
    slope, *others = grad_inputs
    sent = torch.zeros_like(slope) if sent is None else sent.to(slope)
    return (sent, *(None for _ in others))


def _pull_back(outputs: Tensor, sample: Tensor | None, ends: Ends) -> list[Tensor | None]:
    return list(torch.autograd.grad(outputs, ends, sample, retain_graph=True, allow_unused=True))
