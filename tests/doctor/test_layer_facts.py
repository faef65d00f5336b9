"""What the doctor knows of layers, against what it is by definition."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from doctor.trainings import MODELS, batch, cross_entropy
from torch import Tensor, nn

from cockpit import Cockpit
from cockpit.doctor import Record, Rule, Sign, diagnose
from cockpit.gradients import Call
from cockpit.quantities.layer_scales import LayerScales, Norms
from cockpit.quantities.wiring import Wiring

N = 6


def see(layer: nn.Module, x: Tensor) -> list[float]:
    found = LayerScales().see("", Call.of(layer, (x,), {}), layer(x))
    assert found is not None
    return found.tolist()


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(5, 7), (N, 5)),
    "linear over time": (nn.Linear(5, 100), (N, 3, 5)),
    "convolution": (nn.Conv2d(4, 6, 3), (N, 4, 8, 8)),
    "grouped": (nn.Conv1d(4, 6, 3, groups=2), (N, 4, 8)),
    "transposed": (nn.ConvTranspose2d(4, 6, 3), (N, 4, 8, 8)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_scales_of_a_layer(name: str) -> None:
    torch.manual_seed(0)
    layer, shape = LAYERS[name]
    x = 3 * torch.randn(shape)
    gain, twins, size, offset = see(layer, x)
    units = 1 if name == "transposed" else 0
    rows = layer.weight.detach().movedim(units, 0).flatten(1)
    assert gain == pytest.approx(rows.norm(dim=1).square().mean().sqrt().item(), rel=1e-5)
    assert size == pytest.approx(x.square().mean().sqrt().item(), rel=1e-5)
    assert twins == 0
    of_units = [abs(row.mean().item()) / row.square().mean().sqrt().item() for row in rows]
    assert offset == pytest.approx(sum(of_units) / len(of_units), rel=1e-4)


def test_the_gain_is_what_an_uncorrelated_input_is_scaled_by() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(200, 300, bias=False), torch.randn(400, 200)
    assert see(layer, x)[0] == pytest.approx(
        (layer(x).norm() / x.norm()).item() * 1.5**-0.5, rel=0.02
    )


@pytest.mark.parametrize(("units", "equal"), [(8, 8), (8, 2), (8, 3), (64, 16), (4, 0)])
def test_twins_by_brute_force(units: int, equal: int) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(5, units)
    with torch.no_grad():
        layer.weight[:equal] = layer.weight[0].clone()
    rows = layer.weight.detach().double()
    distances = torch.cdist(rows, rows).fill_diagonal_(math.inf)
    twins = (distances.amin(1) < 1e-3 * rows.norm(dim=1)).double().mean()
    assert see(layer, torch.randn(2, 5))[1] == pytest.approx(twins.item()) == equal / units


def test_of_a_wide_layer_some_units_are_compared() -> None:
    layer = nn.Linear(5, 1000)
    nn.init.constant_(layer.weight, 0.1)
    assert see(layer, torch.randn(2, 5))[1] == 1
    nn.init.zeros_(layer.weight)  # as branches begin, which is no fault
    assert see(layer, torch.randn(2, 5))[1] == 0


def test_scales_of_several_processes_are_joined() -> None:
    layer, x = nn.Linear(5, 7), torch.randn(2 * N, 5)
    need = LayerScales()
    parts = [need.part("", Call.of(layer, (half,), {}), None) for half in (x[:N], x[N:])]
    torch.testing.assert_close(need.joined(parts), torch.tensor(see(layer, x)))
    assert Norms().joined([1, 1]) == 1


# -- where samples meet ---------------------------------------------------------------------------


class Meeting(nn.Module):
    """Mixes every sample with the next one, to a degree."""

    def __init__(self, degree: float) -> None:
        super().__init__()
        self.degree = degree

    def forward(self, x: Tensor) -> Tensor:
        return x + self.degree * x.roll(1, 0)


def tracked(path: Path, model: nn.Module, x: Tensor, y: Tensor) -> Record:
    watch = Cockpit(model, [Wiring()], log=path, audit=False)
    with watch:
        for step in range(2):
            model.zero_grad()
            losses = cross_entropy(model(x), y)
            with watch(step, loss=losses.mean(), individual_losses=losses):
                losses.mean().backward()
    return Record.of_file(path)


@pytest.mark.parametrize("degree", [0.0, 1e-3, 1.0])
def test_the_share_of_other_samples_by_brute_force(tmp_path: Path, degree: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 5), nn.Tanh(), Meeting(degree), nn.ReLU(inplace=True), nn.Linear(5, 4)
    )
    x, y = batch("mlp", N)
    run = tracked(tmp_path / "run.db", model, x, y)
    expected, h = {}, x
    outputs = []
    for name, module in model.named_children():
        h = module(h.clone())
        outputs.append((name, h))
    losses = cross_entropy(h, y)
    grads = torch.autograd.grad(losses[0] + losses[-1], [output for _, output in outputs])
    for (name, _), grad in zip(outputs, grads, strict=True):
        expected[name] = (grad[1:-1].norm() / grad.norm()).item()
    shares = {
        name: curve.values.tolist()
        for name, curve in run.curves("Wiring", "coupling/share").items()
    }
    assert all(len(values) == 1 for values in shares.values())  # found out once
    assert {name: shares[name][0] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert (expected["1"] > 0) == (degree > 0)
    assert expected["2"] == 0


def test_it_leaves_the_training_as_it_is(tmp_path: Path) -> None:
    """The pass of its own touches no gradient, no random number, and no graph."""

    def trained(watched: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = MODELS["transformer"]()  # with dropout
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        watch = Cockpit(model, [Wiring()] if watched else [], log=tmp_path / f"{watched}.db")
        with watch:
            for step in range(3):
                x, y = batch("transformer")
                opt.zero_grad()
                losses = cross_entropy(model(x), y)
                with watch(step, loss=losses.mean(), individual_losses=losses):
                    losses.mean().backward()
                opt.step()
        return [p.detach().clone() for p in model.parameters()]

    for one, other in zip(trained(True), trained(False), strict=True):
        assert torch.equal(one, other)


class Reused(torch.autograd.Function):
    """An operation that may do anything on the way back."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad


