"""Parameters that a model uses itself rather than through a layer: class tokens, position tables, tied heads, scales.

What such a use contributes to the gradient is seen at the node of the graph where the parameter
meets the samples. Before the node runs, a hook on it has the gradient of its output, in which each
sample still has a slice of its own; the node then sums them. From the parameter to that node lead
operations that know nothing of samples, such as a transposition or a choice of rows. Their own
backward functions, mapped over the samples, lead back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node
from torch.func import vmap

from cockpit.gradients.batch import Batch, working_dtype
from cockpit.gradients.graph import Graph, kind_of, readable, saved, shape_of
from cockpit.gradients.handle import Dense, IndividualGradients
from cockpit.gradients.layout import CONFIRM, Arrangement, Place
from cockpit.gradients.products import Products
from cockpit.gradients.rows import Rows
from cockpit.gradients.rules import Call, find_rule

VIEWS = frozenset(
    (
        *("Alias", "Clone", "ToCopy"),
        *("View", "UnsafeView", "ReshapeAlias", "Unsqueeze", "Squeeze"),
        *("T", "Transpose", "Permute"),
        *("Select", "Slice"),
    )
)
"""Operations that only arrange the values of their one operand."""

FUNCTIONS = frozenset(
    (
        *("Expand", "Index"),
        *("Exp", "Log", "Neg", "Rsqrt", "Sqrt", "Square"),
        *("Relu", "Sigmoid", "Silu", "Softmax", "Softplus", "Tanh"),
    )
)
"""Other operations of one operand."""

SUMS = {"Expand": (0,), "Repeat": (0,), "Add": (0, 1), "Sub": (0, 1), "Mul": (0, 1), "Addmm": (0,)}
"""Operations that sum over the samples for an operand, in these places, that is the same for all of them."""

MATRICES = {"Mm": (1, "self"), "Addmm": (2, "mat1")}
"""Matrix products: the place of the matrix that is the same for all samples, and what it is multiplied with."""


@dataclass(frozen=True, eq=False)
class Use:
    """One place in the graph where a parameter meets the samples.

    Args:
        parameter: The parameter.
        chain: The nodes that lead there from it.
        node: The node where it meets them.
        slot: Which of the node's operands it is.
    """

    parameter: nn.Parameter
    chain: tuple[Node, ...]
    node: Node
    slot: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the operand."""
        last = shape_of(self.chain[-1]) if self.chain else self.parameter.shape
        return tuple(last or ())

    @property
    def is_matrix(self) -> bool:
        """Whether it is a matrix that the samples are multiplied with."""
        return MATRICES.get(kind_of(self.node), ("",))[0] == self.slot

    @property
    def kind(self) -> str:
        """The operation in which it meets them."""
        return kind_of(self.node)

    def place(self, batch: Batch, known: int | None = None) -> Place:
        """Return where the samples are taken to lie in the output of the operation.

        Args:
            batch: The batch.
            known: The dimension in which they lay whenever only one could be, if so.
        """
        shape = tuple(shape_of(self.node) or ())
        if self.is_matrix:
            arrangement = Arrangement(self.kind, batch.dim, folded=True)
            return Place(arrangement, partial(self._guess, shape, batch, "0"))
        fitting = fitting_dims(shape, self.shape, batch)
        dim = sample_dim(shape, self.shape, batch) or 0
        if not fitting:
            arrangement = Arrangement(self.kind, dim, folded=True)
            return Place(arrangement, partial(self._guess, shape, batch, "0"))
        if known in fitting and not batch.stated:
            return Place(Arrangement(self.kind, known))
        guessed = len(fitting) > 1 and batch.doubtful
        where = " or ".join(map(str, fitting))
        doubt = partial(self._guess, shape, batch, where) if guessed else None
        return Place(Arrangement(self.kind, dim, guessed=guessed), doubt)

    def _guess(self, shape: tuple[int, ...], batch: Batch, where: str) -> str:
        return (
            f"the model uses it in an operation ({self.kind}) whose output has shape {list(shape)}, in "
            f"which the {batch.size} samples may be in dimension {where}, but it is not sure; {CONFIRM}"
        )

    def gradients(self, grad: Tensor, batch: Batch) -> IndividualGradients:
        """Return the individual gradients that come from this use.

        Args:
            grad: The gradient of the node's output.
            batch: The batch.
        """
        grad = grad.detach().to(working_dtype(grad)) * batch.scale
        if self.is_matrix:
            return self._of_matrix(grad, batch)
        return self._back(self._of_sum(grad, batch), batch)

    # -- at the node ------------------------------------------------------------------------------

    def _of_sum(self, grad: Tensor, batch: Batch) -> Tensor:
        """Return the gradients of the operand, `[N, *shape]`."""
        dim = sample_dim(tuple(grad.shape), self.shape, batch)
        assert dim is not None
        grad = self._factor(grad)
        alone = grad.shape[dim] == batch.size
        grad = grad.movedim(dim, 0).unsqueeze(1 + dim) if alone else _parted(grad, batch)
        # Broadcast to [1, *shape] as the operation did.
        more = grad.dim() - 1 - len(self.shape)
        dims = [1 + more + i for i, size in enumerate(self.shape) if size == 1]
        over = [*range(1, 1 + more), *dims]
        return (grad.sum(over) if over else grad).reshape(batch.size, *self.shape)

    def _factor(self, grad: Tensor) -> Tensor:
        kind, node = kind_of(self.node), self.node
        if kind == "Mul":
            return grad * saved(node, ("other", "self")[self.slot]).to(grad.dtype)
        if kind == "Addmm":
            return grad * saved(node, "beta")
        if self.slot == 1:
            return grad * (saved(node, "alpha") if kind == "Add" else -saved(node, "alpha"))
        return grad

    def _of_matrix(self, grad: Tensor, batch: Batch) -> IndividualGradients:
        """Return Σ_t a_it b_itᵀ for a product of inputs a with the matrix, as `Products` where that can be."""
        inputs = saved(self.node, MATRICES[kind_of(self.node)][1]).to(grad.dtype)
        if kind_of(self.node) == "Addmm":
            grad = grad * saved(self.node, "alpha")
        a, b = (_parted(value, batch).mT for value in (inputs, grad))  # [N, I, T], [N, O, T]
        turns = [node for node in self.chain if kind_of(node) != "ToCopy"]
        if not turns:
            return Products(batch, self.parameter.shape, b.unsqueeze(1), a.unsqueeze(1))
        if len(turns) == 1 and _transposes(turns[0]):
            return Products(batch, self.parameter.shape, a.unsqueeze(1), b.unsqueeze(1))
        return self._back(a @ b.mT, batch)

    # -- from there back to the parameter ---------------------------------------------------------

    def _back(self, values: Tensor, batch: Batch) -> IndividualGradients:
        """Lead gradients of the operand, `[N, *shape]`, back to the parameter."""
        for place in reversed(range(len(self.chain))):
            node = self.chain[place]
            if kind_of(node) == "ToCopy":
                continue
            if place == 0 and kind_of(node) == "Embedding":
                return _rows(node, values, batch, self.parameter.shape)
            values = vmap(partial(_pull_back, node))(values)
        return Dense(batch, values)


