"""The heads of losses: their Hessians with respect to the model's outputs, and vectors with these as covariance.

Losses that end in a log-softmax on which they depend linearly (cross-entropy with class weights,
ignored targets, smoothed or soft labels, any mask or mean behind it) or in squares are recognised in
the graph, and need one backward pass. The Hessian of any other convex loss is computed by
differentiating twice, as far as it consists of small blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cockpit.curvature.portions import Source, exponential, normal, signs
from cockpit.curvature.twice import differentiable_again
from cockpit.errors import Unsupported

LINEAR = frozenset(
    re.findall(
        r"\w+",
        """
        Add Alias BackwardHookFunction _DDPSink Cat Clone CopyBackwards Diagonal Expand Flip Gather Index
        IndexSelect MaskedFill MaskedSelect Mean Narrow Neg NllLoss NllLoss2D Permute Repeat
        ReshapeAlias Roll Select Slice Split SplitWithSizes Squeeze Stack Sub Sum T ToCopy
        Transpose Unbind Unfold UnsafeView Unsqueeze View Where
        """,
    )
)
"""Operations that are linear in all their differentiable arguments."""

BILINEAR = frozenset({"Mul", "Div", "Dot", "Mv", "Mm", "Bmm"})
"""Operations that are linear where only one of their arguments is differentiable."""

Draw = Callable[[Any, "tuple[Tensor | None, ...]", Source], Tensor]


@dataclass(frozen=True)
class Head:
    """The last nonlinear operation of a loss, a node of the graph.

    Args:
        node: The node.
        kind: ``"softmax"`` or ``"squares"``.
    """

    node: Any
    kind: str

    def blocks(self, arrived: Tensor) -> Blocks:
        """Return H, the Hessian of the loss with respect to the node's input.

        Args:
            arrived: Gradient of the loss with respect to the node's output.

        Raises:
            Unsupported: if a block were too large.
        """
        blocks = _blocks_of_softmax if self.kind == "softmax" else _blocks_of_squares
        return blocks(self.node, arrived.detach())

    def sample(self, arrived: Tensor, generator: Source) -> Tensor:
        """Draw s with E[s sᵀ] = H, the Hessian of the loss with respect to the node's input.

        Args:
            arrived: Gradient of the loss with respect to the node's output.
            generator: Where the random numbers come from.
        """
        sample = _sample_softmax if self.kind == "softmax" else _sample_squares
        return sample(self.node, arrived.detach(), generator)


def _name(node: Any) -> str:
    return re.sub(r"Backward\d*$", "", node.name().split("::")[-1])


def _parents(node: Any) -> list[Any]:
    return [parent for parent, _ in node.next_functions if parent is not None]


def _is_linear(node: Any) -> bool:
    name = _name(node)
    return name in LINEAR or (name in BILINEAR and len(_parents(node)) == 1)


def _kind(node: Any) -> str | None:
    name = _name(node)
    if name == "LogSoftmax":
        return "softmax"
    if name == "MseLoss" and len(_parents(node)) == 1:
        return "squares"
    if name == "Pow" and getattr(node, "_saved_exponent", None) == 2:
        return "squares"
    return None


def closed_forms(loss: Tensor, outputs: Tensor | None) -> list[Head] | None:
    """Return the heads that the loss consists of, or None if it has another form.

    Args:
        loss: The loss, in its graph.
        outputs: The model's outputs. Between a head and these there may be only linear operations,
            or else it would be another GGN. Without them, the input of a softmax or of a
            mean-squared error is taken for what the model puts out.
    """
    end = None if outputs is None else outputs.grad_fn
    heads: list[Head] = []
    seen: set[Any] = set()
    stack = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node is end:
            return None  # past the heads; without curvature, but the gradient would come this way
        kind = _kind(node)
        if kind is not None:
            if not (_leads_to(node, end) if end is not None else _name(node) != "Pow"):
                return None
            heads.append(Head(node, kind))
        elif _is_linear(node):
            stack += _parents(node)
        else:
            return None
    if end is None and any(_leads_to_another(head, heads) for head in heads):
        return None
    return heads


def _leads_to_another(head: Head, heads: list[Head]) -> bool:
    """Whether a head is computed from another one, which then is no input of the loss alone."""
    others = {other.node for other in heads} - {head.node}
    seen: set[Any] = set()
    stack = _parents(head.node) if others else []
    while stack:
        node = stack.pop()
        if node in others:
            return True
        if node not in seen:
            seen.add(node)
            stack += _parents(node)
    return False


def _leads_to(head: Any, end: Any) -> bool:
    """Whether all that a head is computed from comes from the outputs, by linear operations."""
    seen: set[Any] = set()
    stack = _parents(head)
    while stack:
        node = stack.pop()
        if node is end or node in seen:
            continue
        seen.add(node)
        if not _is_linear(node):
            return False
        stack += _parents(node)
    return True


def _sample_softmax(node: Any, arrived: Tensor, generator: Source) -> Tensor:
    """Draw √ω (p − e_ŷ) with ŷ ~ p, whose covariance is ω (diag(p) − ppᵀ), for every position.

    Here −ω is the sum of what arrives at a position's log-probabilities: the loss is linear in
    these, and each has the second derivative −(diag(p) − ppᵀ).
    """
    p, dim, weight = _softmax(node, arrived)
    # The largest of p / e with exponential e is at c with probability p_c.
    drawn = (p / exponential(p, generator)).argmax(dim, keepdim=True)
    root = _root(weight)
    return (p * root).scatter_add_(dim, drawn, -root)


def _sample_squares(node: Any, arrived: Tensor, generator: Source) -> Tensor:
    """Draw √h ε with random signs ε, whose covariance is diag(h)."""
    inputs, weight = _squares(node, arrived)
    return (_root(weight) * signs(inputs, generator)).expand_as(inputs)


def _blocks_of_softmax(node: Any, arrived: Tensor) -> Blocks:
    """Return ω (diag(p) − ppᵀ) for every position."""
    p, dim, weight = _softmax(node, arrived)
    if p.shape[dim] > LARGEST_BLOCK:
        raise Unsupported(
            f"the loss's Hessian has a block of {p.shape[dim]} classes for each sample, and more than "
            f"{LARGEST_BLOCK} are too many; HessTrace(curvature='hutchinson') does without it"
        )
    p, weight = p.movedim(dim, -1), weight.movedim(dim, -1)
    values = weight.unsqueeze(-1) * (torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2))
    return Blocks(
        values, lambda t: t.movedim(dim, -1), lambda t: t.movedim(-1, dim), False, _eps(values)
    )


def _blocks_of_squares(node: Any, arrived: Tensor) -> Blocks:
    """Return the diagonal."""
    inputs, weight = _squares(node, arrived)
    return Blocks(weight.expand_as(inputs), _same, _same, True, _eps(weight))


def _softmax(node: Any, arrived: Tensor) -> tuple[Tensor, int, Tensor]:
    """Return the probabilities, the dimension of the classes, and the weight ω of every position."""
    p = node._saved_result.detach().exp()
    dim = node._saved_dim
    dim = dim - 2**64 if dim >= 2**63 else dim
    return p, dim, -arrived.to(p.dtype).sum(dim, keepdim=True)


def _squares(node: Any, arrived: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inputs, and the second derivatives by them."""
    inputs = node._saved_self.detach()
    weight = 2 * arrived
    if getattr(node, "_saved_reduction", 0) == 1:
        weight = weight / inputs.numel()
    return inputs, weight


