"""The arithmetic that a tracked step cannot do without, in multiply-adds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cockpit.arguments import read_quantities
from cockpit.engine import Next
from cockpit.engine.curvature import (
    Extremes,
    FromProducts,
    HessianTrace,
    SampledDiagonal,
    SpectralDensity,
)
from cockpit.engine.directions import (
    DisplacementCurvature,
    GradientCurvature,
    PreconditionedExtremes,
)
from cockpit.engine.needs import (
    DistanceFromStart,
    GradientNorms,
    MeanLoss,
    MiniBatchLoss,
    ParameterNorms,
    SampleLosses,
    UpdateNorms,
)
from cockpit.errors import InvalidArgument
from cockpit.profiling.restoring import restored
from cockpit.profiling.sites import KNOWN, Site, of_gradients, recorded
from cockpit.profiling.training import LossesOf, read_outcome
from cockpit.quantities import Quantity
from cockpit.transforms import Need, SumOfSquares

OF_PARAMETERS = (DistanceFromStart, GradientNorms, ParameterNorms, UpdateNorms)
"""Needs that take one multiply-add for each element of a parameter."""

OF_LOSSES = (MeanLoss, MiniBatchLoss, SampleLosses)

FEWEST_PRODUCTS = 3
"""Products with which the search for an eigenvalue may end at the earliest."""


@dataclass(frozen=True)
class LowerBound:
    """Multiply-adds of a step, and those that the statistics need at least.

    Args:
        forward: Of the forward pass.
        backward: Of the backward pass.
        extra: Of what the quantities need beside these, by need; ``"dense pieces"`` are individual
            gradients that are written out once because that is cheaper for several needs together.
        not_counted: Needs whose arithmetic is not known here; they count as nothing.
    """

    forward: float
    backward: float
    extra: Mapping[str, float]
    not_counted: tuple[str, ...] = ()

    @property
    def plain(self) -> float:
        """Multiply-adds of the plain step."""
        return self.forward + self.backward

    @property
    def ratio(self) -> float:
        """The tracked step as a multiple of the plain one."""
        return 1 + sum(self.extra.values()) / self.plain

    def __float__(self) -> float:
        return self.ratio

    def __str__(self) -> str:
        parts = {"forward": self.forward, "backward": self.backward, **self.extra}
        lines = [f"{self.ratio:.2f}x a plain step, at least"]
        for name, count in sorted(parts.items(), key=lambda part: -part[1]):
            lines.append(f"{name:24}{count / 1e6:12.1f} M  {count / self.plain:7.1%}")
        if self.not_counted:
            lines.append(f"not counted: {', '.join(self.not_counted)}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        return {**asdict(self), "ratio": self.ratio}


def lower_bound(
    model: nn.Module,
    losses: LossesOf,
    quantities: str | Iterable[Quantity],
    *,
    products: Mapping[str, float] | None = None,
) -> LowerBound:
    r"""Count the multiply-adds of a training step, and those that its statistics need at least.

    Forward and backward pass are run once and counted by `torch.utils.flop_counter`: matrix products,
    convolutions, attention (in its plain form, without what saves memory by computing things again)
    and recurrent layers. What is elementwise in them is left out: pooling, activations, normalisation,
    the optimizer; and of the statistics comparisons, random numbers and the log. So this is a bound on
    arithmetic, not on time: what is left out is bound by memory and by the number of kernels. Memory
    is no object either: whatever saves arithmetic may be kept.

    A weight of D = I·O elements that sees T positions (tokens, pixels) of each of N samples takes
    W = N·T·D for a product of its forward pass or its gradient, and the statistics take

    - ‖g_i‖²: N(I + O) where T = 1, otherwise the Gram matrices of the positions, N·T²(I + O)/2;
    - g_i·d: one product with d, W + N·T·min(I, O); g_i·g the same, or by way of the products of all
      pairs, (N·T)²(I + O)/2;
    - Σ_i g_i²: W where T = 1; the products g_i·g_j: (N·T)²(I + O)/2; a drawn element of a histogram: T;
    - or all g_i are written out once, for W, and each statistic takes N·D. The cheaper of the two
      counts, weight by weight.

    Biases, norm layers and embeddings (of which only rows that occur count) take their number of
    individual elements for each statistic, and a norm of parameters, gradient or update takes one
    multiply-add for each element.

    A product with the Hessian takes :math:`4B - 2F` with F and B those of the forward and backward
    pass: every product in the forward pass has two tangents, every one in the backward pass has two,
    but inputs that need no gradient, which B lacks against 2F, have none. One with the GGN takes 2B, a
    product with the Jacobian and one with its transpose. Each is taken as often as the settings say;
    a search for eigenvalues `FEWEST_PRODUCTS` times, unless `products` says how often it was. The
    sampled diagonal of the GGN is a backward pass to the outputs of the layers, and Σ_i g_i² of these.

    Args:
        model: The model.
        losses: Runs the model on a batch, as for `cockpit.profile`; everything is left as it was.
        quantities: What is tracked, as in `Cockpit`.
        products: How many products a search for eigenvalues took in the run that this is compared
            with, by the name of the quantity, as the run file has them: ``{"HessMaxEV": 6}``.

    Raises:
        InvalidArgument: if the step has no products to count.
    """
    counted = _count(model, losses)
    if not counted.forward + counted.backward:
        raise InvalidArgument(
            f"No matrix product and no convolution was seen in a step of {type(model).__name__}, so "
            "there is no arithmetic to compare with."
        )
    tracked = read_quantities(quantities)
    needs = _needs(tracked.values())
    searches: dict[Need, float | None] = {
        need: (products or {}).get(name)
        for name, quantity in tracked.items()
        for need in _needs([quantity])
        if isinstance(need, FromProducts)
    }
    known = [need for need in needs if isinstance(need, KNOWN)]
    extra, unknown = of_gradients(counted.sites, known), []
    for need in (need for need in needs if not isinstance(need, KNOWN)):
        name, count = type(need).__name__, _of_model(need, counted, searches.get(need))
        if count is None:
            unknown.append(name)
        elif count:
            extra[name] = extra.get(name, 0) + count
    return LowerBound(counted.forward, counted.backward, extra, tuple(dict.fromkeys(unknown)))


def _needs(quantities: Iterable[Quantity]) -> list[Need]:
    needs = [need for quantity in quantities for need in quantity.needs_at(0, None)]
    return list(dict.fromkeys(n.need if isinstance(n, Next) else n for n in needs))


# -- a step ---------------------------------------------------------------------------------------


class _Counted(NamedTuple):
    forward: float
    backward: float
    sites: list[Site]
    parameters: int  # number of elements
    batch_size: int

    @property
    def differentiated(self) -> float:
        """B without what is computed a second time in the backward pass, for the sake of memory."""
        return min(self.backward, 2 * self.forward)


def _count(model: nn.Module, losses: LossesOf) -> _Counted:
    """Run forward and backward pass, and count."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with restored(model, []), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        with recorded(model) as sites, _counter() as counter:
            loss, of_samples = read_outcome(losses())
            forward = counter.get_total_flops() / 2
        with _counter() as counter:
            torch.autograd.grad(loss, trained, allow_unused=True)
            backward = counter.get_total_flops() / 2
    size = 0 if of_samples is None else len(of_samples)
    found = sites(size)
    if not size and found:
        size = found[0].samples
    return _Counted(forward, backward, found, sum(p.numel() for p in trained), size)


