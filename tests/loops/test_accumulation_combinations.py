"""A step whose batch comes in several backward passes, with everything else that a loop may have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from loops.probe import EVERYTHING, Follower, assert_close, batch, cross_entropies, perceptron
from torch import Tensor, nn

from cockpit import Cockpit, CockpitWarning, quantities, schedules

SIZES: dict[str, Sequence[Sequence[int]]] = {
    "equal": [(2, 2, 2)] * 4,
    "the last one smaller": [(3, 3, 1)] * 4,
    "of one sample": [(1, 1, 1)] * 4,
    "changing": [(4, 2), (1, 5, 3), (6,), (2, 2, 2, 1)],
}


def weighted(losses: Tensor, total: int, reduction: str) -> tuple[Tensor, float]:
    """Return a part's loss, and the factor with which it is backpropagated to give the whole's mean or sum."""
    return (losses.mean(), len(losses) / total) if reduction == "mean" else (losses.sum(), 1.0)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", SIZES)
def test_the_values_are_those_of_the_whole_batch(name: str, reduction: str, scaled: bool) -> None:
    """With a gradient scaler, unscaling and clipping before the step."""
    model = perceptron()
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=1, enabled=scaled)
    tracked = [*EVERYTHING, quantities.GradNorm(), quantities.Loss()]
    # Of one sample, the mean and the sum are the same, so that somebody has to say which it is.
    said = reduction if name == "of one sample" else None
    watch = Cockpit(model, tracked, optimizer=opt, reduction=said)
    truth = Follower(model)
    norms, losses_of_steps = [], []
    for step, sizes in enumerate(SIZES[name]):
        total = sum(sizes)
        x, y = batch(total)
        truth.before(step, x, y)
        opt.zero_grad()
        for k, (xk, yk) in enumerate(zip(x.split(list(sizes)), y.split(list(sizes)), strict=True)):
            losses = cross_entropies(model, xk, yk)
            loss, factor = weighted(losses, total, reduction)
            with watch(
                step,
                loss=loss,
                individual_losses=losses,
                micro_batch=(k, len(sizes)),
                grad_scaler=scaler,
            ):
                scaler.scale(loss * factor).backward()
        scaler.unscale_(opt)
        norms.append(torch.stack([p.grad.norm() for p in model.parameters()]))
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(opt)
        scaler.update()
        truth.after(step)
        mean = truth.truths[step].loss
        losses_of_steps.append(mean if reduction == "mean" else mean * total)
    truth.check(watch)
    for step, norm in enumerate(norms):
        found = watch.get_output()[step]
        assert_close(found["GradNorm"], norm)
        assert_close(found["Loss"], losses_of_steps[step])


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_exception_in_the_middle(failing: int) -> None:
    """The step is given up; it can be done again under its number or another."""
    model = perceptron()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, truth = Cockpit(model, EVERYTHING, optimizer=opt), Follower(model)

    def step(number: int, fails: bool = False) -> None:
        x, y = batch(6)
        if not fails:
            truth.before(number, x, y)
        opt.zero_grad()
        for k, (xk, yk) in enumerate(zip(x.chunk(3), y.chunk(3), strict=True)):
            losses = cross_entropies(model, xk, yk)
            loss = losses.mean()
            with watch(number, loss=loss, individual_losses=losses, micro_batch=(k, 3)):
                (loss / 3).backward()
                if fails and k == failing:
                    raise RuntimeError("of the user")
        opt.step()
        truth.after(number)

    step(0)
    with pytest.raises(RuntimeError, match="of the user"):
        step(1, fails=True)
    step(1)
    step(2)
    truth.check(watch)


@pytest.mark.filterwarnings("ignore:.*Alpha was not checked. step 1 did not follow")
def test_a_step_that_breaks_off_is_said_to_be_incomplete() -> None:
    model = perceptron()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, truth = Cockpit(model, EVERYTHING, optimizer=opt), Follower(model)
    for step in range(4):
        x, y = batch(6)
        broken = step == 1
        if not broken:
            truth.before(step, x, y)
        opt.zero_grad()
        for k, (xk, yk) in enumerate(zip(x.chunk(3), y.chunk(3), strict=True)):
            losses = cross_entropies(model, xk, yk)
            loss = losses.mean()
            turn: dict[str, Any] = {"micro_batch": (k, 3)}
            if step == 2 and k == 0:
                with (
                    pytest.warns(CockpitWarning, match="Step 1 .*only 2 of 3 micro-batches came"),
                    watch(step, loss=loss, individual_losses=losses, **turn),
                ):
                    (loss / 3).backward()
            else:
                with watch(step, loss=loss, individual_losses=losses, **turn):
                    (loss / 3).backward()
            if broken and k == 1:
                break
        else:
            opt.step()
            truth.after(step)
    truth.check(watch)


def test_steps_that_are_not_due_between_those_that_are() -> None:
    """Alpha begins at every third step, and ends at the one after it."""
    model = perceptron()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    due = schedules.linear(3)
    some = Cockpit(model, [quantities.Alpha(due), quantities.NormTest(due)], optimizer=opt)
    every = Cockpit(model, [quantities.Alpha(), quantities.NormTest()], optimizer=opt)
    for step in range(8):
        x, y = batch(6)
        opt.zero_grad()
        for k, (xk, yk) in enumerate(zip(x.split([4, 2]), y.split([4, 2]), strict=True)):
            losses = cross_entropies(model, xk, yk)
            loss = losses.mean()
            arguments = {"loss": loss, "individual_losses": losses, "micro_batch": (k, 2)}
            with some(step, **arguments), every(step, **arguments):
                (loss * len(xk) / 6).backward()
        opt.step()
    all_values, some_values = every.get_output(), some.get_output()
    for step in (0, 3, 6):
        assert some_values[step]["Alpha"] == pytest.approx(all_values[step]["Alpha"])
        assert some_values[step]["NormTest"] == pytest.approx(all_values[step]["NormTest"])
    assert all("NormTest" not in some_values.get(step, {}) for step in (1, 2, 4, 5, 7))
