"""Each rule about layers and signals names its fault in a real training, and the layer; and nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from doctor.trainings import CLASSES, batch, codes, cross_entropy, train
from torch import Tensor, nn

from cockpit import Cockpit, Finding, configuration
from cockpit.doctor import RULES, Record, Rule, Sign, diagnose
from cockpit.log import ParameterInfo, Row
from cockpit.quantities import ActivationStats, GradNorm, Loss

# -- faults ---------------------------------------------------------------------------------------


def layers(count: int, activation: type[nn.Module], gain: float | None = None) -> nn.Sequential:
    """Linear layers with activations between them; with a gain, of normal weights of that norm."""
    widths = [8, *[16] * (count - 1), CLASSES]
    modules: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        linear = nn.Linear(inputs, outputs)
        if gain is not None:
            nn.init.normal_(linear.weight, std=gain / inputs**0.5)
        modules += [linear, activation()]
    return nn.Sequential(*modules[:-1])


def times(factor: float) -> Callable[[nn.Module], None]:
    """Scale the weights of the layer in the middle."""

    def change(model: nn.Module) -> None:
        with torch.no_grad():
            model[2].weight.mul_(factor)

    return change


@torch.no_grad()
def dead(model: nn.Module) -> None:
    model[2].bias.fill_(-20)


def slow(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def slowest(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-9)


def dormant(model: nn.Module) -> nn.Module:
    model = layers(3, nn.GELU)
    with torch.no_grad():
        for parameter in model[2].parameters():
            parameter[:12] *= 1e-3
    return model


def saturated(model: nn.Module) -> nn.Module:
    model = layers(3, nn.Tanh)
    times(12.0)(model)
    return model


@torch.no_grad()
def constant(model: nn.Module) -> None:
    model[2].weight.fill_(0.1)


def normed_scores(model: nn.Module) -> nn.Module:
    return nn.Sequential(model, nn.LayerNorm(CLASSES))


@torch.no_grad()
def sharp(model: nn.Module) -> None:
    model.block.self_attn.in_proj_weight[:32] *= 20


def distinct(step: int, x: Tensor) -> Tensor:
    """Tokens of which none comes twice: where keys are equal, attention cannot choose."""
    return torch.rand(len(x), 11).argsort(1)[:, : x.shape[1]]


def fast_attention(model: nn.Module) -> torch.optim.Optimizer:
    attention = model.block.self_attn.in_proj_weight
    others = [p for p in model.parameters() if p is not attention]
    return torch.optim.AdamW([{"params": [attention], "lr": 0.4}, {"params": others}], lr=1e-3)


class Centred(nn.Module):
    """Takes the mean over the batch off."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Reshaped(nn.Module):
    """Takes a dimension for another one."""

    def forward(self, x: Tensor) -> Tensor:
        return x.T.reshape(x.shape)


def after_first(module: nn.Module) -> Callable[[nn.Module], nn.Module]:
    return lambda model: nn.Sequential(model[0], module, *model[1:])


def one_feature(step: int, x: Tensor) -> Tensor:
    return x * torch.tensor([1.0, 1, 1, 40, 1, 1, 1, 1])


def positive(model: nn.Sequential) -> None:
    """Random numbers between 0 and 1, in the size of the other layers' weights."""
    with torch.no_grad():
        model[2].weight.uniform_(0, 0.3)


def small_last(model: nn.Sequential) -> nn.Sequential:
    """The last layer is small, so that little comes back at all."""
    with torch.no_grad():
        model[-1].weight.mul_(0.05)
    return model


FAULTS: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "offset": ("CP402", ("0",), {"inputs": lambda step, x: x + 7}),
    "tiny": ("CP402", ("0",), {"inputs": lambda step, x: x / 255}),
    "one feature": ("CP402", ("0",), {"inputs": one_feature}),
    "deep sigmoids": ("CP601", ("0", "2"), {"change": lambda model: layers(8, nn.Sigmoid)}),
    "large gains": (
        "CP602",
        ("0",),
        {"change": lambda model: layers(12, nn.ReLU, gain=2.6), "optimizer": slowest},
    ),
    "gains that grow on each other": (
        "CP602",
        ("0",),
        {"change": lambda model: small_last(layers(12, nn.ReLU, gain=2.0)), "optimizer": slowest},
    ),
    "low bias": ("CP603", ("3",), {"change": dead}),
    "most units small": ("CP604", ("2", "3"), {"change": dormant, "optimizer": slow}),
    "large weights before tanh": (
        "CP605",
        ("3",),
        {"change": saturated, "inputs": lambda step, x: 3 * x},
    ),
    "one layer large": ("CP606", ("2",), {"change": times(60.0)}),
    "one layer small": ("CP606", ("2",), {"change": times(1 / 60)}),
    "all small": ("CP606", (), {"change": lambda model: layers(4, nn.ReLU, gain=0.04)}),
    "weights above 0": ("CP606", ("2",), {"change": positive}),
    "deep, as it is by default": (
        "CP601",
        ("0",),
        {"change": lambda model: layers(16, nn.ReLU, gain=0.58)},
    ),
    "constant": ("CP607", ("2",), {"change": constant}),
    "deep and plain": ("CP608", (), {"change": lambda model: layers(9, nn.ReLU, gain=1.41)}),
    "norm at the end": ("CP609", (), {"change": normed_scores}),
    "sharp attention": (
        "CP610",
        ("block.self_attn",),
        {"kind": "transformer", "change": sharp, "inputs": distinct},
    ),
    "fast attention": (
        "CP611",
        ("block.self_attn",),
        {"kind": "transformer", "optimizer": fast_attention},
    ),
    "mean over the batch": ("CP612", ("1", "0"), {"change": after_first(Centred())}),
    "wrong reshape": ("CP612", ("1", "0"), {"change": after_first(Reshaped())}),
}
"""Code, the layers that are named first, and the training."""


