"""Quantities that show everything that the engine knows of a step, and the same by brute force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from quantities.test_reference import alpha as reference_alpha
from torch import Tensor, nn
from training import Truth, copies, individual_gradients, mlp

from cockpit import Cockpit, quantities
from cockpit.engine import Step
from cockpit.engine.needs import DotUpdate, MeanLoss, OfUpdate, SampleLosses
from cockpit.engine.step import PerParameter
from cockpit.quantities import Quantity
from cockpit.transforms import Dense


@dataclass(frozen=True)
class Gradients(Quantity):
    """All individual gradients, [N, D], with the mean loss."""

    dense = Dense()
    mean_loss = MeanLoss()

    def compute(self, step: Step) -> dict[str, Tensor]:
        rows = [values.flatten(1) for values in step[self.dense].values()]
        return {"g": torch.cat(rows, dim=1), "mean": step[self.mean_loss]}


@dataclass(frozen=True)
class Losses(Quantity):
    """ℓ_i of all samples, [N]."""

    losses = SampleLosses()

    def compute(self, step: Step) -> Tensor:
        return step[self.losses]


@dataclass(frozen=True)
class WholeUpdate(OfUpdate):
    def observe(self, step: Step, update: PerParameter) -> Tensor:
        return torch.cat([d.flatten() for d in update.values()])


@dataclass(frozen=True)
class Update(Quantity):
    """The update d, [D], and its products with the individual gradients, [N]."""

    whole = WholeUpdate()
    products = DotUpdate()

    def compute(self, step: Step) -> dict[str, Tensor]:
        return {"d": step[self.whole], "g·d": step[self.products].total()}


def flat(tensors: Any) -> Tensor:
    return torch.cat([t.detach().flatten() for t in tensors])


def by_samples(
    model: nn.Module, loss_of_sample: Callable[[int], Tensor], n: int
) -> tuple[Tensor, Tensor]:
    """Return ∇ℓ_i, [N, D], and ℓ_i, [N], by a loop over the samples."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows, losses = [], []
    for i in range(n):
        loss = loss_of_sample(i)
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        pairs = zip(grads, parameters, strict=True)
        rows.append(flat([torch.zeros_like(p) if g is None else g for g, p in pairs]))
        losses.append(loss.detach())
    return torch.stack(rows), torch.stack(losses)


def assert_close(found: Any, expected: Any, rtol: float = 1e-9, atol: float = 1e-13) -> None:
    np.testing.assert_allclose(
        np.asarray(found), torch.as_tensor(expected).detach().numpy(), rtol=rtol, atol=atol
    )


def not_checked(watch: Any) -> dict[str, str]:
    """Return what was not checked in a run, with the reasons."""
    events = watch.run().events()
    return dict(events[events["kind"] == "not-checked"][["subject", "message"]].values)


EVERYTHING = [Gradients(), Losses(), Update(), quantities.Alpha(), quantities.UpdateSize()]
"""Two-step quantities among them."""


def batch(n: int = 6) -> tuple[Tensor, Tensor]:
    """Return inputs and labels for the MLP of `training`."""
    return torch.randn(n, 6, dtype=torch.float64), torch.randint(3, (n,))


def perceptron(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return mlp()[0].double()


def cross_entropies(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


class Follower:
    """Keeps the truth of each step: call `before` at its point, and `after` when its update is over."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.start = model, copies(model)
        self.truths: dict[int, Truth] = {}

    def before(self, step: int, x: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            losses = cross_entropies(self.model, x, y)
        self.note(step, individual_gradients(self.model, x, y), losses)

    def note(self, step: int, gradients: dict[str, Tensor], losses: Tensor) -> None:
        before = copies(self.model)
        truth = Truth(list(self.start), gradients, losses, losses.mean(), before, self.start)
        self.truths[step] = truth
        if step - 1 in self.truths:
            self.truths[step - 1].next = truth

    def after(self, step: int) -> None:
        self.truths[step].after = copies(self.model)

    def check(self, watch: Cockpit, rtol: float = 1e-9, two_steps: bool = True) -> None:
        """Close a cockpit, and compare all that it has computed of `EVERYTHING` with the truth."""
        watch.close()
        output = watch.get_output()
        assert output.keys() >= self.truths.keys()
        for step, truth in self.truths.items():
            found = output[step]
            assert_close(found["Gradients"]["g"], truth.G, rtol, 1e-12)
            assert_close(found["Gradients"]["mean"], truth.loss, rtol)
            assert_close(found["Losses"], truth.losses, rtol)
            if truth.after:
                assert_close(found["Update"]["d"], truth.d, rtol, 1e-15)
                assert_close(found["Update"]["g·d"], truth.G @ truth.d, 1e3 * rtol, 1e-12)
            if not two_steps:
                continue
            if truth.after:
                sizes = [(truth.after[n] - truth.before[n]).norm() for n in truth.names]
                assert_close(found["UpdateSize"], torch.stack(sizes), rtol, 1e-15)
            assert ("Alpha" in found) == (truth.next is not None)
            if truth.next is not None and not truth.d.any():
                assert found["Alpha"] == -1  # no move
            elif truth.next is not None:
                assert found["Alpha"] == pytest.approx(reference_alpha(truth), rel=1e-6)