@dataclass
class Direct:
    """What is served at the nodes of the graph.

    Args:
        uses: The uses of the parameters that models use directly.
        apart: Calls of layers that were made once for all samples, whose parameters are among these.
        layers: The calls of layers that have a rule, where all parameters are used in these alone.
    """

    uses: dict[nn.Parameter, list[Use]] = field(default_factory=dict)
    apart: set[Call] = field(default_factory=set)
    layers: list[Call] | None = None

    def all(self) -> list[Use]:
        """Return all uses."""
        return [use for uses in self.uses.values() for use in uses]

    def ends(self, graph: Graph | None) -> list[GradientEdge] | None:
        """Return where a pass may end, for what arrives there is all that the rules want of it; None if nowhere."""
        if graph is None or self.layers is None or any(len(call.ends) != 1 for call in self.layers):
            return None
        nodes = [graph.numbered(call.ends[0]) for call in self.layers]
        single = all(shape_of(node) is not None for node in nodes)
        return [GradientEdge(node, 0) for node in nodes] if single else None


def direct_uses(
    graph: Graph, parameters: Iterable[nn.Parameter], calls: Iterable[Call], batch: Batch
) -> Direct:
    """Find the parameters of which every use is known, and some are outside of layers that have a rule.

    All other parameters are left to the layers that they belong to.

    Args:
        graph: The graph of the loss.
        parameters: The parameters.
        calls: The calls of modules in the forward pass.
        batch: The batch, of more than one sample.
    """
    served: dict[Node, Call] = {}
    for call in calls:
        if find_rule(call.module) is None:
            continue
        served |= dict.fromkeys(graph.of_call(call), call)
    direct = Direct()
    in_layers = True
    for parameter in parameters:
        node = graph.accumulators.get(parameter)
        if node is None:
            continue
        search = _Search(graph, served, parameter, batch)
        uses = search.uses_of(node, ())
        in_layers &= uses == []
        if uses:
            direct.uses[parameter] = uses
            direct.apart |= search.apart
    if in_layers:
        direct.layers = list(dict.fromkeys(served.values()))
    return direct


