"""Quantities that look at two points: any schedule, any start, any way of updating."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from quantities.test_reference import alpha as reference_alpha
from torch import Tensor, nn
from training import Truth, copies, individual_gradients, mlp, train

from cockpit import Cockpit, CockpitWarning, schedules
from cockpit.quantities import (
    CABS,
    AdamStaleness,
    Alpha,
    GradNorm,
    LostUpdates,
    UpdateRatio,
    UpdateSize,
)


def test_the_schedule_does_not_matter() -> None:
    """The start and the end of a step length are neighbours in time, not in the schedule."""
    every = train("mlp", [Alpha(), UpdateSize()], steps=9)[1]
    for schedule in (schedules.linear(3), schedules.at([1, 2, 7]), schedules.linear(4, offset=2)):
        some = train("mlp", [Alpha(schedule), UpdateSize(schedule)], steps=9)[1]
        for name in ("Alpha", "UpdateSize"):
            assert {s: v[name] for s, v in some.items() if name in v} == {
                s: pytest.approx(v[name]) for s, v in every.items() if schedule(s) and name in v
            }


def follow(
    update: Callable[[Any, nn.Module], None],
    make: Callable[[nn.Module], Any],
    first_step: int = 0,
    known: bool = True,
) -> tuple[list[Truth], dict[int, dict[str, Any]]]:
    """Train the MLP with any kind of update, and return truth and output."""
    torch.manual_seed(0)
    model, inputs = mlp()
    model.double()
    optimizer = make(model)
    watch = Cockpit(
        model, [Alpha(), UpdateSize(), UpdateRatio()], optimizer=optimizer if known else None
    )
    truths: list[Truth] = []
    start = copies(model)
    for step in range(first_step, first_step + 4):
        x, y = inputs(6), torch.randint(3, (6,))
        model.zero_grad()
        losses = F.cross_entropy(model(x), y, reduction="none")
        loss = losses.mean()
        truth = Truth(
            list(start),
            individual_gradients(model, x, y),
            losses.detach(),
            loss.detach(),
            copies(model),
            start,
        )
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        update(optimizer, model)
        truth.after = copies(model)
        if truths:
            truths[-1].next = truth
        truths.append(truth)
    watch.close()
    return truths, watch.get_output()


def step_all(optimizers: Any, model: nn.Module) -> None:
    for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
        optimizer.step()


def clipped(optimizer: Any, model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()


def two_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [
        torch.optim.SGD(model[0].parameters(), lr=0.1),
        torch.optim.Adam(model[2:].parameters(), lr=0.01),
    ]


def by_hand(optimizer: Any, model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad.sign()


UPDATES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "late start": (
        step_all,
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
        {"first_step": 100},
    ),
    "maximize": (step_all, lambda m: torch.optim.SGD(m.parameters(), lr=0.1, maximize=True), {}),
    "clipping": (clipped, lambda m: torch.optim.SGD(m.parameters(), lr=1.0, momentum=0.9), {}),
    "two optimizers": (step_all, two_optimizers, {}),
    "two optimizers, unknown": (step_all, two_optimizers, {"known": False}),
    "by hand": (by_hand, lambda m: None, {}),
    "rprop": (step_all, lambda m: torch.optim.Rprop(m.parameters(), lr=0.01), {}),
    "adagrad": (step_all, lambda m: torch.optim.Adagrad(m.parameters(), lr=0.05), {}),
}


@pytest.mark.parametrize("kind", UPDATES)
def test_any_update(kind: str) -> None:
    update, make, arguments = UPDATES[kind]
    truths, output = follow(update, make, **arguments)
    first = arguments.get("first_step", 0)
    for step, truth in enumerate(truths[:-1], start=first):
        assert output[step]["Alpha"] == pytest.approx(reference_alpha(truth), rel=1e-6)
        sizes = [float((truth.after[n] - truth.before[n]).norm()) for n in truth.names]
        assert output[step]["UpdateSize"] == pytest.approx(sizes, rel=1e-9)
        ratios = [
            s / float(truth.before[n].norm()) for s, n in zip(sizes, truth.names, strict=True)
        ]
        assert output[step]["UpdateRatio"] == pytest.approx(ratios, rel=1e-9)


def test_the_update_ratio_of_zeros() -> None:
    """Infinite with an update, and NaN without one."""
    model = nn.Linear(2, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    opt = torch.optim.SGD([model.weight], lr=0.1)
    watch = Cockpit(model, [UpdateRatio()], optimizer=opt)
    loss = model(torch.randn(3, 2)).sum(1).mean()
    with watch(0, loss=loss):
        loss.backward()
    opt.step()
    weight, bias = watch.get_output()[0]["UpdateRatio"]
    assert weight == math.inf
    assert math.isnan(bias)


def test_updates_lost_in_low_precision() -> None:
    """In bfloat16 an update below half the distance to the next number is lost."""
    model = nn.Linear(4, 4, bias=False).to(torch.bfloat16)
    nn.init.ones_(model.weight)
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    watch = Cockpit(model, [LostUpdates()], optimizer=opt)
    for step, size in enumerate((1e-4, 1.0)):
        opt.zero_grad()
        x = torch.full((2, 4), size, dtype=torch.bfloat16)
        x[:, 0] = 0  # no gradient at all in this column
        loss = model(x).sum(1).mean()
        with watch(step, loss=loss):
            loss.backward()
        opt.step()
    output = watch.get_output()
    assert output[0]["LostUpdates"] == [1.0]
    assert output[1]["LostUpdates"] == [0.0]


@pytest.mark.parametrize("quantity", [LostUpdates(), AdamStaleness(), CABS()])
def test_what_needs_the_optimizer_says_so(quantity: Any) -> None:
    model = nn.Linear(2, 2)
    watch = Cockpit(model, [quantity])

    def step(number: int) -> None:
        loss = model(torch.randn(3, 2)).sum(1).mean()
        with watch(number, loss=loss):
            loss.backward()

    with pytest.warns(CockpitWarning, match=r"Cockpit\(\.\.\., optimizer=opt\)"):
        [step(number) for number in range(2)]


def test_cabs_takes_the_learning_rate_of_each_group() -> None:
    torch.manual_seed(0)
    model, inputs = mlp()
    model.double()
    groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2:].parameters()}]
    opt = torch.optim.SGD(groups, lr=0.01)
    x, y = inputs(6), torch.randint(3, (6,))
    gradients = individual_gradients(model, x, y)
    watch = Cockpit(model, [CABS(), GradNorm()], optimizer=opt)
    losses = F.cross_entropy(model(x), y, reduction="none")
    loss = losses.mean()
    with watch(0, loss=loss, individual_losses=losses):
        loss.backward()

    def noise(name: str) -> Tensor:
        g = gradients[name]
        return (0.5 if name.startswith("0.") else 0.01) * (
            (g**2).sum() - 6 * (g.mean(0) ** 2).sum()
        )

    expected = sum(noise(name) for name in gradients) / (6 * losses.detach().mean())
    assert watch.get_output()[0]["CABS"] == pytest.approx(float(expected), rel=1e-9)


class Centred(nn.Module):
    """A part of it depends on all samples together, and so has no individual gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.coupled = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        coupled = self.coupled(x)
        return self.plain(x) + coupled - coupled.mean(0)


