"""The facts that the doctor reads, against what they are by definition."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from doctor.trainings import CLASSES, MODELS, batch
from torch import Tensor, nn

from cockpit import Cockpit, quantities, schedules
from cockpit.gradients import Call
from cockpit.quantities.loss_graph import loss_facts
from cockpit.quantities.wiring import Mode, Modes, OfData, Wiring
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


class Cosines(nn.Module):
    """A last layer that gives the cosines between features and weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CLASSES, 8))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x), F.normalize(self.weight))


def written_out(z: Tensor) -> Tensor:
    powers = (z - z.amax(1, keepdim=True)).exp()
    return powers / powers.sum(1, keepdim=True)


def standardised(z: Tensor) -> Tensor:
    return (z - z.mean(1, keepdim=True)) / (z.std(1, keepdim=True) + 1e-5)


def least_of(width: float) -> Callable[[int], float]:
    """The loss of a sample whose own score is as high as it can be and all others as low, over log C."""

    def of(classes: int) -> float:
        z = torch.tensor([width] + [0.0] * (classes - 1), dtype=torch.float64)
        return float(F.cross_entropy(z, torch.tensor(0))) / math.log(classes)

    return of


pooled = nn.AdaptiveAvgPool1d(CLASSES)
cosines = Cosines()
BETWEEN: dict[str, tuple[Callable[[Tensor], Tensor], dict[str, Any]]] = {
    "nothing": (lambda z: z, {}),
    "a temperature": (lambda z: z / 2.5, {}),
    "dropout": (lambda z: F.dropout(z, 0.1), {}),
    "softmax": (lambda z: z.softmax(1), {"after_softmax": 1, "least": least_of(1)}),
    "softmax, written out": (written_out, {"after_softmax": 1, "least": least_of(1)}),
    "exp of log-softmax": (
        lambda z: z.log_softmax(1).exp(),
        {"after_softmax": 1, "least": least_of(1)},
    ),
    "three times softmax": (lambda z: 3 * z.softmax(1), {"after_softmax": 1, "least": least_of(3)}),
    "log of softmax": (lambda z: z.softmax(1).log(), {}),
    "log-softmax twice": (lambda z: z.log_softmax(1), {}),
    "sigmoid": (torch.sigmoid, {"after_sigmoid": 1, "least": least_of(1)}),
    "tanh": (torch.tanh, {"after_tanh": 1, "least": least_of(2)}),
    "a soft bound": (lambda z: 5 * torch.tanh(z / 5), {"least": least_of(10)}),
    "clamp": (lambda z: z.clamp(-1, 2), {"least": least_of(3)}),
    "clamp at 0": (lambda z: z.clamp(min=0), {"after_relu": 1}),
    "softsign": (F.softsign, {"least": least_of(2)}),
    "arctan": (torch.atan, {"least": least_of(math.pi)}),
    "relu": (F.relu, {"after_relu": 1}),
    "gelu": (F.gelu, {"after_activation": 1}),
    "leaky relu": (F.leaky_relu, {"after_activation": 1}),
    "relu and pooling": (lambda z: pooled(F.relu(z)), {}),
    "cosines": (cosines, {"least": least_of(2)}),
    "cosines over a temperature": (lambda z: cosines(z) / 0.5, {}),
    "cosines by a learned factor": (lambda z: cosines(z) * nn.Parameter(torch.tensor(9.0)), {}),
    "layer norm": (lambda z: F.layer_norm(z, (8,)), {"after_norm": 1}),
    "layer norm with a scale": (nn.LayerNorm(8), {"after_norm": 1}),
    "root mean square": (nn.RMSNorm(8, elementwise_affine=False), {"after_norm": 1}),
    "root mean square with a scale": (nn.RMSNorm(8), {"after_norm": 1}),
    "standardised": (standardised, {"after_norm": 1}),
    "unit length": (F.normalize, {"after_norm": 1, "least": None}),
    "a length of 8": (lambda z: 8 * F.normalize(z), {"least": None}),
    "a norm before the last layer": (lambda z: F.layer_norm(z, (8,)) @ torch.ones(8, CLASSES), {}),
}
"""What lies between the last layer and cross-entropy, and what is said of it; None for any number."""


@pytest.mark.parametrize("name", BETWEEN)
def test_what_lies_between_the_last_layer_and_the_loss(name: str) -> None:
    torch.manual_seed(0)
    between, expected = BETWEEN[name]
    z = between(nn.Linear(4, 8)(torch.randn(N, 4)))
    facts = loss_facts(F.cross_entropy(z, torch.randint(CLASSES, (N,)))).record()
    found = {k: v for k, v in facts.items() if (k.startswith("after_") and v) or k == "least"}
    assert set(found) == set(expected)
    if expected.get("least") is not None:
        assert found["least"] == pytest.approx(expected["least"](z.shape[1]), rel=1e-9)
    assert loss_facts(F.nll_loss(z.log_softmax(1), torch.randint(CLASSES, (N,)))).off_one is None


LIKELIHOODS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "over the classes": (lambda z: z.log_softmax(1), True),
    "log of softmax": (lambda z: (z.softmax(1) + 1e-9).log(), True),
    "over the samples": (lambda z: z.log_softmax(0), False),
    "of each class by itself": (F.logsigmoid, False),
    "of scores": (lambda z: z, False),
    "of probabilities": (lambda z: z.softmax(1), False),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_what_a_likelihood_is_taken_of_sums_to_1(name: str) -> None:
    logarithms, right = LIKELIHOODS[name]
    z, y = scores()
    given = logarithms(z)
    found = loss_facts(F.nll_loss(given, y)).off_one
    if name == "over the classes":
        assert found is None
        return
    assert found is not None
    expected = given.exp().sum(1).log().abs().mean()
    torch.testing.assert_close(found.double(), expected.detach(), rtol=1e-5, atol=1e-6)
    assert (float(found) < 1e-6) is right


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
    assert Modes().joined([Mode(True, False, 0), Mode(False, True, 0)]) == Mode(True, True, 0)


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
