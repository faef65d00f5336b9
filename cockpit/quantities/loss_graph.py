"""What the graph of a loss shows of how it was put together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from cockpit.curvature.heads import BILINEAR, LINEAR
from cockpit.quantities.score_path import (
    NORMS,
    PRODUCTS,
    SCALES,
    SHIFTS,
    is_normalised,
    is_rectifier,
    is_softmax,
    least_cross_entropy,
    path,
    totals,
    width,
)
from cockpit.quantities.score_path import name_of as _name
from cockpit.quantities.score_path import parents_of as _parents

SIGMOIDS = ("Sigmoid", "Hardsigmoid")
TANHS = ("Tanh", "Hardtanh")
ACTIVATIONS = (
    "Celu",
    "Elu",
    "Gelu",
    "Glu",
    "Hardswish",
    "LeakyRelu",
    "LogSigmoid",
    "Mish",
    "PreluKernel",
    "Rrelu",
    "Silu",
    "Softplus",
)
"""Activations that bound scores on one side at most."""

SCORES = frozenset((*PRODUCTS, *NORMS, *SIGMOIDS, *TANHS, "Relu"))
"""Operations whose results are certainly no logarithms of probabilities."""

TIGHT = 0.1
"""Least cross-entropy over that of a blind guess, from which on a bound keeps scores from becoming sure."""

SUM = 2
"""How a squared error writes down that it is a sum."""

COMPARISONS = ("MseLoss", "SmoothL1Loss", "HuberLoss", "Pow", "Abs", "BinaryCrossEntropyWithLogits")
"""Operations that compare outputs with targets, or that differences of these go into."""


@dataclass(frozen=True)
class LossFacts:
    r"""What the graph of a loss shows; None where there is nothing that it could be said of.

    Args:
        classes: Number C of classes, where the loss is one cross-entropy.
        over_guess: The loss over that of a blind guess, log C for every target with its weight, `[]`.
        weight: Sum of the weights that the targets have in a cross-entropy, or the elements in a squared
            error, `[]`: 1 for a mean, their number for a sum.
        after_softmax: Whether the probabilities of a softmax go into a cross-entropy, which takes
            another one.
        after_sigmoid: The same of a sigmoid, also before a binary cross-entropy that has its own.
        after_tanh: The same of tanh.
        after_relu: The same of a ReLU.
        after_activation: The same of another activation.
        after_norm: The same of a normalisation layer, or of a division by the scores' own size.
        least: Where scores are bounded, the least cross-entropy that they can have, over that of a blind guess.
        of_probabilities: Whether the negative log-likelihood is taken of probabilities, without the log.
        of_scores: Whether it is taken of scores, without softmax and log.
        off_one: How far the logarithms that it is taken of are from those of probabilities, which sum to
            1: :math:`|\log \sum_c p_c|` in the mean, `[]`; where it is no log-softmax over the classes.
        broadcast: Whether outputs, ``[N, 1]`` or ``[N]``, are compared with targets of the other shape, each
            with those of all samples, ``[N, N]``.
    """

    classes: int | None = None
    over_guess: Tensor | None = None
    weight: Tensor | None = None
    after_softmax: bool | None = None
    after_sigmoid: bool | None = None
    after_tanh: bool | None = None
    after_relu: bool | None = None
    after_activation: bool | None = None
    after_norm: bool | None = None
    least: float | None = None
    of_probabilities: bool | None = None
    of_scores: bool | None = None
    off_one: Tensor | None = None
    broadcast: bool | None = None

    def record(self) -> dict[str, Any]:
        """Return what is known, as numbers."""
        values = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {n: int(v) if isinstance(v, bool) else v for n, v in values if v is not None}


def loss_facts(loss: Tensor) -> LossFacts:
    """Return what the graph of a loss shows; it is kept."""
    ends = list(_ends(loss.grad_fn))
    heads = [node for node in ends if _name(node) in ("LogSoftmax", "BinaryCrossEntropyWithLogits")]
    likelihoods = [node for node in _linear(loss.grad_fn) if _name(node).startswith("NllLoss")]
    facts: dict[str, Any] = {}
    if heads:
        facts |= _before(heads)
    if likelihoods:
        of = [list(path(node)) for node in likelihoods]
        last = [nodes[0] for nodes in of if nodes]
        facts |= {
            "of_probabilities": any(is_softmax(node) for node in last),
            "of_scores": any(_name(node) in SCORES for node in last),
        }
        doubtful = [node for node in likelihoods if not _is_of_log_softmax(node)]
        if doubtful:
            facts["off_one"] = torch.stack([totals(node._saved_self) for node in doubtful]).amax()
    compared = [node for node in ends if _name(node) in COMPARISONS]
    if compared:
        facts["broadcast"] = any(_is_broadcast(parent) for n in compared for parent in _parents(n))
    if len(ends) == 1 and [_name(node) for node in heads] == ["LogSoftmax"]:
        facts |= _of_guess(loss, heads[0])
    if [_name(node) for node in ends] == ["MseLoss"] and not _is_listened_to(loss):
        facts["weight"] = _weight_of_squares(loss, ends[0])
    return LossFacts(**facts)


def compared(loss: Tensor) -> list[Any]:
    """Return the nodes of likelihoods and squared errors whose results a loss is a linear function of."""
    ends = [node for node in _ends(loss.grad_fn) if _name(node) == "MseLoss"]
    return ends + [node for node in _linear(loss.grad_fn) if _name(node).startswith("NllLoss")]


def _of_guess(loss: Tensor, head: Any) -> dict[str, Any]:
    """Compare the loss, which is linear in log p, with what it is where all p are 1 / C."""
    classes = _classes(head)
    if classes < 2 or _is_listened_to(loss):
        return {"classes": classes}
    weight = -_arriving(loss, head)
    over_guess = loss.detach().float().sum() / (weight * math.log(classes))
    return {"classes": classes, "over_guess": over_guess, "weight": weight}


def _weight_of_squares(loss: Tensor, node: Any) -> Tensor:
    summed = node._saved_reduction == SUM
    return _arriving(loss, node) * (node._saved_self.numel() if summed else 1)


def _arriving(loss: Tensor, node: Any) -> Tensor:
    """Return the sum of the gradients of a loss with respect to what an operation returned, `[]`."""
    (arrived,) = torch.autograd.grad(
        loss, [GradientEdge(node, 0)], torch.ones_like(loss), retain_graph=True
    )
    return arrived.sum(dtype=torch.float32)


def _is_listened_to(loss: Tensor) -> bool:
    """Whether there are hooks of others, which a pass of ours through the end of the graph would call as well."""
    nodes = _linear(loss.grad_fn)
    return bool(loss._backward_hooks) or any(_name(n) == "BackwardHookFunction" for n in nodes)


def _dim(node: Any) -> int:
    dim: int = node._saved_dim
    return dim - 2**64 if dim >= 2**63 else dim


def _linear(node: Any) -> Iterator[Any]:
    """Yield the nodes in which a loss is linear, from its end on."""
    seen, stack = set(), [node]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if _is_linear(node):
            yield node
            stack += _parents(node)


def _ends(node: Any) -> Iterator[Any]:
    """Yield the first nodes in which a loss is not linear."""
    if node is not None and not _is_linear(node):
        yield node
        return
    found = {p: None for one in _linear(node) for p in _parents(one) if not _is_linear(p)}
    yield from found


def _before(heads: Sequence[Any]) -> dict[str, Any]:
    """Return what lies between the last layer and the operations that take scores.

    Where a factor is between tanh and the loss, such as in 30 tanh(x / 30), it is a soft bound, and meant; how
    much it bounds is told by the least loss.
    """
    paths = [list(path(head)) for head in heads]
    last = [nodes[0] for nodes in paths if nodes]
    behind = [node for nodes in paths for node in [_behind_factors(nodes)] if node is not None]
    bounds = [
        least_cross_entropy(width(head), _classes(head))
        for head in heads
        if _name(head) == "LogSoftmax" and _classes(head) > 1
    ]
    least = max(bounds, default=0.0)
    normed = any(_name(node) in NORMS or is_normalised(node) for node in behind)
    facts: dict[str, Any] = {
        "after_softmax": any(is_softmax(node) for nodes in paths for node in nodes),
        "after_sigmoid": any(_name(node) in SIGMOIDS for node in last),
        "after_tanh": any(_name(node) in TANHS for node in last),
        "after_relu": any(is_rectifier(node) for node in last),
        "after_activation": any(_name(node) in ACTIVATIONS for node in last),
        # Vectors of a length that is as large as one likes are meant.
        "after_norm": normed and not 0 < least < TIGHT,
    }
    return facts | ({"least": least} if least else {})


def _behind_factors(nodes: Sequence[Any]) -> Any:
    """Return the first of some operations that does more than scale and shift; None where there is none."""
    plain = (*SCALES, *SHIFTS)
    return next((n for n in nodes if _name(n) not in plain or is_normalised(n)), None)


def _classes(head: Any) -> int:
    classes: int = head._saved_result.shape[_dim(head)]
    return classes


def _is_of_log_softmax(likelihood: Any) -> bool:
    """Whether the input of a negative log-likelihood is a log-softmax over the dimension of the classes."""
    node = likelihood
    while len(parents := _parents(node)) == 1:
        node = parents[0]
        name = _name(node)
        if name == "LogSoftmax":
            outputs, result = likelihood._saved_self, node._saved_result
            dim, classes = _dim(node) % result.dim(), min(1, outputs.dim() - 1)
            if outputs.shape == result.shape:
                return dim == classes
            return bool(
                result.shape[dim] == outputs.shape[classes]
            )  # dimensions were swapped, or joined
        if name not in LINEAR:
            return False
    return False


def _is_broadcast(node: Any) -> bool:
    """Whether outputs of shape [N, 1] or [N] have become [N, N] by meeting what is not differentiable."""
    while _is_linear(node) and len(parents := _parents(node)) == 1:
        own, before = _shape(node), _shape(parents[0])
        square = len(own) == 2 and own[0] == own[1] > 1
        if square and before in ((own[0], 1), (1, own[0]), (own[0],)):
            return True
        node = parents[0]
    return False


def _shape(node: Any) -> tuple[int, ...]:
    """Return the shape of a node's result."""
    found = getattr(node, "_input_metadata", None)  # of what comes in on the way back
    return tuple(found[0].shape) if found else ()


def _is_linear(node: Any) -> bool:
    name = _name(node)
    return name in LINEAR or (name in BILINEAR and len(_parents(node)) == 1)
