"""Needs that look at the curvature along a direction, or in the metric of the optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cockpit.curvature import Curvature, Spectrum, extremes, moved
from cockpit.engine.curvature import COLD_SEARCH, PRODUCT, FromProducts, live, warm_start
from cockpit.engine.live import Basis
from cockpit.engine.needs import Moment, Observation, OfUpdate
from cockpit.engine.step import NotChecked, PerParameter, Step


@dataclass(frozen=True)
class GradientCurvature(FromProducts):
    """gᵀHg/‖g‖² along the gradient: ``total`` `[]`, and per parameter `[]` with ``blocks``.

    Args:
        matrix: Which one it is, one of `MATRICES`.
        max_samples: Number of samples of the mini-batch that H and g are restricted to.
        blocks: Whether to look at the diagonal block of every parameter, too.
    """

    blocks: bool = True

    def find(self, step: Step, matrix: Curvature) -> dict[str, Any]:
        """Return the quotients."""
        return _quotients(step, matrix, matrix.gradient(), self.blocks)


@dataclass(frozen=True)
class DisplacementCurvature(FromProducts):
    """dᵀHd/‖d‖² along the way from where this was observed last; as `GradientCurvature`.

    Args:
        matrix: Which one it is, one of `MATRICES`.
        max_samples: Number of samples of the mini-batch that H is restricted to.
        blocks: Whether to look at the diagonal block of every parameter, too.
    """

    blocks: bool = True

    def find(self, step: Step, matrix: Curvature) -> dict[str, Any] | None:
        """Return the quotients; None the first time."""
        earlier = step.carried.get(self)
        now = [parameter.detach() for parameter in step.parameters.values()]
        step.carried[self] = [value.clone() for value in now]
        if earlier is None:
            return None
        way = [value - before.to(value) for value, before in zip(now, earlier, strict=True)]
        return _quotients(step, matrix, way, self.blocks)


def _quotients(
    step: Step, matrix: Curvature, vectors: Sequence[Tensor], blocks: bool
) -> dict[str, Any]:
    images = matrix.times(vectors)
    flat, image = matrix.flat(vectors), matrix.flat(images)
    found: dict[str, Any] = {"total": torch.dot(flat, image) / torch.dot(flat, flat)}
    if blocks:
        found["blocks"] = PerParameter(
            (name, (v * matrix.block(index, v)).sum() / v.square().sum())
            for index, (name, v) in enumerate(zip(step.parameters, vectors, strict=True))
        )
    return found


# -- the metric of the optimizer ------------------------------------------------------------------


@dataclass(frozen=True)
class Stability:
    """Preconditioned sharpness, and the largest that the optimizer is stable at.

    Args:
        spectrum: Both ends of the spectrum of P^{−1/2} H P^{−1/2}.
        bound: Where the optimizer becomes unstable on a quadratic.
    """

    spectrum: Spectrum
    bound: float


@dataclass(frozen=True)
class PreconditionedExtremes(FromProducts):
    """Both ends of the spectrum of P^{−1/2} H P^{−1/2}, with P the optimizer's preconditioner; a `Stability`.

    Args:
        matrix: Which one it is, one of `MATRICES`.
        max_samples: Number of samples of the mini-batch that H is restricted to.
        tolerance: Relative error that is accepted.
        max_products: When to give up.
    """

    tolerance: float = 1e-3
    max_products: int = 100

    @property
    def effort(self) -> float:
        """The products of a search from a random vector."""
        return PRODUCT * min(COLD_SEARCH, self.max_products)

    def find(self, step: Step, matrix: Curvature) -> Stability:
        """Return the spectrum's ends and the bound."""
        scales, bounds = [], set()
        for name, parameter in step.parameters.items():
            optimizer, group = _group_of(step, name)
            scale, bound = _metric(optimizer, group, parameter, name)
            scales.append(scale)
            bounds.add(bound)
        if len(bounds) > 1:
            raise NotChecked(
                "the groups of parameters have different learning rates or momenta, and there is no "
                "one bound for all of them"
            )
        root = matrix.flat(scales).rsqrt()  # P^{−1/2}
        start = warm_start(step, self, matrix)
        found = extremes(
            lambda v: root * (matrix @ (root * v)), start, self.tolerance, self.max_products
        )
        if not math.isnan(found.largest):
            step.carried[self] = found.upper
        return Stability(found, bounds.pop())


