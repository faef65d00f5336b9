"""The facts that the doctor reads, against what they are by definition."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from doctor.trainings import CLASSES, MODELS, batch
from torch import Tensor, nn

from cockpit import Cockpit, quantities, schedules
from cockpit.gradients import Call
from cockpit.quantities.loss_graph import loss_facts
from cockpit.quantities.wiring import Modes, OfData, Wiring
from cockpit.run import Run, open_run

N = 6


def scores() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return (
        torch.randn(N, CLASSES, dtype=torch.float64, requires_grad=True),
        torch.randint(CLASSES, (N,)),
    )


WEIGHT = torch.tensor([5.0, 1.0, 2.0, 0.5], dtype=torch.float64)

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": F.cross_entropy,
    "sum": lambda z, y: F.cross_entropy(z, y, reduction="sum"),
    "mean of losses": lambda z, y: F.cross_entropy(z, y, reduction="none").mean(),
    "scaled": lambda z, y: 1024 * F.cross_entropy(z, y),
    "class weights": lambda z, y: F.cross_entropy(z, y, weight=WEIGHT),
    "class weights, sum": lambda z, y: F.cross_entropy(z, y, weight=WEIGHT, reduction="sum"),
    "smoothed": lambda z, y: F.cross_entropy(z, y, label_smoothing=0.3),
    "soft labels": lambda z, y: F.cross_entropy(z, F.one_hot(y, CLASSES).to(z) * 0.8 + 0.05),
    "ignored": lambda z, y: F.cross_entropy(z, y.clone().index_fill_(0, torch.tensor([2]), -100)),
    "log_softmax": lambda z, y: F.nll_loss(z.log_softmax(1), y),
    "classes second": lambda z, y: F.cross_entropy(z.T[None], y[None]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_over_that_of_a_blind_guess(name: str) -> None:
    z, y = scores()
    facts = loss_facts(LOSSES[name](z, y))
    blind = LOSSES[name](torch.zeros_like(z), y)  # all probabilities are 1 / C
    assert facts.classes == CLASSES
    assert facts.over_guess is not None
    torch.testing.assert_close(
        facts.over_guess.double(), (LOSSES[name](z, y) / blind).detach(), rtol=1e-6, atol=0
    )


def test_of_a_sum_of_losses_no_guess_is_known() -> None:
    z, y = scores()
    facts = loss_facts(F.cross_entropy(z, y) + z.square().mean())
    assert facts.over_guess is None
    assert facts.after_softmax is False


def test_hooks_of_others_are_not_called() -> None:
    z, y = scores()
    loss = F.cross_entropy(z, y)
    loss.register_hook(lambda grad: pytest.fail("it was called"))
    assert loss_facts(loss).over_guess is None
    module = nn.CrossEntropyLoss()
    module.register_full_backward_hook(lambda *_: pytest.fail("it was called"))
    assert loss_facts(module(z, y)).over_guess is None


def test_the_graph_is_kept_and_no_gradient_is_left() -> None:
    z, y = scores()
    loss = F.cross_entropy(z, y)
    loss_facts(loss)
    assert z.grad is None
    loss.backward()


@pytest.fixture
def run(tmp_path: Path) -> tuple[Run, list[Tensor], list[Tensor]]:
    """A training that zeroes its gradients at every other step, its inputs, and the gradients found."""
    torch.manual_seed(0)
    model = MODELS["mlp"]()
    opt = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}], lr=0.2
    )
    inputs, found = [], []
    with Cockpit(model, [Wiring()], optimizer=opt, log=tmp_path / "run.db") as watch:
        for step in range(10):
            x, y = batch("mlp")
            if step % 2 == 0:
                opt.zero_grad()
                model[4].zero_grad()
            loss = F.cross_entropy(model(x), y)
            grad = model[0].weight.grad
            found.append(torch.zeros(()) if grad is None else grad.norm())
            inputs.append(x)
            with watch(step, loss=loss):
                loss.backward()
            opt.step()
    return open_run(tmp_path / "run.db"), inputs, found


def test_what_is_recorded(run: tuple[Run, list[Tensor], list[Tensor]]) -> None:
    file, inputs, found = run

    def values(part: str) -> list[float]:
        return file.curve("Wiring", part)[1].tolist()

    close = [0, 1, 2, 8]
    assert file.curve("Wiring", "loss/classes")[0].tolist() == close
    inputs = [inputs[step] for step in close]
    assert values("learning_rate/0.weight") == pytest.approx([0.1] * 10)
    assert values("learning_rate/2.bias") == pytest.approx([0.2] * 10)
    assert all(map(math.isnan, values("learning_rate/4.weight")))
    assert values("optimizers/0.weight") == [1] * 4
    assert values("optimizers/4.weight") == [0] * 4
    assert values("has_gradient/4.weight") == [1] * 4
    assert values("added_to/0.weight") == pytest.approx([float(norm) for norm in found])
    assert values("data/mean/0") == pytest.approx([float(x.mean()) for x in inputs], abs=1e-6)
    rms = [float(x.square().mean().sqrt()) for x in inputs]
    assert values("data/rms/0") == pytest.approx(rms)
    assert values("data/max/0") == pytest.approx([float(x.max()) for x in inputs])
    assert "data/mean/2" not in file.parts("Wiring")  # its input depends on parameters
    assert values("modes/training") == [1] * 10
    assert values("modes/matter") == [0] * 10


def test_parts_of_several_processes_are_joined() -> None:
    layer, need = nn.Linear(3, 2), OfData()
    parts = [torch.randn(4, 3), torch.randn(2, 3) + 5]

    def call(x: Tensor) -> tuple[str, Call, Tensor]:
        return "", Call.of(layer, (x,), {}), layer(x)

    seen = [part for x in parts if (part := need.part(*call(x))) is not None]
    torch.testing.assert_close(need.joined(seen), need.see(*call(torch.cat(parts))))
    assert Modes().joined([(True, False), (False, True)]) == (True, True)


def test_a_budget_is_kept_and_the_facts_come_with_what_it_affords(tmp_path: Path) -> None:
    model = MODELS["mlp"]()
    watch = Cockpit(model, [quantities.Loss()], overhead=0.5, doctor=True, log=tmp_path / "run.db")
    with watch:
        for step in range(6):
            x, y = batch("mlp")
            model.zero_grad()
            loss = F.cross_entropy(model(x), y)
            with watch(step, loss=loss):
                loss.backward()
    run = open_run(tmp_path / "run.db")
    afforded = run.curve("Loss")[0].tolist() if "Loss" in run.quantities else []
    assert set(run.curve("Wiring", "modes/training")[0].tolist()) == {0, 1, 2, *afforded}


def test_the_facts_follow_the_schedule_of_the_others(tmp_path: Path) -> None:
    watch = Cockpit(MODELS["mlp"](), [quantities.Loss(schedules.linear(4))], doctor=True)
    with watch:
        (wiring,) = (one for one in watch.quantities if isinstance(one, Wiring))
        assert [step for step in range(10) if wiring.is_due(step)] == [0, 1, 2, 4, 8]