class _Search:
    """Looks for the uses of one parameter."""

    def __init__(
        self, graph: Graph, served: Mapping[Node, Call], parameter: nn.Parameter, batch: Batch
    ) -> None:
        self._graph, self._served = graph, served
        self._parameter, self._batch = parameter, batch
        self.apart: set[Call] = set()

    def uses_of(self, node: Node, chain: tuple[Node, ...]) -> list[Use] | None:
        """Return the uses of what a node gives, without those in layers; None where one cannot be served."""
        uses: list[Use] = []
        for above, slot in self._graph.above[node]:
            found = self._use(above, slot, chain)
            if found is None:
                return None
            uses += found
        return uses

    def _use(self, node: Node, slot: int, chain: tuple[Node, ...]) -> list[Use] | None:
        kind, call = kind_of(node), self._served.get(node)
        if shape_of(node) is None:
            return [] if call is not None else None
        if kind == "Embedding":
            return self._of_table(node, chain, call)
        if kind not in VIEWS and call is not None:
            return []
        use = Use(self._parameter, chain, node, slot)
        if _meets_samples(use, self._batch):
            return [use]
        plain = kind in FUNCTIONS or (kind == "Where" and _only_masks(node, use.shape))
        if kind in VIEWS or (plain and readable(node)):
            return self.uses_of(node, (*chain, node))
        return None

    def _of_table(self, node: Node, chain: tuple[Node, ...], call: Call | None) -> list[Use] | None:
        """Return the uses of rows that are looked up once for all samples, such as those of positions."""
        found = self.uses_of(node, (*chain, node)) if not chain and readable(node) else None
        if not found:
            return [] if call is not None else None
        if call is not None:
            self.apart.add(call)
        return found


def _meets_samples(use: Use, batch: Batch) -> bool:
    kind, shape = kind_of(use.node), shape_of(use.node)
    assert shape is not None
    if use.is_matrix:
        return shape[0] % batch.size == 0 and readable(use.node)
    if use.slot not in SUMS.get(kind, ()) or sample_dim(shape, use.shape, batch) is None:
        return False
    return kind != "Mul" or readable(use.node)


def sample_dim(shape: tuple[int, ...], operand: tuple[int, ...], batch: Batch) -> int | None:
    """Return the dimension of an output in which the samples lie, given an operand that is the same for all of them.

    It is as long as there are samples, or has several entries for each, and the operand has nothing
    there. None where there is no such dimension, or more than one.
    """
    repeated = _repeated(shape, operand)
    fitting = fitting_dims(shape, operand, batch)
    if batch.dim in fitting:
        return batch.dim
    if fitting:
        return fitting[0] if len(fitting) == 1 and batch.size not in operand else None
    return 0 if 0 in repeated and shape[0] % batch.size == 0 else None


def fitting_dims(shape: tuple[int, ...], operand: tuple[int, ...], batch: Batch) -> list[int]:
    """Return the dimensions that are as long as there are samples, and in which the operand has nothing."""
    return [dim for dim in _repeated(shape, operand) if shape[dim] == batch.size]


def _repeated(shape: tuple[int, ...], operand: tuple[int, ...]) -> list[int]:
    """Return the dimensions along which an operand is repeated, none where it does not fit the output."""
    aligned = (1,) * (len(shape) - len(operand)) + operand
    pairs = list(zip(aligned, shape, strict=True))
    if any(size not in (1, whole) for size, whole in pairs):
        return []
    return [dim for dim, (size, whole) in enumerate(pairs) if size == 1 and whole > 1]


def _parted(value: Tensor, batch: Batch) -> Tensor:
    """Part samples and positions that lie in the first dimension together, `[N, T, *]`."""
    sizes = (batch.size, -1) if batch.dim == 0 else (-1, batch.size)
    return value.unflatten(0, sizes).movedim(batch.dim, 0)


def _only_masks(node: Node, operand: tuple[int, ...]) -> bool:
    """Whether a choice between two tensors has one that is differentiated, and has it in its own shape."""
    differentiated = [below for below, _ in node.next_functions if below is not None]
    return len(differentiated) == 1 and shape_of(node) == operand


def _pull_back(node: Node, grad: Tensor) -> Tensor:
    """Return what a node makes of the gradient of its output, for the one operand that is differentiated."""
    result = cast(Callable[[Tensor], Any], node)(grad)
    if isinstance(result, tuple):
        (result,) = (one for one in result if one is not None)
    return cast(Tensor, result)


def _transposes(node: Node) -> bool:
    """Whether a view of a matrix is its transpose."""
    if kind_of(node) == "Permute":
        return len(saved(node, "dims")) == 2 and saved(node, "dims")[0] % 2 == 1
    return kind_of(node) in ("T", "Transpose")


def _rows(node: Node, values: Tensor, batch: Batch, shape: torch.Size) -> IndividualGradients:
    """Serve a table whose rows were looked up once for all samples, with the gradients of what was found."""
    index = saved(node, "indices").long()
    values = values.reshape(batch.size, index.numel(), -1)  # [N, T, E]
    index = index.reshape(-1)
    if saved(node, "scale_grad_by_freq"):
        frequency = torch.bincount(index, minlength=shape[0])
        values = values / frequency[index].unsqueeze(1)
    if saved(node, "padding_idx") >= 0:
        values = values.masked_fill((index == saved(node, "padding_idx")).unsqueeze(1), 0)
    return Rows(batch, shape, index.expand(batch.size, -1), values)


def watch(use: Use, take: Callable[[Use, Tensor], None]) -> Callable[[], None]:
    """Call a function with the gradient of a use's node as soon as it arrives; return what ends that."""

    def arrived(grads: tuple[Tensor | None, ...]) -> None:
        if grads[0] is not None:
            take(use, grads[0])

    return use.node.register_prehook(arrived).remove
