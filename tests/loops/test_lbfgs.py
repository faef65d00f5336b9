"""Optimizers that evaluate a closure several times within one step."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from loops.probe import EVERYTHING, Follower, batch, cross_entropies, not_checked, perceptron
from quantities.test_reference import alpha as reference_alpha
from torch import Tensor, nn

from cockpit import Cockpit, quantities, schedules

LINE_SEARCHES = {"none": None, "strong Wolfe": "strong_wolfe"}


def lbfgs(model: nn.Module, search: str | None = None) -> torch.optim.LBFGS:
    return torch.optim.LBFGS(
        model.parameters(), lr=0.3, max_iter=4, history_size=3, line_search_fn=search
    )


@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("search", LINE_SEARCHES)
def test_the_first_evaluation_is_tracked(search: str, first_only: bool) -> None:
    model = perceptron()
    opt = lbfgs(model, LINE_SEARCHES[search])
    watch, truth = Cockpit(model, EVERYTHING, optimizer=opt), Follower(model)
    for step in range(4):
        x, y = batch()
        truth.before(step, x, y)
        evaluated: list[int] = []

        def closure(
            step: int = step, x: Tensor = x, y: Tensor = y, evaluated: list[int] = evaluated
        ) -> Tensor:
            opt.zero_grad()
            losses = cross_entropies(model, x, y)
            loss = losses.mean()
            watched = watch(step, loss=loss, individual_losses=losses)
            with nullcontext() if first_only and evaluated else watched:
                loss.backward()
            evaluated.append(step)
            return loss

        opt.step(closure)
        assert len(evaluated) > 2
        truth.after(step)
    truth.check(watch)


def test_training_is_as_without() -> None:
    def train(watched: bool) -> list[Tensor]:
        model = perceptron()
        opt = lbfgs(model, "strong_wolfe")
        watch = Cockpit(model, EVERYTHING, optimizer=opt)
        for step in range(3):
            x, y = batch()

            def closure(step: int = step, x: Tensor = x, y: Tensor = y) -> Tensor:
                opt.zero_grad()
                losses = cross_entropies(model, x, y)
                loss = losses.mean()
                with watch(step, loss=loss, individual_losses=losses) if watched else nullcontext():
                    loss.backward()
                return loss

            opt.step(closure)
        return [p.detach() for p in model.parameters()]

    for one, other in zip(train(True), train(False), strict=True):
        assert torch.equal(one, other)


def test_steps_that_are_not_due() -> None:
    """Alpha begins at steps 0 and 3 and ends at 1 and 4; step 2 has nothing."""
    model = perceptron()
    opt = lbfgs(model)
    third = schedules.linear(3)
    due = [quantities.Alpha(third), quantities.UpdateSize(third)]
    watch, truth = Cockpit(model, due, optimizer=opt), Follower(model)
    for step in range(5):
        x, y = batch()
        truth.before(step, x, y)

        def closure(step: int = step, x: Tensor = x, y: Tensor = y) -> Tensor:
            opt.zero_grad()
            losses = cross_entropies(model, x, y)
            loss = losses.mean()
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            return loss

        opt.step(closure)
        truth.after(step)
    output = watch.get_output()
    for step in (0, 3):
        found, expected = output[step], truth.truths[step]
        assert found["Alpha"] == pytest.approx(reference_alpha(expected), rel=1e-6)
        sizes = [float((expected.after[n] - expected.before[n]).norm()) for n in expected.names]
        assert found["UpdateSize"] == pytest.approx(sizes)
    assert all("Alpha" not in output.get(step, {}) for step in (1, 2, 4))


def test_a_closure_with_micro_batches() -> None:
    model = perceptron()
    opt = lbfgs(model)
    watch, truth = Cockpit(model, EVERYTHING, optimizer=opt), Follower(model)
    for step in range(3):
        x, y = batch()
        truth.before(step, x, y)

        def closure(step: int = step, x: Tensor = x, y: Tensor = y) -> Tensor:
            opt.zero_grad()
            total = torch.zeros(())
            for k in range(2):
                losses = cross_entropies(model, x[3 * k : 3 * k + 3], y[3 * k : 3 * k + 3])
                loss = losses.mean()
                with watch(step, loss=loss, individual_losses=losses, micro_batch=(k, 2)):
                    (loss / 2).backward()
                total = total + loss.detach() / 2
            return total

        opt.step(closure)
        truth.after(step)
    truth.check(watch)


def test_an_optimizer_that_is_not_known() -> None:
    """Nothing says that it is in the middle of a step."""
    model = perceptron()
    opt = lbfgs(model)
    watch = Cockpit(model, EVERYTHING)
    x, y = batch()

    def closure() -> Tensor:
        losses = cross_entropies(model, x, y)
        loss = losses.mean()
        with watch(0, loss=loss, individual_losses=losses):
            loss.backward()
        return loss

    with pytest.raises(ValueError, match=r"tracked already.*closure several times.*optimizer=opt"):
        opt.step(closure)


@pytest.mark.filterwarnings("ignore:.*Alpha was not checked. step 1 did not follow")
@pytest.mark.parametrize("failing", [0, 1])
def test_a_closure_that_fails(failing: int) -> None:
    """In its first evaluation or later: the next step is right."""
    model = perceptron()
    opt = lbfgs(model)
    watch, truth = Cockpit(model, EVERYTHING, optimizer=opt), Follower(model)

    def step(number: int, fails: bool) -> None:
        x, y = batch()
        count: list[Any] = []
        if not fails:
            truth.before(number, x, y)

        def closure() -> Tensor:
            opt.zero_grad()
            losses = cross_entropies(model, x, y)
            loss = losses.mean()
            with watch(number, loss=loss, individual_losses=losses):
                loss.backward()
                count.append(loss)
                if fails and len(count) > failing:
                    raise KeyboardInterrupt
            return loss

        opt.step(closure)
        truth.after(number)

    with pytest.raises(KeyboardInterrupt):
        step(0, fails=True)
    opt.state.clear()  # of which it has filled one half
    for number in (5, 6, 7):
        step(number, fails=False)
    if failing == 0:
        assert 0 not in watch.get_output()
    else:  # it was tracked at its first evaluation, and never finished
        assert "step 1 did not follow" in not_checked(watch)["Alpha"]
    truth.check(watch)
