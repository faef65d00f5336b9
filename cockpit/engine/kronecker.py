"""The need of Kronecker factors of the curvature, met on the graph of the loss."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from backpack.extensions import KFAC, KFLR, KFRA
from torch import Tensor

from cockpit.curvature import (
    Kronecker,
    Linearised,
    chain,
    exact_root,
    factors_of,
    recursive_factors,
    refuse_coupled,
    sampled_backward,
    sum_of,
    unnoticed,
)
from cockpit.engine.curvature import by_backpack, live
from cockpit.engine.live import NO_OUTPUTS, Basis, Live, find_outputs
from cockpit.engine.needs import Moment, Observation
from cockpit.engine.step import NotChecked, PerParameter, Step
from cockpit.errors import Unsupported
from cockpit.gradients.randomness import RandomState, accelerators

BY_BACKPACK = {"kfac": KFAC, "kflr": KFLR, "kfra": KFRA}

MOST_COLUMNS = 512
"""Columns of the square root of the loss's Hessian, each of which takes a backward pass."""

TOO_MANY = (
    "KFLR takes a backward pass for each of the {} outputs of a sample, and more than "
    f"{MOST_COLUMNS} are too many; use approximation='kfac'"
)

TOO_MANY_APART = (
    "KFLR takes a backward pass for each of the {} outputs of the mini-batch, since their first "
    "dimension is not sure to be that of the samples (batch first, and no other dimension as long), "
    f"and more than {MOST_COLUMNS} are too many; use approximation='kfac'"
)

MOST_ELEMENTS = 2**27
"""Elements of a layer's Jacobian, for all samples, that KFRA may hold."""

OTHERWISE = "HessTrace(curvature='hutchinson'), whose products are exact"


@dataclass(frozen=True)
class KroneckerFactors(Observation):
    """Kronecker factors of the blocks of the mean loss's GGN, per parameter a `Kronecker`.

    Parameters without factors are left out. Where this package has none at all, BackPACK is asked.

    Args:
        approximation: ``"kfac"``, ``"kflr"`` or ``"kfra"``; see `cockpit.curvature.kronecker_factors`.
    """

    approximation: str
    moment = Moment.ENTRY
    info = ("loss",)
    outputs = True

    @property
    def reevaluates(self) -> bool:  # type: ignore[override]
        """Whether it runs the layers again."""
        return self.approximation == "kfra"

    @property
    def effort(self) -> float:
        """A backward pass for each class, and the eigenvalues of the factors."""
        return 5.0

    def observe(self, step: Step) -> PerParameter:
        """Return the products."""
        now = live(step)
        if now.shares is not None and self.approximation == "kfra":
            raise NotChecked(
                "the recursion of KFRA mixes the samples of a batch, so that the factors of several "
                "processes do not add up; use approximation='kfac' or 'kflr'"
            )
        try:
            factors = self._factors(now)
            self._note(step, now.basis(self.approximation, "graph"), factors)
            return factors
        except (NotChecked, Unsupported) as reason:
            try:
                saved = by_backpack(step, BY_BACKPACK[self.approximation])
            except NotChecked:
                raise reason from None
        found = PerParameter((name, Kronecker(*parts)) for name, parts in saved.items())
        self._note(step, now.basis(self.approximation, "backpack"), found)
        return _of_mean(found, now)

    def _note(self, step: Step, basis: Basis, factors: PerParameter) -> None:
        lacking = tuple(name for name in step.parameters if name not in factors)
        step.bases[self] = replace(basis, lacking=lacking)

    def _factors(self, now: Live) -> PerParameter:
        if now.model is not None:
            refuse_coupled(now.model, OTHERWISE)
        make = {"kfac": _sampled, "kflr": _exact, "kfra": _recursive}[self.approximation]
        found = make(now)
        if not found:
            raise NotChecked(
                "no parameter has Kronecker factors: those of Linear and Conv layers without groups "
                "that are called once have"
            )
        return _of_mean(found, now)


def _of_mean(factors: PerParameter, now: Live) -> PerParameter:
    """Turn the factors of the loss into those of the mean loss."""
    found = PerParameter(
        (name, Kronecker(product.factors[0] / now.reduction, *product.factors[1:]))
        for name, product in factors.items()
    )
    return found if now.shares is None else now.shares.kroneckers(found, now.reduction)


def _sampled(now: Live) -> PerParameter:
    """Return the factors of KFAC, from one sampled column."""
    outputs = find_outputs(now.outputs)
    send = now.pass_of(lambda ends: sampled_backward(now.loss, outputs, ends, now.sample_source()))
    return _known(now.reduce(send, factors_of))


def _exact(now: Live) -> PerParameter:
    """Return the factors of KFLR, from all columns of the square root of the loss's Hessian."""
    with torch.enable_grad():
        root = exact_root(now.loss, find_outputs(now.outputs), now.batch_size, now.generator())
    if len(root) > MOST_COLUMNS:
        raise NotChecked((TOO_MANY_APART if root.apart else TOO_MANY).format(len(root)))
    total = PerParameter()
    for place, column in enumerate(root.columns()):
        part = _known(now.reduce(now.pass_of(column), factors_of, report=place == 0))
        for name, product in part.items():
            B, *rest = product.factors
            total[name] = Kronecker(B + total[name].factors[0] if name in total else B, *rest)
    return total


def _recursive(now: Live) -> PerParameter:
    """Return the factors of KFRA, from the layers of a chain, which are run again."""
    outputs = _outputs(now)
    if now.model is None or len(now.inputs) != 1 or not isinstance(now.inputs[0], Tensor):
        raise NotChecked(
            "KFRA needs the model, Cockpit(model, ...), and one that takes one tensor; use "
            "approximation='kfac' or 'kflr'"
        )
    (inputs,) = now.inputs
    with torch.enable_grad(), unnoticed(inputs):
        links = _run_again(now, inputs)
        again, given = links[-1][1].output.detach(), outputs.detach()
        tolerance = torch.finfo(outputs.dtype).eps ** 0.5
        if again.shape != given.shape or not torch.allclose(
            again, given, rtol=tolerance, atol=tolerance * float(given.abs().max())
        ):
            raise NotChecked(
                "the layers of the model, run one after the other, give other outputs than the model "
                "gave, which KFRA needs; use approximation='kfac' or 'kflr'"
            )
        for prefix, link in links[1:]:
            size = link.inputs.numel() * link.output[0].numel()
            if size > MOST_ELEMENTS:
                raise NotChecked(
                    f"KFRA needs the Jacobian of layer {prefix.rstrip('.')}, of {size} elements for "
                    f"this mini-batch, more than {MOST_ELEMENTS}; use approximation='kfac'"
                )
        found = recursive_factors(links, sum_of(now.loss, outputs))
    return PerParameter((name, found[name]) for name in now.parameters if name in found)


def _run_again(now: Live, inputs: Tensor) -> list[tuple[str, Linearised]]:
    """Run the layers with the dropout masks of the forward pass."""
    assert now.model is not None
    state = now.start or RandomState.capture(*accelerators([inputs]))
    with state.restored():
        return chain(now.model, inputs)


def _outputs(now: Live) -> Tensor:
    outputs = find_outputs(now.outputs)
    if outputs is None:
        raise NotChecked(NO_OUTPUTS)
    return outputs


def _known(factors: PerParameter) -> PerParameter:
    return PerParameter((name, product) for name, product in factors.items() if product is not None)