def _root(weight: Tensor) -> Tensor:
    if bool((weight < 0).any()):
        raise Unsupported(NOT_CONVEX)
    return weight.sqrt()


NOT_CONVEX = (
    "the loss is not convex in the model's outputs, so its GGN is not a sum of squares; "
    "HessTrace(curvature='hutchinson') takes the Hessian itself"
)

LARGEST_BLOCK = 512
"""Largest block of the loss's Hessian that is computed: it takes as many passes through the head."""


@dataclass(frozen=True)
class Blocks:
    """A loss's Hessian with respect to the outputs, block-diagonal.

    Args:
        values: The blocks, `[..., K, K]`, or the diagonal `[...]` where the blocks are scalars.
        arrange: Brings the outputs into the shape `[..., K]`.
        restore: Brings them back.
        diagonal: Whether the blocks are scalars.
        eps: Precision of the values: that of the loss, where it is computed in a lower one.
    """

    values: Tensor
    arrange: Callable[[Tensor], Tensor]
    restore: Callable[[Tensor], Tensor]
    diagonal: bool
    eps: float

    @property
    def positions(self) -> torch.Size:
        """Shape of the outputs without the dimension that is coupled, `[...]`."""
        return self.values.shape if self.diagonal else self.values.shape[:-2]

    @property
    def couples_first(self) -> bool:
        """Whether the blocks couple the entries of the outputs' first dimension."""
        if self.diagonal:
            return False
        shape = self.restore(self.values[..., 0]).shape  # of the outputs
        first = torch.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
        entries = self.arrange(first.expand(shape))  # [..., K]
        return bool((entries != entries[..., :1]).any())

    def root(self, samples: int | None) -> Root:
        """Return S with S Sᵀ = H, a column for every output of a sample.

        Args:
            samples: Number of samples, which lie in the first dimension; None where it is not known
                which positions belong to the same sample, and each has columns of its own.
        """
        rows = 1 if samples is None else samples
        factor = self.factor()
        block = (1, 1) if self.diagonal else factor.shape[-2:]
        return Root(factor.reshape(rows, -1, *block), self)

    def factor(self) -> Tensor:
        """Return S with S Sᵀ = H for each block; `[..., K, K]`, or `[...]`."""
        precise = self.values.to(torch.promote_types(self.values.dtype, torch.float32))
        if self.diagonal:
            self._check(precise)
            return precise.clamp(min=0).sqrt()
        values, vectors = torch.linalg.eigh(precise)
        self._check(values)
        return vectors * values.clamp(min=0).sqrt().unsqueeze(-2)

    def _check(self, values: Tensor) -> None:
        tolerance = min(1e3 * self.eps, self.eps**0.5)
        if bool(values.min() < -tolerance * values.abs().max()):
            raise Unsupported(NOT_CONVEX)

    def sample(self, generator: Source) -> Tensor:
        """Draw s with E[s sᵀ] = H, in the shape of the outputs."""
        factor = self.factor()
        if self.diagonal:
            return self.restore(factor * signs(factor, generator))
        noise = signs(factor[..., 0, :], generator)
        return self.restore((factor @ noise.unsqueeze(-1)).squeeze(-1))


