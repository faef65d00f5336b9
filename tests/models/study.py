"""Trains a specimen under a cockpit with every quantity, and computes by brute force what each should be."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from models.brute import Calls, Gradients, Twin, flat, individual_gradients, shares, trained
from models.zoo import Specimen, build
from quantities.test_reference import PUBLIC, REFERENCE, settings
from torch import Tensor, nn
from torchvision.models.convnext import LayerNorm2d
from training import Truth

from cockpit import Cockpit, CockpitWarning, quantities
from cockpit.engine import Next, Step
from cockpit.engine.curvature import diagonal
from cockpit.quantities import Quantity
from cockpit.transforms import Need, SquareNorms, Transform

EVERY_PARAMETER = "‖g_i‖ of every parameter"
"""The row of what the quantities are made from, compared parameter by parameter."""

ROWS = [EVERY_PARAMETER, *sorted(PUBLIC, key=str.lower)]

BETAS = (0.9, 0.999)


@dataclass(frozen=True)
class Keep(Quantity):
    """Keeps what a need was met with, by step, for a look at every parameter."""

    need: Need = field(default_factory=SquareNorms)
    kept: dict[int, dict[str, Tensor]] = field(default_factory=dict, compare=False)

    def needs(self) -> tuple[Need, ...]:
        return (self.need,)

    def compute(self, step: Step) -> float:
        self.kept[step.global_step] = dict(step[self.need])
        return 0.0


class Seen(Truth):
    """The truth of a step, with what is asked for again and again."""

    G = cached_property(lambda self: flat_rows(self.gradients, self.names))
    g = cached_property(lambda self: self.G.mean(0))
    d = cached_property(lambda self: flat([self.after[n] - self.before[n] for n in self.names]))


def flat_rows(found: Gradients, names: list[str]) -> Tensor:
    return torch.cat([found[name].flatten(1) for name in names], dim=1)


# -- what is expected -----------------------------------------------------------------------------


def activations(calls: Calls) -> dict[str, tuple[str, Tensor]]:
    """Outputs of the modules without submodules, `[values, units]` each, as the reference takes them."""
    found: dict[str, tuple[str, Tensor]] = {}
    for number, ((_, module, _), h) in enumerate(zip(calls.modules, calls.outputs, strict=True)):
        handing_on = isinstance(module, nn.Flatten | nn.Identity)
        if handing_on or list(module.children()) or not isinstance(h, Tensor):
            continue
        last = isinstance(module, nn.Linear | nn.LayerNorm) and not isinstance(module, LayerNorm2d)
        units = 1 if h.dim() == 4 and not last else -1
        rows = h.movedim(units, -1).reshape(-1, h.shape[units])
        found[str(number)] = type(module).__name__, rows
    return found


def attention(calls: Calls) -> dict[str, list[Any]] | None:
    """Entropy and spread of every attention module's weights, and largest logit where its inputs say what it is."""
    entropies, spreads, largest = [], [], []
    for (_, module, args), output in zip(calls.modules, calls.outputs, strict=True):
        if isinstance(module, nn.MultiheadAttention):
            with torch.no_grad():
                q, k, _ = F.linear(args[0], module.in_proj_weight, module.in_proj_bias).chunk(3, -1)
                q, k = (x.unflatten(-1, (module.num_heads, -1)).transpose(1, 2) for x in (q, k))
                logits = q @ k.mT / module.head_dim**0.5
            largest.append(logits.abs().max())
            weights = logits.softmax(-1)
        elif "Attention" in type(module).__name__ and isinstance(output, tuple):
            weights = output[1]
        else:
            continue
        if weights is not None and torch.allclose(
            weights.sum(-1), torch.ones_like(weights[..., 0])
        ):
            entropies.append(-torch.xlogy(weights, weights).sum(-1).mean((0, 2)))
            room = (weights > 0).sum(-1).log().mean()  # a causal mask leaves zeros
            spreads.append(entropies[-1].mean() / room)
    if not entropies:
        return None
    logits = {"largest_logit": largest} if largest else {}
    return {"entropy": entropies, "spread": spreads, **logits}


def kronecker(twin: Twin) -> dict[str, list[float]]:
    """Statistics of the eigenvalues of B ⊗ A, for weights of layers that are called once, and of B, for biases."""
    factors, found = twin.ggn().factors, {}
    for parameter in twin.parameters:
        owners = [
            (name, module)
            for name, module in twin.model.named_modules()
            if any(parameter is own for own in module.parameters(recurse=False))
        ]
        (name, layer), *others = owners
        is_weight = name in factors and parameter is layer.weight
        if others or name not in factors or (is_weight and getattr(layer, "groups", 1) > 1):
            continue
        B, A = factors[name]
        values = torch.linalg.eigvalsh(B).clamp(min=0)
        if is_weight:
            values = torch.outer(values, torch.linalg.eigvalsh(A).clamp(min=0)).flatten().sort()[0]
        of_one = {
            "largest": values[-1],
            "trace": values.sum(),
            "effective_rank": torch.special.entr(values / values.sum()).sum().exp(),
            "condition": (values[-1] + 1e-3) / (values[0] + 1e-3),
        }
        for key, value in of_one.items():
            found.setdefault(key, []).append(float(value))
    return found


