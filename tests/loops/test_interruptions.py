"""Evaluations, exceptions and early ends: the next step is right, and nothing is left behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from loops.probe import EVERYTHING, Follower, batch, cross_entropies, not_checked, perceptron
from torch import Tensor, nn

from cockpit import Cockpit, CockpitWarning


class Trouble(Exception):
    pass


def raising(error: type[BaseException]) -> Callable[..., None]:
    def hook(*args: Any) -> None:
        raise error

    return hook


Body = Callable[["Loop", int, Tensor, Tensor], None]


class Loop:
    """A training loop, of which single steps can be done in another way."""

    def __init__(self) -> None:
        self.model = perceptron()
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.watch = Cockpit(self.model, EVERYTHING, optimizer=self.opt)
        self.truth = Follower(self.model)
        self.kept: list[weakref.ref[Any]] = []

    def losses(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.opt.zero_grad()
        losses = cross_entropies(self.model, x, y)
        loss = losses.mean()
        self.kept += [weakref.ref(x), weakref.ref(losses), weakref.ref(loss)]
        return loss, losses

    def step(self, number: int, between: Callable[[], None] = lambda: None) -> None:
        x, y = batch()
        self.truth.before(number, x, y)
        loss, losses = self.losses(x, y)
        between()
        with self.watch(number, loss=loss, individual_losses=losses):
            loss.backward()
        self.opt.step()
        self.truth.after(number)


def in_the_forward_pass(loop: Loop, error: type[BaseException], number: int) -> None:
    handle = loop.model[2].register_forward_hook(raising(error))
    try:
        loop.losses(*batch())
    finally:
        handle.remove()


def before_the_backward_pass(loop: Loop, error: type[BaseException], number: int) -> None:
    loss, losses = loop.losses(*batch())
    with loop.watch(number, loss=loss, individual_losses=losses):
        raise error


def in_the_backward_pass(loop: Loop, error: type[BaseException], number: int) -> None:
    loss, losses = loop.losses(*batch())
    handle = loop.model[2].weight.register_hook(raising(error))
    try:
        with loop.watch(number, loss=loss, individual_losses=losses):
            loss.backward()
    finally:
        handle.remove()


def after_the_backward_pass(loop: Loop, error: type[BaseException], number: int) -> None:
    loss, losses = loop.losses(*batch())
    with loop.watch(number, loss=loss, individual_losses=losses):
        loss.backward()
        raise error


def in_the_second_of_two_passes(loop: Loop, error: type[BaseException], number: int) -> None:
    x, y = batch()
    loss, losses = loop.losses(x, y)
    others = loop.model(x).square().mean(1)
    other = others.mean()
    with loop.watch(number, loss=(loss, other), individual_losses=(losses, others)):
        loss.backward()
        handle = loop.model[0].weight.register_hook(raising(error))
        try:
            other.backward()
        finally:
            handle.remove()


def between_micro_batches(loop: Loop, error: type[BaseException], number: int) -> None:
    loss, losses = loop.losses(*batch())
    with loop.watch(number, loss=loss, individual_losses=losses, micro_batch=(0, 3)):
        loss.backward()
    loss, losses = loop.losses(*batch())
    with loop.watch(number, loss=loss, individual_losses=losses, micro_batch=(1, 3)):
        raise error


def before_the_update(loop: Loop, error: type[BaseException], number: int) -> None:
    handle = loop.opt.register_step_pre_hook(raising(error))
    try:
        x, y = batch()
        loop.truth.before(number, x, y)
        loss, losses = loop.losses(x, y)
        with loop.watch(number, loss=loss, individual_losses=losses):
            loss.backward()
        loop.opt.step()
    finally:
        handle.remove()


PLACES = {
    function.__name__: function
    for function in (
        in_the_forward_pass,
        before_the_backward_pass,
        in_the_backward_pass,
        after_the_backward_pass,
        in_the_second_of_two_passes,
        between_micro_batches,
        before_the_update,
    )
}


@pytest.mark.filterwarnings("ignore:.*Alpha was not checked. step . did not follow")
@pytest.mark.filterwarnings("ignore:.*micro_batch|.*only 1 of 3 micro-batches came")
@pytest.mark.parametrize("error", [Trouble, KeyboardInterrupt])
@pytest.mark.parametrize("place", PLACES)
def test_an_exception_passes_and_the_steps_after_it_are_right(
    place: str, error: type[BaseException]
) -> None:
    loop = Loop()
    loop.step(0)
    loop.step(1)
    with pytest.raises(error):
        PLACES[place](loop, error, 2)
    for number in (4, 5, 6):
        loop.step(number)
    loop.truth.check(loop.watch)
    gc.collect()
    assert [kept() for kept in loop.kept if kept() is not None] == []
    loop.watch.close()
    assert hooks(loop.model, loop.opt) == 0


@pytest.mark.filterwarnings("ignore:.*only 1 of 3 micro-batches came")
@pytest.mark.parametrize("place", [p for p in PLACES if p != "before_the_update"])
def test_the_step_may_be_tried_again_under_its_number(place: str) -> None:
    loop = Loop()
    loop.step(0)
    with pytest.raises(Trouble):
        PLACES[place](loop, Trouble, 1)
    loop.step(1)
    loop.step(2)
    loop.truth.check(loop.watch)


def test_nothing_waits_for_the_collector_after_an_exception() -> None:
    loop = Loop()
    gc.collect()
    gc.disable()
    try:
        for place in ("before_the_backward_pass", "after_the_backward_pass"):
            with pytest.raises(Trouble) as caught:
                PLACES[place](loop, Trouble, 0)
            caught.value.__traceback__ = None
            del caught
        assert [kept() for kept in loop.kept if kept() is not None] == []
    finally:
        gc.enable()


def hooks(model: nn.Module, opt: torch.optim.Optimizer) -> int:
    count = len(opt._optimizer_step_pre_hooks) + len(opt._optimizer_step_post_hooks)
    for module in model.modules():
        count += len(module._forward_hooks) + len(module._forward_pre_hooks)
        count += len(module._backward_hooks) + len(module._backward_pre_hooks)
    for parameter in model.parameters():
        count += len(parameter._backward_hooks or ())
        count += len(parameter._post_accumulate_grad_hooks or ())
    return count


def test_no_hook_is_left_on_a_parameter_after_a_failed_pass() -> None:
    loop = Loop()
    before = hooks(loop.model, loop.opt)
    with pytest.raises(Trouble):
        in_the_backward_pass(loop, Trouble, 0)
    assert hooks(loop.model, loop.opt) == before


@pytest.mark.filterwarnings("ignore:.*was not checked")  # what waits for the update comes later
@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("leave", ["break", "continue", "return"])
def test_the_block_may_be_left_early(leave: str, backward: bool) -> None:
    """After the backward pass the step counts; before it, there is nothing to be said of it."""
    loop = Loop()
    loop.step(0)

    def early() -> None:
        for _ in range(1):
            x, y = batch()
            if backward:
                loop.truth.before(1, x, y)
            loss, losses = loop.losses(x, y)
            with loop.watch(1, loss=loss, individual_losses=losses):
                if backward:
                    loss.backward()
                if leave == "break":
                    break
                if leave == "continue":
                    continue
                return

    if backward:
        early()
        loop.opt.step()
        loop.truth.after(1)
    else:
        with pytest.warns(CockpitWarning, match="no backward pass came through the loss"):
            early()
    start = 2 if backward else 3
    for number in range(start, start + 3):
        loop.step(number)
    loop.truth.check(loop.watch)
    if not backward:
        assert {"Gradients", "Update", "Alpha"} <= set(not_checked(loop.watch))
        assert "Gradients" not in loop.watch.get_output().get(1, {})


EVALUATIONS = {
    "eval and no_grad": (torch.no_grad, True),
    "inference mode": (torch.inference_mode, True),
    "with gradients": (torch.enable_grad, True),
    "in training mode": (torch.no_grad, False),
}


@pytest.mark.parametrize("size", [6, 11])
@pytest.mark.parametrize("kind", EVALUATIONS)
def test_evaluation_between_forward_and_backward(kind: str, size: int) -> None:
    context, switch = EVALUATIONS[kind]
    loop = Loop()
    results = []

    def evaluate() -> None:
        if switch:
            loop.model.eval()
        with context():
            results.append(cross_entropies(loop.model, *batch(size)).mean())
        loop.model.train()

    for number in range(4):
        loop.step(number, evaluate)
        evaluate()
    loop.truth.check(loop.watch)
    assert len(results) == 8


def test_a_whole_evaluation_within_the_block() -> None:
    """Before and after the backward pass, with gradients of its own as an attack on the inputs needs."""
    loop = Loop()
    for number in range(3):
        x, y = batch()
        loop.truth.before(number, x, y)
        loss, losses = loop.losses(x, y)
        attacked = x.clone().requires_grad_()
        other = cross_entropies(loop.model, attacked, y).mean()
        torch.autograd.grad(other, attacked)
        with loop.watch(number, loss=loss, individual_losses=losses):
            with torch.no_grad():
                cross_entropies(loop.model, x, y)
            loss.backward()
        loop.opt.step()
        loop.truth.after(number)
    loop.truth.check(loop.watch)


@pytest.mark.filterwarnings("ignore:.*was not checked")  # what waits for the update comes later
def test_gradients_of_something_else_within_the_block_are_refused() -> None:
    loop = Loop()
    x, y = batch()
    loss, losses = loop.losses(x, y)
    other = cross_entropies(loop.model, x.clone().requires_grad_(), y).mean()

    def backward() -> None:
        other.backward()
        loss.backward()

    with (
        pytest.warns(CockpitWarning, match="backward pass of another loss"),
        loop.watch(0, loss=loss, individual_losses=losses),
    ):
        backward()
    assert "Gradients" not in loop.watch.get_output().get(0, {})
    loop.opt.step()
    for number in (2, 3):
        loop.step(number)
    loop.truth.check(loop.watch)


def test_closing_in_the_middle_of_a_step() -> None:
    loop = Loop()
    loop.step(0)
    loss, losses = loop.losses(*batch())
    with loop.watch(1, loss=loss, individual_losses=losses, micro_batch=(0, 2)):
        loss.backward()
    loop.watch.close()
    assert hooks(loop.model, loop.opt) == 0
