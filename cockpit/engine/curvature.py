"""Needs that differentiate the loss on its graph, before the backward pass, and those that BackPACK meets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from backpack import backpack
from backpack.extensions import DiagGGNExact, DiagHessian
from torch import Tensor

from cockpit.curvature import (
    Curvature,
    Density,
    Spectrum,
    density,
    diagonal_samples,
    extremes,
    other_leaves,
    refuse_coupled,
    sampled_backward,
)
from cockpit.engine.live import Live, find_outputs
from cockpit.engine.needs import Moment, Need, Observation
from cockpit.engine.step import NotChecked, PerParameter, Step
from cockpit.gradients.randomness import RandomState, accelerators

PRODUCT = 2.0
"""Training steps that a product of the Hessian with a vector takes."""

COLD_SEARCH = 20
"""Products that a search takes when nothing is known yet."""

START_NOISE = 0.1
"""Part of a random vector in the start of an iteration that begins with the eigenvectors of an
earlier step: what these do not contain could not be found at all."""


@dataclass(frozen=True)
class FromProducts(Observation):
    """A need that is met by products of a matrix with vectors.

    Args:
        matrix: Which one it is, one of `MATRICES`.
        max_samples: Number of samples of the mini-batch that it is restricted to.
    """

    matrix: str = "hessian"
    max_samples: int | None = None
    moment = Moment.ENTRY
    info = ("loss",)
    reevaluates = True

    @property
    def outputs(self) -> bool:  # type: ignore[override]
        """Whether it needs what the model returned, `Live.outputs`."""
        return self.matrix == "ggn"

    @property
    def effort(self) -> float:
        """A few products."""
        return 5 * PRODUCT

    def observe(self, step: Step) -> Any:
        """Return the value, and note what it was computed from."""
        now = live(step)
        matrix = now.matrix(self.matrix, self.max_samples)
        value = self.find(step, matrix)
        step.bases[self] = now.basis(self.matrix, matrix.way, self.max_samples)
        return value

    def find(self, step: Step, matrix: Curvature) -> Any:
        """Return the value, from products with the matrix."""
        raise NotImplementedError


def warm_start(step: Step, need: Need, matrix: Curvature) -> Tensor:
    """Return where an iteration begins: with what the need found at an earlier step, and some noise."""
    noise = matrix.noise(live(step).generator())
    earlier = step.carried.get(need)
    if earlier is None:
        return noise
    return noise.mul_(START_NOISE / torch.linalg.vector_norm(noise)).add_(earlier.to(noise))


@dataclass(frozen=True)
class Extremes(FromProducts):
    """Both ends of the spectrum of a matrix, a `Spectrum`.

    Args:
        matrix: Which one it is, one of `MATRICES`.
        max_samples: Number of samples of the mini-batch that it is restricted to.
        tolerance: Relative error that is accepted.
        max_products: When to give up.
    """

    tolerance: float = 1e-3
    max_products: int = 100

    @property
    def effort(self) -> float:
        """The products of a search from a random vector."""
        return PRODUCT * min(COLD_SEARCH, self.max_products)

    def find(self, step: Step, matrix: Curvature) -> Spectrum:
        """Return the ends of the spectrum."""
        start = warm_start(step, self, matrix)
        found = extremes(matrix.__matmul__, start, self.tolerance, self.max_products)
        if found.largest == found.largest:  # no NaN
            # The lower end is sought only as far as it competes with the upper one in magnitude.
            competes = -found.smallest > found.largest / 2
            step.carried[self] = found.upper + found.lower if competes else found.upper
        return found


@dataclass(frozen=True)
class HessianTrace(FromProducts):
    """Estimates of the Hessian's traces, from products with random signs, per parameter `[probes]`.

    Args:
        matrix: Which one it is, one of `MATRICES`.
        max_samples: Number of samples of the mini-batch that it is restricted to.
        probes: Number of random vectors.
        sketch: Whether to spend as many products again on the dominant part, which is then exact
            (Hutch++).
    """

    probes: int = 10
    sketch: bool = False

    @property
    def effort(self) -> float:
        """The products."""
        return PRODUCT * self.probes * (1 + self.sketch)

    def find(self, step: Step, matrix: Curvature) -> PerParameter:
        """Return the estimates. Each product serves all parameters at once."""
        generator = live(step).generator()
        exact, samples = diagonal_samples(
            matrix.__matmul__,
            lambda: matrix.noise(generator, signs=True),
            self.probes,
            min(-(-self.probes // 2), matrix.size) if self.sketch else 0,
        )
        if exact is not None:
            samples = [sample + exact for sample in samples]
        sums = [torch.stack([d.sum() for d in s.split(matrix.sizes)]) for s in samples]
        return PerParameter(zip(step.parameters, torch.stack(sums, dim=1), strict=True))


@dataclass(frozen=True)
class SpectralDensity(FromProducts):
    """Density of the eigenvalues of a matrix, a `Density`.

    Args:
        matrix: Which one it is, one of `MATRICES`.
        max_samples: Number of samples of the mini-batch that it is restricted to.
        probes: Number of random vectors.
        steps: Number of products for each.
    """

    probes: int = 3
    steps: int = 30

    @property
    def effort(self) -> float:
        """The products."""
        return PRODUCT * self.probes * self.steps

    def find(self, step: Step, matrix: Curvature) -> Density:
        """Return the density."""
        draw = partial(matrix.noise, live(step).generator(), signs=True)
        return density(matrix.__matmul__, draw, self.probes, self.steps)


@dataclass(frozen=True)
class SampledDiagonal(Observation):
    """One sample of the diagonal of the mean loss's GGN, unbiased, per parameter `[*shape]`."""

    moment = Moment.ENTRY
    info = ("loss",)
    outputs = True

    @property
    def effort(self) -> float:
        """A backward pass, and sums over the samples."""
        return 1.0

    def observe(self, step: Step) -> PerParameter:
        """Return (1/N) Σ_n (J_nᵀ s_n)², with s_n drawn such that E[s sᵀ] = ∂²ℓ_n/∂z_n²."""
        now = live(step)
        if now.model is not None:
            refuse_coupled(now.model, "HessTrace(curvature='hutchinson'), whose products are exact")
        outputs = find_outputs(now.outputs)
        send = now.pass_of(
            lambda ends: sampled_backward(now.loss, outputs, ends, now.sample_source())
        )
        squares = now.reduce(send, lambda gradients: gradients.sum_of_squares())
        # The vectors were drawn for the Hessian of the loss itself, which is r/N times that of ℓ_n.
        step.bases[self] = now.basis("ggn, sampled", "graph")
        return now.of_mean(squares)


