"""Brings together the gradients that arrive at several outputs of one call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Any

import torch
from torch import Tensor

Grads = tuple["Tensor | None", ...]


class Together:
    """What has arrived at the outputs of one call, by backward pass.

    Args:
        count: Number of tensors in the output.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.lock = Lock()  # each device has a thread of the backward pass
        self.arrived: dict[int, dict[int, Tensor | None]] = {}


class Output:
    """One of the outputs. It lives in a hook on it, and so it goes with the graph.

    A hook that refers to its own node, or to one that leads back to it, is a circle that only the
    cycle collector undoes. So an output knows, of the other nodes, those that were made before its
    own: it may depend on them, and never the other way round. The engine runs the later nodes
    first, and what is complete is seen at the earliest one that takes part.

    Args:
        together: What the outputs of the call share.
        place: Which of the tensors in the output it is.
        siblings: Places of all outputs that come from the same node as this one.
        earlier: Nodes made before, by place.
    """

    def __init__(
        self, together: Together, place: int, siblings: Sequence[int], earlier: Mapping[int, Any]
    ) -> None:
        self._together, self._place = together, place
        self._siblings, self._earlier = siblings, earlier

    def take(self, grad: Tensor | None) -> Grads | None:
        """Take in what has arrived here; return what arrived at all outputs once nothing is missing.

        Where the outputs lie on several devices, a later node may still come after that. No output
        that is complete by then depends on it, so what arrives there is a further part.
        """
        together = self._together
        with together.lock:
            here = together.arrived.setdefault(torch._C._current_graph_task_id(), {})
            here[self._place] = grad
            if any(place not in here for place in self._siblings) or any(
                place not in here and torch._C._will_engine_execute_node(node)
                for place, node in self._earlier.items()
            ):
                return None
            grads = tuple(map(here.get, range(together.count)))
            here.update(dict.fromkeys(here))
            return grads


def outputs_of(tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, Output]]:
    """Yield those of the tensors in the output of a call that can get a gradient, each one once."""
    # A hook on a leaf (a parameter that is returned as it is) would outlive the graph, and hooks on
    # two mentions of one tensor would count it twice.
    nodes = {
        place: tensor.grad_fn
        for place, tensor in enumerate(tensors)
        if tensor.grad_fn is not None and all(tensor is not other for other in tensors[:place])
    }
    numbers = {place: node._sequence_nr() for place, node in nodes.items()}
    together = Together(len(tensors))
    for place, node in nodes.items():
        siblings = [other for other, its_node in nodes.items() if its_node is node]
        earlier = {other: nodes[other] for other in nodes if numbers[other] < numbers[place]}
        yield tensors[place], Output(together, place, siblings, earlier)
