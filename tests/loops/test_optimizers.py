"""The update is the one that was made, whatever makes it and whenever."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from loops.probe import EVERYTHING, Follower, batch, cross_entropies, not_checked, perceptron
from torch import Tensor, nn

from cockpit import Cockpit, CockpitWarning, quantities

Steps = Callable[[], None]


class Way:
    """A way of updating: what is known to the cockpit, and what is done after the backward pass."""

    def __init__(
        self,
        known: Any,
        step: Steps,
        zero_grad: Steps | None = None,
        schedulers: Iterable[Any] = (),
    ) -> None:
        self.known, self.schedulers = known, schedulers
        self._step, self._zero_grad = step, zero_grad

    def zero_grad(self, model: nn.Module) -> None:
        (self._zero_grad or model.zero_grad)()

    def step(self) -> None:
        self._step()
        for scheduler in self.schedulers:
            scheduler.step()


def one(make: Callable[[Iterable[Tensor]], torch.optim.Optimizer]) -> Callable[[nn.Module], Way]:
    def way(model: nn.Module) -> Way:
        opt = make(model.parameters())
        return Way(opt, opt.step, opt.zero_grad)

    return way


def clipped(by_value: bool) -> Callable[[nn.Module], Way]:
    def way(model: nn.Module) -> Way:
        opt = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=0.1)

        def step() -> None:
            if by_value:
                nn.utils.clip_grad_value_(model.parameters(), 0.01)
            else:
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            opt.step()

        return Way(opt, step)

    return way


def groups_with_schedule(model: nn.Module) -> Way:
    opt = torch.optim.Adam(
        [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2:].parameters()}], lr=0.01
    )
    schedules = [
        torch.optim.lr_scheduler.ExponentialLR(opt, 0.5),
        torch.optim.lr_scheduler.StepLR(opt, 1, 0.5),
    ]
    return Way(opt, opt.step, schedulers=schedules)


def three_optimizers(model: nn.Module) -> Way:
    opts = [
        torch.optim.SGD(model[0].parameters(), lr=0.1),
        torch.optim.Adam(model[2].parameters(), lr=0.01),
        torch.optim.RMSprop(model[4].parameters(), lr=0.01),
    ]
    return Way(opts, lambda: [opt.step() for opt in opts] and None)


def every_other_step(model: nn.Module) -> Way:
    """Two optimizers that take turns: the update of a step is that of one of them."""
    opts = [
        torch.optim.SGD(model[:3].parameters(), lr=0.1),
        torch.optim.SGD(model[4].parameters(), lr=0.1),
    ]
    turns = iter([0, 1, 0, 1, 0])
    return Way(opts, lambda: opts[next(turns)].step())


def never(model: nn.Module) -> Way:
    return Way(torch.optim.SGD(model.parameters(), lr=0.1), lambda: None)


def twice(model: nn.Module) -> Way:
    """An optimizer that steps twice is left unknown, so that the update is what the next step finds."""
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        opt.step()
        opt.step()

    return Way(None, step)


def averaged(model: nn.Module) -> Way:
    """A moving average beside the weights, and evaluation with it, leaves the training as it is."""
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )

    def step() -> None:
        opt.step()
        average.update_parameters(model)
        own = [p.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            for p, mean in zip(model.parameters(), average.parameters(), strict=True):
                p.copy_(mean)
            model(batch()[0])
            for p, value in zip(model.parameters(), own, strict=True):
                p.copy_(value)

    return Way(opt, step)


def outside(known: bool) -> Callable[[nn.Module], Way]:
    """Weights that are clipped after the step, as in the first Wasserstein GANs."""

    def way(model: nn.Module) -> Way:
        opt = torch.optim.SGD(model.parameters(), lr=0.5)

        def step() -> None:
            opt.step()
            for p in model.parameters():
                p.data.clamp_(-0.2, 0.2)

        return Way(opt if known else None, step)

    return way


def in_the_backward_pass(fused: bool) -> Callable[[nn.Module], Way]:
    """One optimizer for each parameter, stepping as soon as its gradient is there, which it frees."""

    def way(model: nn.Module) -> Way:
        opts = {p: torch.optim.Adam([p], lr=0.01, fused=fused) for p in model.parameters()}

        def now(p: Tensor) -> None:
            opts[p].step()
            opts[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(now)
        return Way(list(opts.values()), lambda: None)

    return way


WAYS: dict[str, Callable[[nn.Module], Way]] = {
    "foreach": one(lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True)),
    "one by one": one(lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False)),
    "fused": one(lambda p: torch.optim.AdamW(p, lr=0.01, fused=True)),
    "fused sgd": one(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True)),
    "nesterov": one(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)),
    "adamax": one(lambda p: torch.optim.Adamax(p, lr=0.1)),
    "asgd": one(lambda p: torch.optim.ASGD(p, lr=0.1)),
    "clipped by norm": clipped(False),
    "clipped by value": clipped(True),
    "groups with schedules": groups_with_schedule,
    "three optimizers": three_optimizers,
    "taking turns": every_other_step,
    "no step": never,
    "two steps": twice,
    "averaged": averaged,
    "clipped outside, not known": outside(False),
    "in the backward pass": in_the_backward_pass(False),
    "in the backward pass, fused": in_the_backward_pass(True),
}


def train(way: Way, model: nn.Module, to_none: bool = True) -> tuple[Cockpit, Follower]:
    watch, truth = Cockpit(model, EVERYTHING, optimizer=way.known), Follower(model)
    for step in range(4):
        x, y = batch()
        truth.before(step, x, y)
        model.zero_grad(set_to_none=to_none)
        losses = cross_entropies(model, x, y)
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        way.step()
        truth.after(step)
    return watch, truth


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("name", WAYS)
def test_the_update_is_the_one_that_was_made(name: str, to_none: bool) -> None:
    model = perceptron()
    watch, truth = train(WAYS[name](model), model, to_none)
    truth.check(watch)


def test_weights_that_change_after_the_step_are_noticed() -> None:
    """The optimizer's update is not the whole one, so the next step is no second point of it."""
    model = perceptron()
    with pytest.warns(
        CockpitWarning, match="Alpha .*changed after the optimizer's step.*leave out"
    ):
        watch, truth = train(outside(True)(model), model)
    output = watch.get_output()
    assert all("Alpha" not in output[step] for step in truth.truths)
    assert set(not_checked(watch)) == {"Alpha"}