@dataclass(frozen=True)
class BackpackDiagonal(Observation):
    """An exact diagonal from BackPACK, that of the mean loss, per parameter `[*shape]`.

    Args:
        curvature: ``"diag_h"`` or ``"diag_ggn_exact"``.
    """

    curvature: str
    moment = Moment.ENTRY
    info = ("loss",)
    backpack = True

    @property
    def effort(self) -> float:
        """A backward pass for each class."""
        return 5.0

    def observe(self, step: Step) -> PerParameter:
        """Return the diagonal."""
        now, saved = live(step), by_backpack(step, BACKPACK[self.curvature])
        step.bases[self] = now.basis(self.curvature, "backpack")
        return now.of_mean(saved)


def by_backpack(step: Step, extension_class: type) -> dict[str, Any]:
    """Run a backward pass with an extension of BackPACK, and take what it leaves on the parameters.

    Raises:
        NotChecked: if that is not something for every parameter.
    """
    now, extension = live(step), extension_class()
    parameters = list(now.parameters.values())
    name = extension.savefield
    # KFAC draws from the global random state, which is put back.
    state = RandomState.seeded(now.seed, *accelerators(parameters))
    try:
        with state.restored(), backpack(extension, retain_graph=True), torch.enable_grad():
            ends = [*parameters, *other_leaves(now.loss, parameters)]
            torch.autograd.grad(now.loss, ends, retain_graph=True, allow_unused=True)
        missing = [n for n, p in now.parameters.items() if not hasattr(p, name)]
        if missing:
            raise NotChecked(NO_EXTENSION.format(name, f"none of {missing[0]}"))
        return {n: getattr(p, name) for n, p in now.parameters.items()}
    except (NotImplementedError, AttributeError, RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise NotChecked(NO_EXTENSION.format(name, reason)) from error
    finally:
        for parameter in parameters:
            if hasattr(parameter, name):
                delattr(parameter, name)


BACKPACK = {"diag_h": DiagHessian, "diag_ggn_exact": DiagGGNExact}
"""Exact diagonals by BackPACK."""

NO_EXTENSION = (
    "BackPACK has no {} ({}): it needs a model and a loss module, both made of modules that it knows, "
    "in which the loss module is called last; give both to the cockpit, Cockpit(model, ..., "
    "loss_function=loss_module), or extend them with backpack.extend before the forward pass; "
    "HessTrace, TICDiag and TICTrace need nothing of this with curvature='auto'"
)

DIAGONALS = ("auto", "diag_ggn_mc", *BACKPACK)
"""What a diagonal may be: the sampled GGN of this package, under two names, or an exact one."""


def diagonal(curvature: str) -> SampledDiagonal | BackpackDiagonal:
    """Return the need of a diagonal by its name, one of `DIAGONALS`."""
    return BackpackDiagonal(curvature) if curvature in BACKPACK else SampledDiagonal()


def live(step: Step) -> Live:
    """Return the live graph of a step, or say that there is none."""
    if step.live is None or not step.live.loss.requires_grad:
        raise NotChecked(
            "the loss has no graph to differentiate; give the loss on which backward() is called"
        )
    if step.live.postponed is not None:
        raise NotChecked(step.live.postponed, usual=True)
    return step.live
