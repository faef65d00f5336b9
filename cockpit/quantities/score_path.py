"""What lies between the last layer of a model and its loss, as the graph shows it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

VIEWS = frozenset(
    re.findall(
        r"\w+",
        """
        Alias AsStrided Clone Contiguous Expand Index IndexSelect Narrow Permute ReshapeAlias Select Slice
        Split SplitWithSizes Squeeze T ToCopy Transpose Unbind UnsafeView Unsqueeze View
        """,
    )
)
"""Operations that hand on values as they are, all or some."""

SHIFTS = frozenset({"Add", "Sub", "Neg"})
"""Operations that, with a constant, leave the range of values as wide as it is."""

SCALES = frozenset({"Mul", "Div"})

PRODUCTS = frozenset(
    re.findall(
        r"\w+",
        "Addmm Mm Bmm Baddbmm Linear MkldnnLinear Convolution MkldnnConvolution Addbmm Mv Dot",
    )
)
NORMS = frozenset(
    re.findall(
        r"\w+",
        """
        NativeLayerNorm NativeBatchNorm NativeGroupNorm CudnnBatchNorm MiopenBatchNorm FusedRmsNorm
        LayerNorm BatchNormalization
        """,
    )
)
REDUCTIONS = frozenset(re.findall(r"\w+", "LinalgVectorNorm Norm Mean Sum Std StdMean Var VarMean"))
OF_SIZE = (
    REDUCTIONS | VIEWS | set(re.findall(r"\w+", "Add Pow Sqrt Rsqrt Reciprocal Clamp ClampMin Abs"))
)
"""Operations of which the size of a vector is made."""

WIDTHS = {
    "Softmax": 1.0,
    "Sigmoid": 1.0,
    "Hardsigmoid": 1.0,
    "Tanh": 2.0,
    "Erf": 2.0,
    "Sin": 2.0,
    "Cos": 2.0,
    "Atan": math.pi,
}
"""How wide the range of an operation's results is."""

DEPTH = 12
"""Operations that are followed at most."""


def name_of(node: Any) -> str:
    """Return the name of an operation, without what says that it is the way back."""
    return re.sub(r"Backward\d*$", "", node.name().split("::")[-1])


def parents_of(node: Any) -> list[Any]:
    """Return the operations whose results go into one."""
    return [parent for parent, _ in node.next_functions if parent is not None]


def path(node: Any) -> Iterator[Any]:
    """Yield the operations that lead to a node's input one after the other, up to a layer with weights.

    Views, casts, factors and shifts by what is no result of the model, and parameters that scale or shift, are
    passed. Of a normalisation that is written out, the quotient is the operation. Nothing is known before a logarithm.
    """
    for _ in range(DEPTH):
        parents = [one for one in parents_of(node) if name_of(one) != "AccumulateGrad"]
        if is_normalised(node) or len(parents) != 1:
            return
        (node,) = parents
        name = name_of(node)
        if name not in VIEWS:
            yield node
        if name in PRODUCTS or name in NORMS or name in ("Log", "LogSoftmax"):
            return


def is_softmax(node: Any) -> bool:
    """Whether it is a softmax, also one that is written out, or the exponential of a logarithmic one."""
    parents = [name_of(one) for one in parents_of(node)]
    return (
        name_of(node) == "Softmax"
        or (name_of(node) == "Exp" and parents == ["LogSoftmax"])
        or (_divides_by_size(node) and "Exp" in parents)
    )


def is_rectifier(node: Any) -> bool:
    """Whether it cuts off what is below 0, as a ReLU does."""
    name = name_of(node)
    if name in ("Clamp", "ClampMin"):
        low, high = node._saved_min, getattr(node, "_saved_max", None)
        return low == 0 and high is None
    return name in ("Relu", "Threshold")


def is_normalised(node: Any) -> bool:
    """Whether it divides values by their own size: a norm, a deviation or a root mean square, written out."""
    return _divides_by_size(node) and not is_softmax(node)


def _divides_by_size(node: Any) -> bool:
    return name_of(node) in SCALES and any(_is_size(q, p) for p, q in _pairs(node))


def _pairs(node: Any) -> Iterator[tuple[Any, Any]]:
    parents = parents_of(node)
    if len(parents) == 2:
        yield parents[0], parents[1]
        yield parents[1], parents[0]