def _group_of(step: Step, name: str) -> tuple[Any, dict[str, Any]]:
    for optimizer in step.optimizers:
        for group in optimizer.param_groups:
            if any(step.parameters[name] is p for p in group["params"]):
                return optimizer, group
    raise NotChecked(
        f"no known optimizer holds {name}; give it to the cockpit, Cockpit(..., optimizer=opt)"
    )


def _metric(
    optimizer: Any, group: dict[str, Any], parameter: Tensor, name: str
) -> tuple[Tensor, float]:
    """Return the preconditioner of a parameter, `[*shape]`, and the bound of its group."""
    rate = float(group["lr"])
    if rate <= 0:
        raise NotChecked("the learning rate is zero, so there is no bound")
    if isinstance(optimizer, torch.optim.SGD):
        momentum = float(group["momentum"])
        if group["dampening"]:
            raise NotChecked("the bound of SGD with dampening is not known here")
        bound = (2 + 2 * momentum) / rate
        return torch.ones_like(parameter), bound / (1 + 2 * momentum * group["nesterov"])
    if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        state = optimizer.state.get(parameter, {})
        if "exp_avg_sq" not in state:
            raise NotChecked(
                f"the optimizer has no second moments of {name} yet; it has after its first step",
                usual=True,
            )
        moment = state.get("max_exp_avg_sq", state["exp_avg_sq"])
        first, second = (float(beta) for beta in group["betas"])
        steps = torch.as_tensor(state["step"], dtype=torch.float32)
        corrected = moment / -torch.expm1(steps * math.log(second)).to(moment)
        return corrected.sqrt() + group["eps"], (2 + 2 * first) / ((1 - first) * rate)
    raise NotChecked(
        f"the preconditioner of {type(optimizer).__name__} is not known here; those of SGD, Adam and "
        "AdamW are"
    )


# -- along the update, by the loss alone ----------------------------------------------------------


@dataclass(frozen=True)
class Ahead:
    """The loss as a function of where the parameters are.

    Args:
        evaluate: Computes the loss anew, `[]`.
        start: The loss before the update.
        basis: What it was computed from.
    """

    evaluate: Callable[[], Tensor]
    start: float
    basis: Basis


@dataclass(frozen=True)
class Evaluations(Observation):
    """The user's closure, made to leave no trace, an `Ahead`.

    Args:
        max_samples: Number of samples of the mini-batch that it is restricted to.
    """

    max_samples: int | None = None
    moment = Moment.ENTRY
    info = ("loss", "closure")
    reevaluates = True

    def observe(self, step: Step) -> Ahead:
        """Evaluate it once, and return it."""
        now = live(step)
        again, part = now.evaluations, now.part(self.max_samples)
        assert again is not None  # it was asked for
        evaluate: Callable[[], Tensor] = partial(again, part, differentiable=False)
        start = again.confirm() if part is None else float(evaluate().detach())
        if now.shares is not None:
            shares, reduction, of_part = now.shares, now.reduction, evaluate
            start = float(shares.number(start, reduction))

            def evaluate() -> Tensor:
                return shares.number(of_part().detach(), reduction)

        return Ahead(
            evaluate, start, now.basis("the loss along the update", "closure", self.max_samples)
        )


@dataclass(frozen=True)
class Crossing:
    """Where the loss, along the update, comes back to what it was.

    Args:
        steps: That place in units of the update.
        bracket: Places on both sides of it between which it lies.
        rate: The learning rate of the update.
        basis: What the losses were computed from.
    """

    steps: float
    bracket: tuple[float, float]
    rate: float
    basis: Basis


MOST_EVALUATIONS = 8

NEAR = 1.1
"""Ratio of the ends of a bracket that is narrow."""

FLAT = 0.02
"""Share of the deepest fall of the loss that is as good as none."""

WIDEST = 2.0
"""Ratio of the ends of a bracket within which a crossing is taken for found."""