@pytest.mark.filterwarnings("ignore:.*individual gradients of coupled")
def test_the_slope_along_the_update_needs_all_parameters_that_move() -> None:
    torch.manual_seed(0)
    model = Centred()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Cockpit(model, [Alpha(), UpdateSize()], optimizer=optimizer)

    def step(number: int) -> None:
        losses = F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,)), reduction="none")
        loss = losses.mean()
        optimizer.zero_grad()
        with watch(number, loss=loss, individual_losses=losses):
            loss.backward()
        optimizer.step()

    step(0)
    with pytest.warns(
        CockpitWarning, match=r"Alpha was not checked: coupled\.\w+ has no individual"
    ):
        step(1)
    optimizer.param_groups[0]["params"] = list(model.plain.parameters())
    for number in range(2, 5):
        step(number)
    output = watch.get_output()
    assert [number for number in output if "Alpha" in output[number]] == [2, 3]
    watch.close()


def test_parameters_that_change_their_precision_do_not_stop_the_training() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Cockpit(model, [Alpha(), UpdateSize()], optimizer=optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CockpitWarning)
        for step in range(6):
            if step == 3:
                model.double()
            x = torch.randn(8, 3, dtype=next(model.parameters()).dtype)
            losses = model(x).square().sum(1)
            loss = losses.mean()
            optimizer.zero_grad()
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            optimizer.step()
        watch.close()
    assert {0, 1, 3, 4, 5} <= {
        s for s, of_step in watch.get_output().items() if "UpdateSize" in of_step
    }
