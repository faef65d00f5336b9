"""Needs that differentiate the loss on its graph, before the backward pass, and those that BackPACK meets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from backpack import backpack
from backpack.extensions import DiagGGNExact, DiagHessian
from torch import Tensor, nn

from cockpit.curvature import Spectrum, extremes, other_leaves, sampled_backward
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
    """Hutchinson's samples vᵀHv of the Hessian's traces, per parameter `[probes]`.

    Args:
        probes: Number of random vectors.
    """

    probes: int
    moment = Moment.ENTRY
    info = ("loss",)

    def observe(self, step: Step) -> PerParameter:
        """Return the samples. Each product with random signs v serves all parameters at once."""
        hessian, generator = live(step).hessian, live(step).generator()
        samples = []
        for _ in range(self.probes):
            probe = hessian.noise(generator, signs=True)
            products = (probe * (hessian @ probe)).split(hessian.sizes)
            samples.append(torch.stack([product.sum() for product in products]))
        return PerParameter(zip(step.parameters, torch.stack(samples, dim=1), strict=True))


@dataclass(frozen=True)
class SampledDiagonal(Observation):
    """One sample of the diagonal of the mean loss's GGN, unbiased, per parameter `[*shape]`."""

    moment = Moment.ENTRY
    info = ("loss",)
    outputs = True

    def observe(self, step: Step) -> PerParameter:
        """Return (1/N) Σ_n (J_nᵀ s_n)², with s_n drawn such that E[s sᵀ] = ∂²ℓ_n/∂z_n²."""
        now = live(step)
        _refuse_coupled(now.model)
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

    def observe(self, step: Step) -> PerParameter:
        """Run a backward pass with BackPACK's extension, and take what it leaves on the parameters."""
        now = live(step)
        parameters = list(now.parameters.values())
        extension = BACKPACK[self.curvature]()
        try:
            with backpack(extension, retain_graph=True), torch.enable_grad():
                ends = [*parameters, *other_leaves(now.loss, parameters)]
                torch.autograd.grad(now.loss, ends, retain_graph=True, allow_unused=True)
            missing = [n for n, p in now.parameters.items() if not hasattr(p, extension.savefield)]
            if missing:
                raise NotChecked(NO_DIAGONAL.format(self.curvature, f"none of {missing[0]}"))
            return PerParameter(
                (name, getattr(parameter, extension.savefield) / now.reduction)
                for name, parameter in now.parameters.items()
            )
        except (NotImplementedError, AttributeError, RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise NotChecked(NO_DIAGONAL.format(self.curvature, reason)) from error
        finally:
            for parameter in parameters:
                if hasattr(parameter, extension.savefield):
                    delattr(parameter, extension.savefield)


BACKPACK = {"diag_h": DiagHessian, "diag_ggn_exact": DiagGGNExact}
"""Extensions of BackPACK by what they compute."""

NO_DIAGONAL = (
    "BackPACK has no {} ({}): it needs a model and a loss module that backpack.extend has extended "
    "before the forward pass, both made of modules that it knows; curvature='auto' needs nothing of "
    "this"
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


def _refuse_coupled(model: nn.Module | None) -> None:
    for name, module in () if model is None else model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise NotChecked(
                f"{name or 'the model'} normalises with the statistics of the batch, so the outputs "
                "of a sample depend on all samples and the GGN has no parts by sample; use "
                "model.eval(), a normalisation that does not couple samples (GroupNorm), or "
                "HessTrace(curvature='hutchinson'), whose products are exact here, too"
            )
