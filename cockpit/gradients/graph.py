"""The graph of a loss, read from the parameters upwards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils import _pytree as pytree

from cockpit.gradients.rules.registry import Call

ACCUMULATE = "torch::autograd::AccumulateGrad"


class Graph:
    """All nodes below a loss, or several. It holds them, so nobody may hold on to it after the backward pass.

    Args:
        roots: The nodes of the losses.
    """

    def __init__(self, *roots: Node) -> None:
        self.above: dict[Node, list[tuple[Node, int]]] = {root: [] for root in roots}
        self.accumulators: dict[Tensor, Node] = {}
        self._numbered: dict[int, Node] = {}
        waiting = list(self.above)
        while waiting:
            node = waiting.pop()
            if node.name() == ACCUMULATE:
                self.accumulators[_leaf(node)] = node
                continue
            self._numbered[node._sequence_nr()] = node
            for slot, (below, _) in enumerate(node.next_functions):
                if below is None:
                    continue
                if below not in self.above:
                    self.above[below] = []
                    waiting.append(below)
                self.above[below].append((node, slot))

    @property
    def oldest(self) -> int:
        """The least number of its nodes, which are numbered as they are made."""
        return min(self._numbered, default=0)

    def numbered(self, number: int) -> Node:
        """Return the node of a number."""
        return self._numbered[number]

    def custom(self) -> Iterable[Node]:
        """Yield the nodes of autograd functions that are written in Python."""
        kind = torch.autograd.function.BackwardCFunction
        return (node for node in self._numbered.values() if isinstance(node, kind))

    def rounding(self) -> float:
        """Return the relative error of rounding in the coarsest precision that is computed in."""
        metadata = [
            m for node in self._numbered.values() for m in getattr(node, "_input_metadata", ())
        ]
        kinds = {m.dtype for m in metadata if m.dtype.is_floating_point}
        return max(
            (torch.finfo(kind).eps for kind in kinds), default=torch.finfo(torch.float32).eps
        )

    def of_call(self, call: Call) -> set[Node]:
        """Return the nodes that a call of a module made, none where the call belongs to another graph.

        Nodes are numbered in the order of the forward pass, so those of a call come after those of its inputs.
        """
        waiting = [self._numbered[number] for number in call.ends if number in self._numbered]
        last = last_number((call.args, call.kwargs)) if call.after is None else call.after
        found: set[Node] = set()
        while waiting:
            node = waiting.pop()
            if node in found or node.name() == ACCUMULATE or node._sequence_nr() <= last:
                continue
            found.add(node)
            waiting += [below for below, _ in node.next_functions if below is not None]
        return found


def last_number(values: Any) -> int:
    """Return the number of the last node among those that some values come from, -1 if there is none."""
    leaves = pytree.tree_leaves(values)
    nodes = (leaf.grad_fn for leaf in leaves if isinstance(leaf, Tensor))
    return max((node._sequence_nr() for node in nodes if node is not None), default=-1)


def _leaf(accumulate: Any) -> Tensor:
    leaf: Tensor = accumulate.variable
    return leaf


def kind_of(node: Node) -> str:
    """Return what an operation is called, such as ``"Add"``."""
    return node.name().rstrip("0123456789").removesuffix("Backward")


def shape_of(node: Node) -> tuple[int, ...] | None:
    """Return the shape of a node's output, None where it has several or torch does not say (before 2.4)."""
    metadata: Sequence[Any] = getattr(node, "_input_metadata", ())
    return tuple(metadata[0].shape) if len(metadata) == 1 else None


def saved(node: Node, name: str) -> Any:
    """Return what a node has saved, a tensor without its graph; ask `readable` before."""
    value = getattr(node, f"_saved_{name}")
    return value.detach() if isinstance(value, Tensor) else value


def readable(node: Node) -> bool:
    """Whether what a node has saved can be read twice: not where hooks hand it out, as in checkpointed parts."""
    names = [name for name in dir(node) if name.startswith("_raw_saved_")]
    values = pytree.tree_leaves([getattr(node, name) for name in names])
    return all(getattr(value, "unpack_hook", ...) is None for value in values)


def next_number() -> int:
    """Return a number that no node has yet, and which the nodes have that are made after this."""
    with torch.enable_grad():
        made = torch.zeros((), requires_grad=True).clone().grad_fn
    assert made is not None
    return made._sequence_nr() + 1