def _counter() -> FlopCounterMode:
    aten = torch.ops.aten
    mapping = {
        getattr(aten, name): function
        for name, function in {
            "mkldnn_rnn_layer": _recurrent,
            "mkldnn_rnn_layer_backward": _recurrent_backward,
        }.items()
        if hasattr(aten, name)
    }
    return FlopCounterMode(display=False, custom_mapping=mapping)


def _recurrent(inputs: Any, of_inputs: Any, of_state: Any, *rest: Any, **kwargs: Any) -> int:
    """Return the operations of a layer that PyTorch's counter does not know; the shapes are given."""
    rows = math.prod(inputs[:-1])
    return int(2 * rows * (math.prod(of_inputs) + math.prod(of_state)))


def _recurrent_backward(*args: Any, **kwargs: Any) -> int:
    return 2 * _recurrent(*args)


# -- what is computed once for all parameters -----------------------------------------------------


def _of_model(need: Need, counted: _Counted, products: float | None) -> float | None:
    """Return the multiply-adds of a need that is met once in a step, None where they are not known."""
    if isinstance(need, SampledDiagonal):
        weights = sum(site.product for site in counted.sites)
        to_outputs = max(0.0, counted.differentiated - weights)
        return to_outputs + sum(of_gradients(counted.sites, [SumOfSquares()]).values())
    if isinstance(need, FromProducts):
        times = _times(need) if products is None else products
        return None if times is None else times * _product(need, counted)
    if isinstance(need, OF_PARAMETERS):
        return counted.parameters
    return 0 if isinstance(need, OF_LOSSES) else None


def _times(need: FromProducts) -> float | None:
    """Return how many products it takes at least."""
    if isinstance(need, Extremes | PreconditionedExtremes):
        return FEWEST_PRODUCTS
    if isinstance(need, HessianTrace):
        return need.probes + (2 * -(-need.probes // 2) if need.sketch else 0)
    if isinstance(need, SpectralDensity):
        return need.probes * need.steps
    return 1 if isinstance(need, GradientCurvature | DisplacementCurvature) else None


def _product(need: FromProducts, counted: _Counted) -> float:
    """Return the multiply-adds of one product with a matrix of the curvature."""
    forward, backward = counted.forward, counted.differentiated
    count = 2 * backward if need.matrix == "ggn" else 4 * backward - 2 * forward
    if need.max_samples is not None and counted.batch_size:
        count *= min(1.0, need.max_samples / counted.batch_size)
    return max(0.0, count)
