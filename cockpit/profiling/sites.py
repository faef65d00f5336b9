"""Parameters at work, and the multiply-adds of statistics of their individual gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from cockpit.engine.needs import DotPreviousUpdate, DotUpdate
from cockpit.gradients.batch import Batch
from cockpit.gradients.rules.registry import served_parameters
from cockpit.transforms import (
    AbsMax,
    Dense,
    Dot,
    DotMean,
    Gram,
    Histogram1d,
    Histogram2d,
    Mean,
    MinMax,
    Need,
    SquareNormOfMean,
    SquareNorms,
    SumOfSquares,
)

ALONG = (Dot, DotUpdate, DotPreviousUpdate)
"""Products with directions that are given."""

COMPARISONS = (AbsMax, MinMax)

KNOWN = (
    *ALONG,
    *COMPARISONS,
    Dense,
    DotMean,
    Gram,
    Histogram1d,
    Histogram2d,
    Mean,
    SquareNormOfMean,
    SquareNorms,
    SumOfSquares,
)
"""Needs of individual gradients whose arithmetic is known."""

DENSE = "dense pieces"


class Site(NamedTuple):
    """A parameter at a call of its module.

    Args:
        kind: ``"weight"`` for what is multiplied with, ``"table"`` for what rows are taken from, and
            ``"vector"`` for all others.
        samples: Number of samples N.
        positions: How often each sample meets it, T.
        inputs: Number of inputs I of a weight, length of a table's rows, or number of elements.
        outputs: Number of outputs O of a weight; 1 for others.
        parameter: The parameter.
    """

    kind: str
    samples: int
    positions: float
    inputs: int
    outputs: int
    parameter: Tensor

    @property
    def elements(self) -> float:
        """Elements of all individual gradients that may differ from zero, N·D."""
        if self.kind == "table":
            return self.samples * self.positions * self.inputs
        return self.samples * self.inputs * self.outputs

    @property
    def product(self) -> float:
        """Multiply-adds of one product with a weight, W."""
        if self.kind != "weight":
            return 0
        return self.samples * self.positions * self.inputs * self.outputs


@contextmanager
def recorded(model: nn.Module) -> Iterator[Callable[[int], list[Site]]]:
    """Take note of the calls of a model's modules; yields what returns the sites, given the batch size."""
    calls: list[tuple[nn.Module, float, int]] = []

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        given, made = _tensors((args, kwargs)), _tensors(output)
        if given and made:
            calls.append((module, _rows(module, given[0], made[0]), len(given[0])))

    hooks = [
        module.register_forward_hook(note, with_kwargs=True)
        for module in model.modules()
        if served_parameters(module)
    ]
    try:
        yield partial(_sites, calls)
    finally:
        for hook in hooks:
            hook.remove()


def _tensors(nested: Any) -> list[Tensor]:
    return [value for value in pytree.tree_leaves(nested) if isinstance(value, Tensor)]


def _rows(module: nn.Module, given: Tensor, made: Tensor) -> float:
    """Return with how many vectors a call multiplies its weight, over all samples."""
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return given.numel()
    if isinstance(module, nn.modules.conv._ConvNd):
        at = given if module.transposed else made
        return at.numel() / at.shape[-1 - len(module.kernel_size)]
    return given.numel() / given.shape[-1] if given.dim() and given.numel() else 0


def _sites(calls: Sequence[tuple[nn.Module, float, int]], batch_size: int) -> list[Site]:
    sites = []
    for module, rows, length in calls:
        samples = batch_size or length
        for parameter in served_parameters(module).values():
            if parameter.requires_grad:
                kind, inputs, outputs = "vector", parameter.numel(), 1
                if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                    kind, inputs = "table", parameter.shape[-1]
                elif parameter.dim() > 1:
                    kind, outputs = "weight", parameter.shape[0]
                    inputs = parameter.numel() // max(1, outputs)
                sites.append(Site(kind, samples, rows / samples, inputs, outputs, parameter))
    return sites


def of_gradients(sites: Iterable[Site], needs: Sequence[Need]) -> dict[str, float]:
    """Return the fewest known multiply-adds of statistics of individual gradients, by need.

    Args:
        sites: Where the parameters are at work.
        needs: The statistics; those that are not `KNOWN` count as nothing.
    """
    sites = list(sites)
    parameters = {site.parameter: site.parameter.numel() for site in sites}
    total: dict[str, float] = {}
    for site in sites:
        batch = Batch(site.samples, sizes=tuple(parameters.values()))
        direct = [_direct(need, site, needs, batch) for need in needs]
        dense = [min(_of_dense(n, site), d) for n, d in zip(needs, direct, strict=True)]
        cheaper = direct
        if site.kind == "weight" and site.product + sum(dense) < sum(direct):
            cheaper = dense
            total[DENSE] = total.get(DENSE, 0) + site.product
        for need, count in zip(needs, cheaper, strict=True):
            name = type(need).__name__
            total[name] = total.get(name, 0) + count
    return {name: count for name, count in total.items() if count}


def _of_dense(need: Need, site: Site) -> float:
    """Return the multiply-adds of a statistic of individual gradients that are written out."""
    if isinstance(need, (*ALONG, DotMean, SquareNorms, SumOfSquares)):
        return site.elements
    if isinstance(need, Gram):
        return site.samples * site.elements / 2
    return 0


def _direct(need: Need, site: Site, others: Sequence[Need], batch: Batch) -> float:
    """Return the multiply-adds of a statistic that is made from inputs and gradients of outputs."""
    if site.kind != "weight":
        return _of_dense(need, site)
    n, t, width = site.samples, site.positions, site.inputs + site.outputs
    pairs = (n * t) ** 2 * width / 2  # of positions of all samples
    along = site.product + n * t * min(site.inputs, site.outputs)
    single = t <= 1
    if isinstance(need, SquareNorms):
        return n * width if single else n * t**2 * width / 2
    if isinstance(need, ALONG):
        return along
    if isinstance(need, DotMean):
        return n**2 if any(isinstance(other, Gram) for other in others) else min(along, pairs)
    if isinstance(need, Gram):
        return pairs
    if isinstance(need, SumOfSquares):
        return site.product if single else site.product + site.elements
    if isinstance(need, Histogram1d | Histogram2d) and need.samples is not None:
        return min(t * min(batch.quota(need.samples), site.elements), site.product)
    if isinstance(need, AbsMax) and single:
        return 0
    return site.product if isinstance(need, (*COMPARISONS, Dense, Histogram1d, Histogram2d)) else 0