def of_layers(found: Finding) -> bool:
    return found.code[2] == "6" or found.code == "CP402"


def finding(path: Path, settings: dict[str, Any]) -> Finding:
    diagnosis = train(path, audit=False, **settings)
    assert not any(one.failed for one in diagnosis.unchecked)
    found = [one for one in diagnosis.findings if of_layers(one)]
    notes = [one for one in found[1:] if one.severity == "note"]
    assert found[1:] == notes, found
    return found[0]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_layer_is_named(tmp_path: Path, fault: str) -> None:
    code, subjects, settings = FAULTS[fault]
    found = finding(tmp_path / "run.db", settings)
    assert found.code == code
    assert found.subjects[: len(subjects)] == subjects


def test_it_is_known_as_soon_as_it_can_be(tmp_path: Path) -> None:
    """The step of a finding is the same, however much is known of what comes later."""
    for fault in ("deep sigmoids", "low bias", "one layer large", "constant", "wrong reshape"):
        code, _, settings = FAULTS[fault]
        short, long = (
            finding(tmp_path / f"{code}-{steps}.db", {**settings, "steps": steps})
            for steps in (6, 12)
        )
        assert (short.step, short.subjects) == (long.step, long.subjects)
        assert short.step <= 4


def test_causes_and_consequences_of_layers(tmp_path: Path) -> None:
    """Weights that saturate what follows are the cause, however far apart the layers are."""

    def change(model: nn.Module) -> nn.Module:
        model = layers(4, nn.Tanh)
        times(60.0)(model)
        return model

    diagnosis = train(tmp_path / "run.db", change=change)
    assert codes(diagnosis)[:1] == ["CP606"]
    assert "CP605" in {one.finding.code for one in diagnosis.consequences}


# -- healthy, though it may not look so -----------------------------------------------------------


@torch.no_grad()
def small_head(model: nn.Module) -> None:
    model[-1].weight.mul_(0.01)


@torch.no_grad()
def zero_layer(model: nn.Module) -> None:
    model[2].weight.zero_()


def orthogonal(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight, gain=2**0.5)


class Residual(nn.Module):
    """Branches that begin at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 16), nn.Linear(16, CLASSES)
        self.branches = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
            for _ in range(4)
        )
        for branch in self.branches:
            nn.init.zeros_(branch[-1].weight)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for branch in self.branches:
            h = h + branch(h)
        return self.head(h)


class TimeFirst(nn.Module):
    """A network on sequences as long as the batch, with the samples in the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(1, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.repeat(1, 2).T.unsqueeze(-1))  # [T, N, 8] with T = N
        return self.head(h.tanh().cumsum(0)[-1] / len(h))