# -- the training ---------------------------------------------------------------------------------

FIRST, SECOND = 0, 1
"""The steps at which quantities are looked at that take long: before Adam has a state, and with it."""


def only(step: int) -> Callable[[int], bool]:
    return lambda global_step: global_step == step


def chosen(name: str, specimen: Specimen) -> Quantity:
    """Return a quantity with settings that leave nothing to chance where there is a choice."""
    kind = getattr(quantities, name)
    if name in ("HessMaxEV", "PreconditionedSharpness"):
        return kind(only(SECOND), tol=1e-8 if specimen.smooth else 1e-3, max_products=200)
    if name == "HessianSpectrum":
        return kind(only(SECOND), probes=1, steps=min(30, specimen.products))
    if name == "KroneckerSpectrum":
        return kind(only(SECOND), approximation="kflr")
    if name == "DirectionalCurvature":
        return kind(lambda step: step <= SECOND, blocks=False)
    if name in ("CriticalSharpness", "Parameters"):
        return kind(only(FIRST))
    return settings(name)


class Study:
    """The training of a specimen: what the cockpit says of it, and what brute force does.

    Args:
        name: Name of the specimen.
    """

    def __init__(self, name: str) -> None:
        self.name, self.specimen = name, build(name)
        self.model = self.specimen.model
        self.expected: dict[tuple[int, str], Any] = {}
        self.clock: dict[int, tuple[float, float]] = {}
        self.of_samples = {EVERY_PARAMETER, "TICDiag", "TICTrace"}  # made of individual gradients
        self.looking_ahead: set[str] = set()  # made of two steps: none at the last
        self.norms, self.diagonal = Keep(), Keep(need=diagonal("auto"))
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=self.specimen.learning_rate, betas=BETAS
        )
        self.way: Tensor | None = None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CockpitWarning)
            self.watch = Cockpit(
                self.model,
                [*(chosen(name, self.specimen) for name in PUBLIC), self.norms, self.diagonal],
                optimizer=self.optimizer,
            )
            self.train()
            self.watch.close()
        self.warned = [str(w.message) for w in caught if w.category is CockpitWarning]
        self.output = self.watch.get_output()
        for step, norms in self.norms.kept.items():
            self.output[step][EVERY_PARAMETER] = norms
        value = self.output[FIRST].get("CriticalSharpness")
        if value is not None:
            bracket = self.watch.run().series("CriticalSharpness", "bracket")[FIRST]
            self.output[FIRST]["CriticalSharpness"] = {"value": value, "bracket": bracket}

    def train(self) -> None:
        """Train; a step is settled when the next one is known, and its truth let go of."""
        self.start = copies(self.model)
        torch.manual_seed(1)
        truths = [self.step(FIRST)]
        for step in range(1, self.specimen.steps):
            truths.append(self.step(step))
            truths[0].next = truths[1]
            self.settle(step - 1, truths.pop(0))
        self.settle(step, truths.pop())

    def step(self, step: int) -> Seen:
        """Make one step of the training, beside its truth."""
        specimen, model = self.specimen, self.model
        batch, state = specimen.draw(), torch.get_rng_state()
        before, calls = copies(model), Calls()
        if step <= SECOND:
            self.settle_curvature(step, Twin(self.name, model, batch, state))
        stop = calls.listen(model)
        torch.set_rng_state(state)
        loss, z = specimen.call(model, batch)
        stop()
        losses = specimen.losses(z, batch)
        loss = losses.mean() if loss is None else loss
        truth = Seen(
            list(before),
            shares(model, calls, loss, len(losses))
            if specimen.coupled
            else individual_gradients(model, losses),
            losses.detach(),
            loss.detach(),
            before,
            self.start,
            activations(calls),
            attention(calls),
        )
        twin = Twin(self.name, model, batch, state) if step == FIRST else None
        self.optimizer.zero_grad()
        began = time.time()
        with self.watch(
            step, loss=loss, individual_losses=losses, closure=self.closure(batch, state)
        ):
            loss.backward()
        self.clock[step] = began, time.time()
        truth.grad = {name: p.grad.clone() for name, p in trained(model).items()}
        self.optimizer.step()
        truth.after, truth.lr = copies(model), specimen.learning_rate
        truth.adam = {n: self.second_moment(p, step + 1) for n, p in trained(model).items()}
        if twin is not None:
            self.expected[step, "CriticalSharpness"] = rising(twin, truth.d)
        return truth

    def second_moment(self, parameter: Tensor, steps: int) -> Tensor:
        return self.optimizer.state[parameter]["exp_avg_sq"] / (1 - BETAS[1] ** steps)

    def closure(self, batch: Any, state: Tensor) -> Callable[[], Tensor]:
        """Return a function that computes the loss anew, with the same dropout masks."""

        def again() -> Tensor:
            torch.set_rng_state(state)
            loss, z = self.specimen.call(self.model, batch)
            return self.specimen.losses(z, batch).mean() if loss is None else loss

        return again

    def missing(self, row: str) -> list[str]:
        """Return the parameters that a quantity goes without."""
        kept = [self.norms.kept] if row in self.of_samples else []
        kept += [self.diagonal.kept] if row in ("HessTrace", "TICDiag", "TICTrace") else []
        return [name for name in self.start if any(name not in k.get(FIRST, {}) for k in kept)]

    def events(self, kind: str) -> list[tuple[str, str]]:
        """Return subjects and messages of what happened so far."""
        events = self.watch.run().events()
        of_kind = events[events["kind"] == kind]
        return list(zip(of_kind["subject"], of_kind["message"], strict=True))

    # -- what is expected; None where there should be no value ------------------------------------

    def settle_curvature(self, step: int, twin: Twin) -> None:
        """Settle what is computed from second derivatives, in front of the step."""
        g, here = twin.gradient.detach(), flat([p.detach() for p in twin.parameters]).clone()
        along = {"gradient": g @ twin.times(g) / (g @ g)}
        if self.way is not None:
            d = here - self.way
            along["update"] = d @ twin.times(d) / (d @ d)
        self.way = here
        self.expected[step, "DirectionalCurvature"] = along
        if step != SECOND:
            return
        products, start = self.specimen.products, torch.randn(len(g)).double()
        smallest, largest = twin.ends(start, products)
        self.expected[step, "HessMaxEV"] = largest
        self.expected[step, "HessianSpectrum"] = {"smallest": smallest, "largest": largest}
        moments = [self.second_moment(p, step) for p in trained(self.model).values()]
        root = (flat(moments).sqrt() + 1e-8).rsqrt()
        self.expected[step, "PreconditionedSharpness"] = {
            "sharpness": twin.ends(start, products, root)[1],
            "bound": (2 + 2 * BETAS[0]) / ((1 - BETAS[0]) * self.specimen.learning_rate),
        }
        coupled = self.specimen.coupled
        self.expected[step, "KroneckerSpectrum"] = None if coupled else kronecker(twin.again())

    def settle(self, step: int, truth: Seen) -> None:
        """Settle all others, for the parameters that are tracked."""
        names = [name for name in truth.names if name in self.norms.kept.get(step, {})]
        tracked = replace(truth, names=names)
        if truth.next is not None:
            tracked.next = replace(truth.next, names=names)
        for name, reference in REFERENCE.items():
            quantity = chosen(name, self.specimen)
            if quantity.is_due(step):
                of_samples = name == "Alpha" or any(
                    isinstance(need, Transform) for need in quantity.needs()
                )
                with np.errstate(all="ignore"):
                    if name == "AttentionStats":
                        value = truth.attention
                    elif of_samples and not names:
                        value = None
                    else:
                        value = reference(tracked if of_samples else truth)
                self.expected[step, name] = value
                self.of_samples |= {name} if of_samples else set()
                looks_ahead = any(isinstance(need, Next) for need in quantity.needs())
                self.looking_ahead |= {name} if looks_ahead else set()
        self.expected[step, EVERY_PARAMETER] = {
            name: truth.gradients[name].flatten(1).square().sum(1) for name in names
        }
        self.expected[step, "Time"] = self.clock[step]
        drawn = self.diagonal.kept.get(step, {})
        self.expected |= {(step, k): v for k, v in quotients(tracked, drawn).items()}


def copies(model: nn.Module) -> Gradients:
    return {name: p.detach().clone() for name, p in trained(model).items()}


def quotients(truth: Seen, drawn: Gradients) -> dict[str, Any]:
    """What is expected of the sampled GGN's quantities, given the diagonal that was drawn."""
    if not drawn or not truth.names:
        return dict.fromkeys(("HessTrace", "TICDiag", "TICTrace"))
    pairs = [(truth.gradients[n].square().mean(0), drawn[n]) for n in truth.names if n in drawn]
    noise, curvature = (
        sum(values.sum() for values in column) for column in zip(*pairs, strict=True)
    )
    return {
        "HessTrace": [values.sum() for values in drawn.values()],
        "TICDiag": sum((m / (c + 1e-7)).sum() for m, c in pairs),
        "TICTrace": noise / (curvature + 1e-7),
    }


def rising(twin: Twin, d: Tensor) -> Callable[[float], bool]:
    """Return a function that says whether so many times the update raises the loss."""
    start = twin.loss_at(0 * d)
    return lambda times: not twin.loss_at(times * d) < start
