"""Individual gradients through the cockpit, against a loop over the samples' own losses."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cockpit import BatchGradTransforms, Cockpit, CockpitWarning
from cockpit.gradients import IndividualGradients

Losses = Callable[..., Tensor]
"""From a model and its input to the losses of the samples, `[N]`."""


@dataclass
class Seen:
    """What the last of some steps brought, by the names of the parameters."""

    gradients: dict[str, Tensor] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def one_by_one(model: nn.Module, losses: Losses, *args: Any) -> dict[str, Tensor]:
    """∇ℓ_i for every sample, from one graph."""
    model = copy.deepcopy(model)
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows = []
    for loss in losses(model, *args):
        grads = torch.autograd.grad(
            loss, list(named.values()), retain_graph=True, allow_unused=True
        )
        pairs = zip(grads, named.values(), strict=True)
        rows.append([torch.zeros_like(p) if grad is None else grad for grad, p in pairs])
    return {
        name: torch.stack(column)
        for name, column in zip(named, zip(*rows, strict=True), strict=True)
    }


def watched(
    model: nn.Module,
    losses: Losses,
    *args: Any,
    steps: int = 2,
    tell: bool | None = True,
    **settings: Any,
) -> Seen:
    """Track some steps without updates.

    `tell` says whether the losses of the samples are handed over, or else their number; None for neither.
    """
    seen = Seen()
    watch = Cockpit(model, **settings)
    transforms = BatchGradTransforms(
        {"dense": lambda g: g.dense(), "kind": lambda g: type(g).__name__}
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CockpitWarning)
        for step in range(steps):
            each = losses(model, *args)
            loss = each.mean()
            known = {"individual_losses": each} if tell else {"batch_size": len(each)}
            known = {} if tell is None else known
            with watch(step, transforms, loss=loss, **known):
                loss.backward()
    watch.close()
    seen.warnings = [str(w.message) for w in caught if issubclass(w.category, CockpitWarning)]
    for name, parameter in model.named_parameters():
        results = getattr(parameter, "grad_batch_transforms", None)
        if results is not None:
            seen.gradients[name], seen.kinds[name] = results["dense"], results["kind"]
    return seen


def exact(model: nn.Module, losses: Losses, *args: Any, **how: Any) -> Seen:
    """Assert that every parameter is tracked, without a word, and exactly so."""
    model = model.double()
    expected = one_by_one(model, losses, *args)
    seen = watched(model, losses, *args, **how)
    assert seen.warnings == []
    assert seen.gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = max(float(gradient.abs().max()), 1e-6)
        error = float((seen.gradients[name] - gradient).abs().max())
        assert error <= 1e-9 * scale, (name, error, scale)
    return seen


def refused(model: nn.Module, losses: Losses, *args: Any, **how: Any) -> dict[str, str]:
    """Return the reasons of the parameters that are not tracked; assert that all others are exact."""
    model = model.double()
    expected = one_by_one(model, losses, *args)
    seen = watched(model, losses, *args, **how)
    reasons = {}
    for message in seen.warnings:
        name, _, reason = message.partition(" are not tracked: ")
        reasons[name.rpartition(" ")[2]] = reason
    assert reasons.keys() == expected.keys() - seen.gradients.keys()
    for name, gradient in seen.gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-12)
    return reasons


def by_step(
    model: nn.Module, losses: Losses, batches: Iterable[Any], tell: bool = True, **settings: Any
) -> list[dict[str, Tensor]]:
    """Track a step for each batch; assert that what is delivered is exact, and return it."""
    model = model.double()
    watch = Cockpit(model, **settings)
    delivered: list[dict[str, Tensor]] = []
    for step, batch in enumerate(batches):
        expected = one_by_one(model, losses, batch)
        found: dict[str, Tensor] = {}
        keep = BatchGradTransforms({"": partial(_keep, found)})
        each = losses(model, batch)
        loss = each.mean()
        known = {"individual_losses": each} if tell else {"batch_size": len(each)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CockpitWarning)
            with watch(step, keep, loss=loss, **known):
                loss.backward()
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-12)
        delivered.append(found)
    watch.close()
    return delivered


def _keep(found: dict[str, Tensor], handle: IndividualGradients) -> None:
    found[handle.name] = handle.dense()