def _is_size(node: Any, of: Any) -> bool:
    """Whether a node is made of the size of what another one returns."""
    values = {of, *(parents_of(of) if name_of(of) == "Sub" else ())}  # x - mean(x)
    values |= {_behind_views(one) for one in values}
    reduced = False
    for _ in range(DEPTH):
        if node in values or _behind_views(node) in values:
            return reduced
        if name_of(node) not in OF_SIZE or not parents_of(node):
            return False
        reduced = reduced or name_of(node) in REDUCTIONS
        node = parents_of(node)[0]
    return False


def _behind_views(node: Any) -> Any:
    while name_of(node) in VIEWS and len(parents_of(node)) == 1:
        node = parents_of(node)[0]
    return node


def width(node: Any) -> float:
    """Return how wide the range of the values that go into a node is; infinite where nothing bounds it.

    Bounds are those of tanh, clamp and the like, and of cosines; factors that are plain numbers count. Who divides
    cosines by a temperature has chosen how sure predictions may become, and is told of no bound.
    """
    scale = 1.0
    for _ in range(DEPTH):
        parents = parents_of(node)
        if len(parents) != 1:
            return math.inf
        (node,) = parents
        name = name_of(node)
        if name in SCALES and len(parents_of(node)) == 1:
            factor = _factor(node)
            if factor is None:
                return math.inf
            scale *= abs(factor)
        elif name not in VIEWS and not (name in SHIFTS and len(parents_of(node)) == 1):
            chosen = scale != 1 and _is_cosine(node)
            return math.inf if chosen else scale * _own_width(node)
    return math.inf


def _factor(node: Any) -> float | None:
    """Return the number by which a node multiplies; None for what is no plain number."""
    other = node._saved_other
    if not isinstance(other, Tensor) or other.dim() or other.device.type != "cpu":
        return None
    value = float(other)
    if name_of(node) == "Mul":
        return value
    return 1 / value if value else None


def _own_width(node: Any) -> float:
    name = name_of(node)
    if name in ("Clamp", "Hardtanh"):
        low, high = (
            (node._saved_min, node._saved_max)
            if name == "Clamp"
            else (node._saved_min_val, node._saved_max_val)
        )
        if isinstance(low, (int, float)) and isinstance(high, (int, float)):
            return max(0.0, float(high - low))
        return math.inf
    if _is_cosine(node) or _is_softsign(node) or _has_unit_length(node):
        return 2.0
    return 1.0 if is_softmax(node) else WIDTHS.get(name, math.inf)


def _is_cosine(node: Any) -> bool:
    """Whether it multiplies vectors both of which have been divided by their length."""
    factors = parents_of(node)
    if name_of(node) == "Sum" and len(factors) == 1 and name_of(factors[0]) == "Mul":
        factors = parents_of(factors[0])
    elif name_of(node) not in PRODUCTS:
        return False
    return len(factors) == 2 and all(is_normalised(_behind_views(one)) for one in factors)


def _has_unit_length(node: Any) -> bool:
    """Whether it divides vectors by their length."""
    if not is_normalised(node):
        return False
    for divisor in parents_of(node):
        one = divisor
        while name_of(one) in (*VIEWS, "Clamp", "ClampMin", "Add") and len(parents_of(one)) == 1:
            one = parents_of(one)[0]
        if name_of(one) in ("LinalgVectorNorm", "Norm"):
            return True
    return False


def _is_softsign(node: Any) -> bool:
    """Whether it divides values by one more than their size."""
    if name_of(node) != "Div" or len(parents_of(node)) != 2:
        return False
    x, size = parents_of(node)
    return (
        name_of(size) == "Add"
        and len(parents_of(size)) == 1
        and name_of(parents_of(size)[0]) == "Abs"
        and parents_of(parents_of(size)[0]) == [x]
    )


def least_cross_entropy(width: float, classes: int) -> float:
    """Return the least cross-entropy that scores can have in a range so wide, over that of a blind guess."""
    return math.log1p((classes - 1) * math.exp(-width)) / math.log(classes)


def totals(outputs: Tensor) -> Tensor:
    r"""Return how far probabilities are from a sum of 1, :math:`|\log \sum_c p_c|` in the mean, `[]`.

    Args:
        outputs: What should be their logarithms, `[N, C, ...]`.
    """
    dim = 1 if outputs.dim() > 1 else 0
    return torch.logsumexp(outputs.detach().float(), dim).abs().mean()
