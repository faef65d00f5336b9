"""What the graph of a loss shows of how it was put together."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from cockpit.curvature.heads import BILINEAR, LINEAR

SIGMOIDS = ("Sigmoid", "Hardsigmoid")
TANHS = ("Tanh", "Hardtanh")
RECTIFIERS = ("Relu", "Threshold")

PRODUCTS = ("Addmm", "Mm", "Bmm", "Baddbmm", "Linear", "MkldnnLinear", "Convolution")
NORMS = (
    "NativeLayerNorm",
    "NativeBatchNorm",
    "NativeGroupNorm",
    "CudnnBatchNorm",
    "MiopenBatchNorm",
)

SCORES = frozenset((*PRODUCTS, *NORMS, *SIGMOIDS, *TANHS, *RECTIFIERS))
"""Operations whose results are certainly no logarithms of probabilities."""


SUM = 2
"""How a squared error writes down that it is a sum."""

COMPARISONS = ("MseLoss", "SmoothL1Loss", "HuberLoss", "Pow", "Abs", "BinaryCrossEntropyWithLogits")
"""Operations that compare outputs with targets, or that differences of these go into."""


@dataclass(frozen=True)
class LossFacts:
    """What the graph of a loss shows; None where there is nothing that it could be said of.

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
        after_norm: The same of a normalisation layer.
        of_probabilities: Whether the negative log-likelihood is taken of probabilities, without the log.
        of_scores: Whether it is taken of scores, without softmax and log.
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
    after_norm: bool | None = None
    of_probabilities: bool | None = None
    of_scores: bool | None = None
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
    before = [_before(node) for node in heads]
    facts: dict[str, Any] = {}
    if heads:
        facts |= {
            "after_softmax": "Softmax" in before,
            "after_sigmoid": any(name in SIGMOIDS for name in before),
            "after_tanh": any(name in TANHS for name in before),
            "after_relu": any(name in RECTIFIERS for name in before),
            "after_norm": any(name in NORMS for name in before),
        }
    if likelihoods:
        of = [_before(node) for node in likelihoods]
        facts |= {
            "of_probabilities": "Softmax" in of,
            "of_scores": any(name in SCORES for name in of),
        }
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
    classes = head._saved_result.shape[_dim(head)]
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


def _before(node: Any) -> str:
    """Return the name of the operation that a node's input comes from, behind views and casts.

    Not behind factors: 30 tanh(x / 30) is a soft bound on scores, and meant.
    """
    parents = _parents(node)
    while len(parents) == 1 and _name(parents[0]) in LINEAR:
        parents = _parents(parents[0])
    return _name(parents[0]) if len(parents) == 1 else ""


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


def _name(node: Any) -> str:
    return re.sub(r"Backward\d*$", "", node.name().split("::")[-1])


def _parents(node: Any) -> list[Any]:
    return [parent for parent, _ in node.next_functions if parent is not None]


def _is_linear(node: Any) -> bool:
    name = _name(node)
    return name in LINEAR or (name in BILINEAR and len(_parents(node)) == 1)