@dataclass(frozen=True)
class Root:
    """The columns of a square root of a loss's Hessian, made one by one.

    Args:
        factor: The factors of the blocks, by sample and position, `[N, P, K, K]`.
        blocks: The Hessian.
    """

    factor: Tensor
    blocks: Blocks

    def __len__(self) -> int:
        """Return the number of columns."""
        return self.factor.shape[1] * self.factor.shape[3]

    def __iter__(self) -> Iterator[Tensor]:
        """Yield the columns, in the shape of the outputs."""
        whole = self.blocks.positions
        if not self.blocks.diagonal:
            whole = torch.Size([*whole, self.factor.shape[-1]])
        for position in range(self.factor.shape[1]):
            for column in self.factor[:, position].unbind(-1):  # [N, K]
                vector = torch.zeros_like(self.factor[..., 0])  # [N, P, K]
                vector[:, position] = column
                yield self.blocks.restore(vector.reshape(whole))


def blocks_of(loss: Tensor, outputs: Tensor, generator: Source) -> Blocks:
    """Compute the Hessian of a loss with respect to the outputs, by differentiating twice.

    It is taken for diagonal, or for made of one block for each position, or for each sample; the
    first of these that a product with a random vector confirms.

    Args:
        loss: The loss, in its graph.
        outputs: The model's outputs, `[N, ...]`, in the graph.
        generator: Where the random vector comes from.

    Raises:
        Unsupported: if none is confirmed, or a block were too large.
    """
    with torch.enable_grad(), torch.autocast(outputs.device.type, enabled=False):
        value = loss.sum()
        (slope,) = differentiable_again(
            value,
            lambda: torch.autograd.grad(value, outputs, create_graph=True, allow_unused=True),
        )

    def product(vector: Tensor) -> Tensor:
        if slope is None or not slope.requires_grad:
            return torch.zeros_like(outputs)
        (result,) = torch.autograd.grad(
            slope, outputs, vector.to(slope), retain_graph=True, allow_unused=True
        )
        return torch.zeros_like(outputs) if result is None else result.detach()

    shape = outputs.shape
    noise = normal(outputs, generator)
    expected = product(noise)
    diagonal = product(torch.ones_like(outputs))
    eps = _precision(loss, outputs)
    if _close(diagonal * noise, expected, eps):
        return Blocks(diagonal, _same, _same, True, eps)
    for arrange, restore in _arrangements(shape):
        size = arrange(noise).shape[-1]
        if size > LARGEST_BLOCK:
            continue
        columns = []
        for k in range(size):
            unit = torch.zeros_like(arrange(noise))
            unit[..., k] = 1
            columns.append(arrange(product(restore(unit))))
        values = torch.stack(columns, dim=-1)  # [..., K, K]
        if _close((values @ arrange(noise).unsqueeze(-1)).squeeze(-1), arrange(expected), eps):
            return Blocks((values + values.mT) / 2, arrange, restore, False, eps)
    raise Unsupported(
        f"the loss's Hessian with respect to the outputs {list(shape)} is not made of blocks of at "
        f"most {LARGEST_BLOCK} for each sample: the loss couples the samples, or the outputs are too "
        "many; HessTrace(curvature='hutchinson') does without it"
    )


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _arrangements(
    shape: torch.Size,
) -> Iterator[tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]]:
    """Yield ways to see the outputs as `[..., K]`: classes last, classes second, whole samples."""
    yield _same, _same
    if len(shape) > 2:
        yield lambda t: t.movedim(1, -1), lambda t: t.movedim(-1, 1)
        yield lambda t: t.reshape(shape[0], -1), lambda t: t.reshape(shape)


def _close(actual: Tensor, expected: Tensor, eps: float) -> bool:
    size = torch.linalg.vector_norm(expected)
    return bool(torch.linalg.vector_norm(actual - expected) <= eps**0.5 * size)


def _eps(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).eps


def _precision(loss: Tensor, outputs: Tensor) -> float:
    """Return the coarsest precision that is computed in between a loss and the outputs."""
    kinds = {loss.dtype, outputs.dtype}
    seen: set[Any] = {outputs.grad_fn}
    stack = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            kinds |= {m.dtype for m in getattr(node, "_input_metadata", ())}
            stack += _parents(node)
    return max(torch.finfo(kind).eps for kind in kinds if kind.is_floating_point)