@dataclass(frozen=True)
class LossCrossing(OfUpdate):
    """The smallest multiple s of the update with L(θ + s d) > L(θ), on the same mini-batch.

    The search begins where the crossing was at the step before, at the same learning rate.

    Args:
        max_samples: Number of samples of the mini-batch that L is restricted to.
    """

    max_samples: int | None = None

    @property
    def effort(self) -> float:
        """Forward passes, most of which are needed the first time."""
        return MOST_EVALUATIONS / 3

    @property
    def evaluations(self) -> Evaluations:
        """What it needs of the beginning of the step."""
        return Evaluations(self.max_samples)

    def observe(self, step: Step, update: PerParameter) -> Crossing:
        """Return it; the parameters are put back, bit for bit."""
        ahead = step[self.evaluations]
        rates = {float(_group_of(step, name)[1]["lr"]) for name in step.parameters}
        if len(rates) > 1:
            raise NotChecked("the groups of parameters have different learning rates")
        rate = rates.pop()
        parameters, direction = list(step.parameters.values()), list(update.values())

        def loss(s: float) -> float:
            with moved(parameters, direction, s - 1):  # they stand at the end of the update
                return float(ahead.evaluate().detach())

        start = ahead.start
        earlier = step.carried.get(self, rate)
        first = earlier / rate if rate else 1.0
        rises = [(s, value - start) for s, value in _bracket(loss, start, first)]
        above = min(((s, rise) for s, rise in rises if not rise < 0), default=None)
        if above is None:
            reason = f"{max(rises)[0]:g} times the update still does not raise the loss"
            raise NotChecked(reason, usual=True)
        below = max((s, rise) for s, rise in [(0.0, 0.0), *rises] if s < above[0])
        if below[0] == 0:
            raise NotChecked(f"even {above[0]:g} times the update raises the loss", usual=True)
        step.carried[self] = rate * math.sqrt(below[0] * above[0])
        if above[0] > WIDEST * below[0]:
            raise NotChecked(
                f"after {MOST_EVALUATIONS} evaluations of the loss it is known only that between "
                f"{below[0]:.3g} and {above[0]:.3g} times the update would raise it",
                usual=True,
            )
        return Crossing(_root(below, above), (below[0], above[0]), rate, ahead.basis)


def _bracket(
    loss: Callable[[float], float], start: float, first: float
) -> list[tuple[float, float]]:
    """Evaluate the loss where it comes closer and closer to the crossing, as often as is allowed."""
    found: list[tuple[float, float]] = []
    low, high = (0.0, 0.0), (math.inf, 0.0)
    s, ratio, bisecting = first, math.inf, False  # ratio of the ends of the bracket
    for _ in range(MOST_EVALUATIONS - 1):
        value = loss(s)
        found.append((s, value))
        if not value < start:  # rounding may leave no difference
            high = (s, value - start)
        else:
            low = (s, value - start)
        if high[0] == math.inf or low[0] == 0:
            s = _beyond(found[-2:], start)
            continue
        before, ratio = ratio, high[0] / low[0]
        last, guess = s, _root(low, high)
        s = math.sqrt(low[0] * high[0])
        depth = start - min(value for _, value in found)
        if abs(value - start) < FLAT * depth and ratio > NEAR:
            # It is as good as there, and the other side is close.
            s = last * NEAR**0.5 if last == low[0] else last / NEAR**0.5
        elif not bisecting:
            # Interpolation may approach from one side only, and leave the other end where it is.
            bisecting = before**0.5 < ratio < before < math.inf
            if not bisecting:
                margin = 0.02 * (high[0] - low[0])
                s = min(max(guess, low[0] + margin), high[0] - margin)
    return found


def _beyond(points: Sequence[tuple[float, float]], start: float) -> float:
    """Return where the crossing should be passed, given points on one side of it: at a parabola's, and a bit."""
    s, value = points[-1]
    rising = not value < start
    if len(points) < 2 or not math.isfinite(value):
        return s / 2 if rising else 2 * s
    (before, earlier), slope = points[0], (value - start) / s
    bend = (slope - (earlier - start) / before) / (s - before)
    if not bend > 0:
        return s / 8 if rising else 8 * s
    crossing = s - slope / bend
    if rising:
        return max(min(0.95 * crossing, s / 2), s / 64)
    return min(max(1.05 * crossing, 2 * s), 64 * s)


def _root(low: tuple[float, float], high: tuple[float, float]) -> float:
    """Return the zero, between two points, of the parabola through both and the origin."""
    (s, f), (t, g) = low, high
    slope_s, slope_t = f / s, g / t  # a + b s and a + b t
    b = (slope_t - slope_s) / (t - s)
    root = s - slope_s / b if b > 0 else (s + t) / 2
    return root if s <= root <= t else (s + t) / 2