class Tied(nn.Module):
    """One layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = nn.Linear(8, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.again(self.again(self.first(x).relu()).relu()).relu())


def pixels(step: int, x: Tensor) -> Tensor:
    return (x / 8 + 0.3).clamp(0, 1)


def one_hot(step: int, x: Tensor) -> Tensor:
    return F.one_hot(x.argmax(1), 8).to(x)


def bounded(outputs: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy(outputs[:, 0].sigmoid(), (y > 1).float(), reduction="none")


def in_batch(outputs: Tensor, y: Tensor) -> Tensor:
    """Every sample against all others, as contrastive losses have it."""
    unit = F.normalize(outputs, dim=1)
    return F.cross_entropy(unit @ unit.T / 0.5, torch.arange(len(y)), reduction="none")


HEALTHY: dict[str, dict[str, Any]] = {
    "last layer begins small": {"change": small_head},
    "a layer begins at zero": {"change": zero_layer},
    "orthogonal": {"change": orthogonal},
    "kaiming": {"change": lambda model: layers(6, nn.ReLU, gain=1.41)},
    "tanh": {"change": lambda model: layers(5, nn.Tanh)},
    "residual branches of zero": {"change": lambda model: Residual()},
    "sequences as long as the batch": {
        "change": lambda model: TimeFirst(),
        "quantities": [Loss(), GradNorm(), ActivationStats()],
        "doctor": True,
    },
    "called twice": {"change": lambda model: Tied()},
    "pixels": {"kind": "cnn", "inputs": pixels},
    "one-hot inputs": {"inputs": one_hot},
    "sigmoid at the end": {"losses_of": bounded},
    "contrastive": {"losses_of": in_batch},
    "norm before the head": {
        "change": lambda m: nn.Sequential(*m[:-1], nn.LayerNorm(16), m[-1]),
    },
}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_meant_is_not_named(tmp_path: Path, name: str, optimizer: str) -> None:
    diagnosis = train(tmp_path / "run.db", optimizer=optimizer, audit=False, **HEALTHY[name])
    assert not any(one.failed for one in diagnosis.unchecked)
    assert [one for one in diagnosis.findings if of_layers(one)] == []


def test_what_batch_normalisation_hides_is_not_checked(tmp_path: Path) -> None:
    diagnosis = train(tmp_path / "run.db", "cnn")
    (reason,) = (one.reason for one in diagnosis.unchecked if one.code == "CP612")
    assert "1 normalises with the statistics of the batch" in reason


def test_a_leak_behind_batch_normalisation_is_named(tmp_path: Path) -> None:
    def change(model: nn.Module) -> nn.Module:
        return nn.Sequential(*model[:5], Centred(), *model[5:])

    found = finding(tmp_path / "run.db", {"kind": "cnn", "change": change})
    assert (found.code, found.subjects[0]) == ("CP612", "5")


# -- without a training ---------------------------------------------------------------------------


def rule(code: str) -> Rule:
    return next(one for one in RULES if one.code == code)


def record(rows: Callable[[int], Iterator[Row]], steps: int, bounded: bool = False) -> Record:
    infos = [ParameterInfo(f"{layer}.weight", (16, 16), "float32") for layer in "abc"]
    made = Record(parameters=infos, bounded=bounded)
    for step in range(steps):
        made.add(step, list(rows(step)))
    return made


def signals(shares: Callable[[int], float]) -> Callable[[int], Iterator[Row]]:
    def rows(step: int) -> Iterator[Row]:
        for layer, size in zip("abc", (shares(step), 1.0, 1.0), strict=True):
            yield Row("GradNorm", size, parameter=f"{layer}.weight")
            yield Row("Wiring", 1.0, "layers/input", layer)

    return rows


def test_one_step_is_no_vanishing_gradient() -> None:
    check = rule("CP601").check
    assert check(record(signals(lambda step: 1e-6 if step == 5 else 1.0), 12)) is None
    assert check(record(signals(lambda step: 0.0), 12)) is None  # that is another fault
    seen = check(record(signals(lambda step: 1e-6 if step > 5 else 1.0), 12))
    assert isinstance(seen, Sign)
    assert (seen.step, seen.subjects) == (10, ("a",))


def shares(quantity: str, key: str, of: Callable[[int], float]) -> Callable[[int], Iterator[Row]]:
    return lambda step: iter([Row(quantity, of(step), key, "b")])


def test_what_begins_dead_or_collapsed_need_not_be_as_bad() -> None:
    dead = rule("CP603").check
    assert isinstance(dead(record(shares("ActivationStats", "dead", lambda step: 0.75), 5)), Sign)
    later = record(shares("ActivationStats", "dead", lambda step: 0.2 if step < 3 else 0.75), 20)
    assert dead(later) is None
    collapsed = rule("CP610").check
    assert isinstance(
        collapsed(record(shares("AttentionStats", "spread", lambda s: 0.07), 5)), Sign
    )
    later = record(shares("AttentionStats", "spread", lambda s: 0.9 if s < 3 else 0.07), 20)
    assert collapsed(later) is None


@pytest.mark.parametrize("code", ["CP601", "CP603", "CP606"])
def test_a_long_run_that_is_watched_says_the_same(code: str) -> None:
    """Of what lies between the first and the last steps nothing is kept."""

    def rows(step: int) -> Iterator[Row]:
        yield from signals(lambda step: 1e-6)(step)
        yield Row("ActivationStats", 1.0, "dead", "b")
        for layer, gain in zip("abc", (0.6, 30.0, 0.6), strict=True):
            yield Row("Wiring", gain, "layers/gain", layer)

    short, long = record(rows, 20), record(rows, 3000, bounded=True)
    seen, later = (rule(code).check(one) for one in (short, long))
    assert isinstance(seen, Sign)
    assert isinstance(later, Sign)
    assert (seen.step, seen.subjects) == (later.step, later.subjects)


def test_without_the_model_nothing_is_said(tmp_path: Path) -> None:
    """Rules that know nothing say so; none fails."""
    model = layers(3, nn.ReLU)
    watch = Cockpit(
        list(model.named_parameters()),
        [one for one in configuration("health") if one.name in ("Loss", "GradNorm")],
        log=tmp_path / "run.db",
        doctor=True,
    )
    with watch:
        for step in range(6):
            x, y = batch("mlp")
            model.zero_grad()
            losses = cross_entropy(model(x), y)
            with watch(step, loss=losses.mean(), individual_losses=losses):
                losses.mean().backward()
    diagnosis = diagnose(tmp_path / "run.db")
    assert not any(one.failed for one in diagnosis.unchecked)
    unchecked = {one.code for one in diagnosis.unchecked}
    assert unchecked >= {f"CP6{number:02}" for number in range(1, 13) if number != 9} | {"CP402"}
