"""Needs that differentiate the loss on its graph, before the backward pass, and those that BackPACK meets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from backpack import backpack
from backpack.extensions import KFAC, KFLR, KFRA, DiagGGNExact, DiagHessian
from torch import Tensor

from cockpit.curvature import (
    Density,
    Kronecker,
    Spectrum,
    density,
    diagonal_samples,
    extremes,
    other_leaves,
    refuse_coupled,
    sampled_backward,
)
from cockpit.engine.live import Live
from cockpit.engine.needs import Moment, Observation
from cockpit.engine.step import NotChecked, PerParameter, Step

START_NOISE = 0.1
"""Part of a random vector in the start of an iteration that begins with the eigenvectors of an
earlier step: what these do not contain could not be found at all."""


@dataclass(frozen=True)
class HessianExtremes(Observation):
    """Both ends of the spectrum of the mini-batch Hessian.

    Args:
        tolerance: Relative error that is accepted.
        max_products: When to give up.
    """

    tolerance: float = 1e-3
    max_products: int = 100
    moment = Moment.ENTRY
    info = ("loss",)

    def observe(self, step: Step) -> Spectrum:
        """Return the ends of the spectrum."""
        hessian = live(step).hessian
        start = hessian.noise(live(step).generator())
        earlier = step.carried.get(self)
        if earlier is not None:
            start = earlier.to(start) + START_NOISE * start / torch.linalg.vector_norm(start)
        found = extremes(hessian.__matmul__, start, self.tolerance, self.max_products)
        if found.largest == found.largest:  # no NaN
            # The lower end is sought only as far as it competes with the upper one in magnitude.
            competes = -found.smallest > found.largest / 2
            step.carried[self] = found.upper + found.lower if competes else found.upper
        return found


@dataclass(frozen=True)
class HessianTrace(Observation):
    """Estimates of the Hessian's traces, from products with random signs, per parameter `[probes]`.

    Args:
        probes: Number of random vectors.
        sketch: Whether to spend as many products again on the dominant part, which is then exact
            (Hutch++).
    """

    probes: int
    sketch: bool = False
    moment = Moment.ENTRY
    info = ("loss",)

    def observe(self, step: Step) -> PerParameter:
        """Return the estimates. Each product serves all parameters at once."""
        hessian, generator = live(step).hessian, live(step).generator()
        exact, samples = diagonal_samples(
            hessian.__matmul__,
            lambda: hessian.noise(generator, signs=True),
            self.probes,
            min(-(-self.probes // 2), hessian.size) if self.sketch else 0,
        )
        if exact is not None:
            samples = [sample + exact for sample in samples]
        sums = [torch.stack([d.sum() for d in s.split(hessian.sizes)]) for s in samples]
        return PerParameter(zip(step.parameters, torch.stack(sums, dim=1), strict=True))


@dataclass(frozen=True)
class SpectralDensity(Observation):
    """Density of the eigenvalues of the mini-batch Hessian.

    Args:
        probes: Number of random vectors.
        steps: Number of products for each.
    """

    probes: int
    steps: int
    moment = Moment.ENTRY
    info = ("loss",)

    def observe(self, step: Step) -> Density:
        """Return the density."""
        hessian, generator = live(step).hessian, live(step).generator()
        draw = partial(hessian.noise, generator, signs=True)
        return density(hessian.__matmul__, draw, self.probes, self.steps)


@dataclass(frozen=True)
class SampledDiagonal(Observation):
    """One sample of the diagonal of the mean loss's GGN, unbiased, per parameter `[*shape]`."""

    moment = Moment.ENTRY
    info = ("loss",)
    outputs = True

    def observe(self, step: Step) -> PerParameter:
        """Return (1/N) Σ_n (J_nᵀ s_n)², with s_n drawn such that E[s sᵀ] = ∂²ℓ_n/∂z_n²."""
        now = live(step)
        if now.model is not None:
            refuse_coupled(now.model, "HessTrace(curvature='hutchinson'), whose products are exact")
        outputs = find_outputs(now.outputs)
        parameters = list(now.parameters.values())

        def run() -> list[Tensor | None]:
            # Without the model it is BackPACK's hooks that listen.
            more = other_leaves(now.loss, parameters) if now.model is None else []
            with torch.enable_grad():
                ends = [*parameters, *more]
                arrived = sampled_backward(now.loss, outputs, ends, now.generator())
            return arrived[: len(parameters)]

        squares = now.reduce(run, lambda gradients: gradients.sum_of_squares())
        # The vectors were drawn for the Hessian of the loss itself, which is r/N times that of ℓ_n.
        return PerParameter((name, square / now.reduction) for name, square in squares.items())


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

    def observe(self, step: Step) -> PerParameter:
        """Return the diagonal."""
        reduction = live(step).reduction
        return PerParameter(
            (name, saved / reduction)
            for name, saved in _saved(step, BACKPACK[self.curvature]).items()
        )


@dataclass(frozen=True)
class KroneckerFactors(Observation):
    """Kronecker factors of the blocks of the mean loss's GGN, from BackPACK, per parameter a `Kronecker`.

    Args:
        approximation: ``"kfac"``, ``"kflr"`` or ``"kfra"``.
    """

    approximation: str
    moment = Moment.ENTRY
    info = ("loss",)
    backpack = True

    def observe(self, step: Step) -> PerParameter:
        """Return the products."""
        reduction = live(step).reduction
        return PerParameter(
            (name, Kronecker(saved[0] / reduction, *saved[1:]))
            for name, saved in _saved(step, FACTORED[self.approximation]).items()
        )


def _saved(step: Step, extension_class: type) -> dict[str, Any]:
    """Run a backward pass with an extension of BackPACK, and take what it leaves on the parameters."""
    now, extension = live(step), extension_class()
    parameters = list(now.parameters.values())
    name = extension.savefield
    try:
        # KFAC draws from the global random state, which is put back.
        with torch.random.fork_rng(devices=_cuda_devices(parameters)):
            torch.manual_seed(now.seed)
            with backpack(extension, retain_graph=True), torch.enable_grad():
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


def _cuda_devices(parameters: Sequence[Tensor]) -> list[int]:
    return sorted({p.device.index or 0 for p in parameters if p.device.type == "cuda"})


BACKPACK = {"diag_h": DiagHessian, "diag_ggn_exact": DiagGGNExact}
"""Exact diagonals by BackPACK."""

FACTORED = {"kfac": KFAC, "kflr": KFLR, "kfra": KFRA}
"""Kronecker-factored approximations by BackPACK."""

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
    return step.live


def find_outputs(outputs: Any) -> Tensor | None:
    """Return the tensor that the loss is computed from: the output itself, or its logits."""
    if isinstance(outputs, Mapping):
        outputs = outputs.get("logits")
    elif hasattr(outputs, "logits"):
        outputs = outputs.logits
    elif isinstance(outputs, tuple | list) and len(outputs) == 1:
        outputs = outputs[0]
    return outputs if isinstance(outputs, Tensor) and outputs.requires_grad else None