def test_unknown_updates_in_the_backward_pass_are_noticed() -> None:
    model = perceptron()
    way = in_the_backward_pass(False)(model)
    way.known = None
    with pytest.warns(
        CockpitWarning, match="changed during the backward pass.*give all optimizers"
    ):
        watch, truth = train(way, model)
    output = watch.get_output()
    for step, expected in truth.truths.items():
        assert output[step]["Gradients"]["g"] == pytest.approx(expected.G.numpy(), abs=1e-12)
        assert "UpdateSize" not in output[step]
        assert "Update" not in output[step]


class Sharpness:
    """Sharpness-aware minimisation: the gradient is taken at a point nearby, uphill."""

    def __init__(self, model: nn.Module, base: torch.optim.Optimizer) -> None:
        self.model, self.base = model, base
        self.moves: list[Tensor] = []

    @torch.no_grad()
    def climb(self) -> None:
        grads = [p.grad for p in self.model.parameters()]
        norm = torch.stack([g.norm() for g in grads]).norm()
        self.moves = [0.05 * g / norm for g in grads]
        for p, move in zip(self.model.parameters(), self.moves, strict=True):
            p += move

    @torch.no_grad()
    def step(self) -> None:
        for p, move in zip(self.model.parameters(), self.moves, strict=True):
            p -= move
        self.base.step()


@pytest.mark.parametrize("known", [True, False])
def test_a_step_with_two_gradients(known: bool) -> None:
    """The first backward pass is watched, at the point where the step begins."""
    model = perceptron()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sharpness = Sharpness(model, opt)
    watch, truth = Cockpit(model, EVERYTHING, optimizer=opt if known else None), Follower(model)
    for step in range(4):
        x, y = batch()
        truth.before(step, x, y)
        opt.zero_grad()
        losses = cross_entropies(model, x, y)
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        sharpness.climb()
        opt.zero_grad()
        cross_entropies(model, x, y).mean().backward()
        sharpness.step()
        truth.after(step)
    truth.check(watch)


class Curved(nn.Module):
    """A layer without a rule whose gradient depends on its own parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.log_scale.exp()


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("budget", [1, 2**20])
def test_gradients_that_depend_on_the_weights_are_those_before_the_update(
    budget: int, early: bool
) -> None:
    """Also where they are projected on the update, and computed anew for it."""
    model = nn.Sequential(Curved(), perceptron())
    if early:
        way = in_the_backward_pass(False)(model)
    else:
        opt = torch.optim.SGD(model.parameters(), lr=0.5)
        way = Way(opt, opt.step)
    watch = Cockpit(model, EVERYTHING, optimizer=way.known, memory_budget=budget)
    truth = Follower(model)
    for step in range(3):
        x, y = batch()
        truth.before(step, x, y)
        model.zero_grad()
        losses = cross_entropies(model, x, y)
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        way.step()
        truth.after(step)
    truth.check(watch)


def test_an_optimizer_that_takes_the_place_of_another() -> None:
    """It may get the same address."""
    model = perceptron()
    watch, truth = Cockpit(model, EVERYTHING), Follower(model)
    for step in range(4):
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = batch()
        truth.before(step, x, y)
        opt.zero_grad()
        losses = cross_entropies(model, x, y)
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses, optimizer=opt):
            loss.backward()
        opt.step()
        truth.after(step)
        del opt
        gc.collect()
    truth.check(watch)


def test_adam_staleness_with_optimizers_in_the_backward_pass_is_refused() -> None:
    """The gradient is gone when the pass is over."""
    model = perceptron()
    way = in_the_backward_pass(False)(model)
    watch = Cockpit(model, [quantities.AdamStaleness()], optimizer=way.known)
    losses = cross_entropies(model, *batch())
    loss = losses.mean()
    with pytest.warns(CockpitWarning, match="AdamStaleness"), watch(0, loss=loss):
        loss.backward()
    assert "AdamStaleness" not in watch.get_output().get(0, {})
