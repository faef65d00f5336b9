"""Two models that are trained in turns, each through the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loops.probe import EVERYTHING, Follower, Gradients, assert_close, flat
from torch import Tensor, nn

from cockpit import Cockpit

N = 6


def models() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace=True), nn.Linear(5, 4))
    discriminator = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    return generator.double(), discriminator.double()


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(N, 3, dtype=torch.float64), torch.randn(N, 4, dtype=torch.float64) + 1


def of_discriminator(g: nn.Module, d: nn.Module, z: Tensor, x: Tensor) -> Tensor:
    fake = g(z).detach()
    return (F.softplus(-d(x)) + F.softplus(d(fake)))[:, 0]


def of_generator(g: nn.Module, d: nn.Module, z: Tensor) -> Tensor:
    return F.softplus(-d(g(z)))[:, 0]


def by_samples(model: nn.Module, losses: Any) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients of the losses of single samples with respect to one of the models."""
    named = dict(model.named_parameters())
    values = [losses(i) for i in range(N)]
    rows = [
        torch.autograd.grad(loss, list(named.values()), allow_unused=True, materialize_grads=True)
        for loss in values
    ]
    gradients = {
        name: torch.stack(column)
        for name, column in zip(named, zip(*rows, strict=True), strict=True)
    }
    return gradients, torch.stack(values).detach()


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("optimizers", [1, 2])
def test_a_cockpit_for_each(known: bool, optimizers: int) -> None:
    """The discriminator gets gradients in the generator's step too, which are not those of its own."""
    g, d = models()
    if optimizers == 2:
        opt_g = torch.optim.Adam(g.parameters(), lr=0.01)
        opt_d = torch.optim.SGD(d.parameters(), lr=0.1, momentum=0.9)
    else:
        opt_g = opt_d = torch.optim.SGD([*g.parameters(), *d.parameters()], lr=0.1)
    watch_g = Cockpit(g, EVERYTHING, optimizer=opt_g if known else None)
    watch_d = Cockpit(d, EVERYTHING, optimizer=opt_d if known else None)
    truth_g, truth_d = Follower(g), Follower(d)
    for step in range(4):
        z, x = data()

        def one_d(i: int, z: Tensor = z, x: Tensor = x) -> Tensor:
            return of_discriminator(g, d, z[i : i + 1], x[i : i + 1])[0]

        def one_g(i: int, z: Tensor = z) -> Tensor:
            return of_generator(g, d, z[i : i + 1])[0]

        truth_d.note(step, *by_samples(d, one_d))
        opt_d.zero_grad()
        losses = of_discriminator(g, d, z, x)
        loss = losses.mean()
        with watch_d(step, loss=loss, individual_losses=losses):
            loss.backward()
        opt_d.step()
        truth_d.after(step)

        truth_g.note(step, *by_samples(g, one_g))
        opt_g.zero_grad()
        losses = of_generator(g, d, z)
        loss = losses.mean()
        with watch_g(step, loss=loss, individual_losses=losses):
            loss.backward()
        if optimizers == 1:  # the discriminator stays in the generator's step
            d.zero_grad()
        opt_g.step()
        truth_g.after(step)
    truth_d.check(watch_d)
    truth_g.check(watch_g)


def test_one_cockpit_for_both() -> None:
    """Steps of the two are counted through; in the discriminator's the generator's gradients are zero."""
    g, d = models()
    both = nn.ModuleDict({"g": g, "d": d})
    opt_g, opt_d = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (g, d))
    watch, truth = Cockpit(both, EVERYTHING[:3], optimizer=[opt_g, opt_d]), Follower(both)
    for step in range(6):
        z, x = data()

        def one(i: int, step: int = step, z: Tensor = z, x: Tensor = x) -> Tensor:
            if step % 2:
                return of_generator(g, d, z[i : i + 1])[0]
            return of_discriminator(g, d, z[i : i + 1], x[i : i + 1])[0]

        truth.note(step, *by_samples(both, one))
        both.zero_grad()
        losses = of_generator(g, d, z) if step % 2 else of_discriminator(g, d, z, x)
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        (opt_g if step % 2 else opt_d).step()
        truth.after(step)
    # Two steps in turn have two losses, of which no parabola can be made.
    truth.check(watch, two_steps=False)


def test_both_losses_in_one_step() -> None:
    """Simultaneous updates: each model is trained with its own loss, in one block for both."""
    g, d = models()
    both = nn.ModuleDict({"g": g, "d": d})
    watch = Cockpit(both, [Gradients()])
    z, x = data()
    losses_d, losses_g = of_discriminator(g, d, z, x), of_generator(g, d, z)
    a, b = losses_d.mean(), losses_g.mean()
    with watch(0, loss=(a, b), individual_losses=(losses_d, losses_g)):
        a.backward()
        b.backward()

    def one(i: int) -> Tensor:
        fake = of_generator(g, d, z[i : i + 1])[0]
        return of_discriminator(g, d, z[i : i + 1], x[i : i + 1])[0] + fake

    truth = by_samples(both, one)[0]
    expected = torch.cat([truth[n].flatten(1) for n, _ in both.named_parameters()], dim=1)
    assert_close(watch.get_output()[0]["Gradients"]["g"], expected)
    assert_close(flat(p.grad for p in both.parameters()), expected.mean(0))