class Custom(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Reused.apply(x)


LOSSES: dict[str, Callable[[nn.Module, Tensor, Tensor], dict[str, Tensor]]] = {
    "without individual losses": lambda model, x, y: {"loss": F.cross_entropy(model(x), y)},
    "without a graph": lambda model, x, y: {
        "loss": (losses := cross_entropy(model(x), y)).mean(),
        "individual_losses": losses.detach(),
    },
    "of three": lambda model, x, y: {
        "loss": (losses := cross_entropy(model(x[:3]), y[:3])).mean(),
        "individual_losses": losses,
    },
    "custom operation": lambda model, x, y: {
        "loss": (losses := cross_entropy(Custom()(model(x)), y)).mean(),
        "individual_losses": losses,
    },
}


@pytest.mark.parametrize("name", LOSSES)
def test_where_it_cannot_be_told_nothing_is_said(tmp_path: Path, name: str) -> None:
    model = MODELS["mlp"]()
    watch = Cockpit(model, [Wiring()], log=tmp_path / "run.db", audit=False)
    with watch:
        x, y = batch("mlp")
        given = LOSSES[name](model, x, y)
        with watch(0, **given):
            given["loss"].backward()
    run = Record.of_file(tmp_path / "run.db")
    assert not run.curves("Wiring", "coupling/share")
    (reason,) = (one.reason for one in diagnose(run).unchecked if one.code == "CP612")
    assert "individual_losses of four samples" in reason


# -- causes in a circle ---------------------------------------------------------------------------


def made(code: str, explains: tuple[str, ...], step: int) -> Rule:
    return Rule(
        code=code,
        name=code.lower(),
        severity="warning",
        title="Something",
        why="It is.",
        action="Nothing.",
        source="none",
        needs=(),
        check=lambda run: Sign(step),
        least=0,
        explains=explains,
    )


def test_of_a_circle_of_causes_the_earliest_is_the_cause() -> None:
    rules = [
        made("AA1", ("bb1",), 5),
        made("BB1", ("cc1",), 3),
        made("CC1", ("aa1",), 9),
        made("DD1", (), 7),
    ]
    diagnosis = diagnose(Record(), rules)
    assert [one.code for one in diagnosis.findings] == ["BB1", "DD1"]
    causes = {one.finding.code: one.cause for one in diagnosis.consequences}
    assert causes == {"CC1": "BB1", "AA1": "CC1"}
