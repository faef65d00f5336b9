"""Each rule names its fault in a real training, and nothing in the same training without it."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from doctor import test_course, test_layers
from doctor.trainings import MODELS, OPTIMIZERS, batch, codes, cross_entropy, train
from torch import Tensor, nn

from cockpit import Cockpit, Finding, configuration
from cockpit.doctor import RULES, diagnose
from cockpit.instruments import INSTRUMENTS


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", MODELS)
def test_healthy_runs_stay_silent(tmp_path: Path, kind: str, optimizer: str) -> None:
    diagnosis = train(tmp_path / "run.db", kind, optimizer=optimizer, steps=14)
    assert codes(diagnosis) == []
    assert not any(one.failed for one in diagnosis.unchecked)


def with_last(*after: nn.Module) -> Any:
    """Put modules behind the model."""
    return lambda model: nn.Sequential(model, *after)


def sure_head(model: nn.Module) -> None:
    with torch.no_grad():
        model[-1].bias[0] = 12


def detached_start(model: nn.Module) -> None:
    model[0].register_forward_hook(lambda module, args, output: output.detach())


def never_called(model: nn.Module) -> None:
    model[0].register_module("spare", nn.Linear(3, 3))


def frozen_start(model: nn.Module) -> None:
    model[0].requires_grad_(False)


def of_others(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(MODELS["mlp"]().parameters(), lr=0.1)


def of_head_only(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model[-1].parameters(), lr=0.1)


def nll(outputs: Tensor, y: Tensor) -> Tensor:
    return F.nll_loss(outputs, y, reduction="none")


def nll_of_probabilities(outputs: Tensor, y: Tensor) -> Tensor:
    return F.nll_loss(outputs.softmax(1), y, reduction="none")


def over_samples(outputs: Tensor, y: Tensor) -> Tensor:
    return F.nll_loss(outputs.log_softmax(0), y, reduction="none")


def random_biases(model: nn.Module) -> None:
    """Scores that are apart by several units, and the loss above a guess by two, though not twice as high."""
    with torch.no_grad():
        model[-1].bias.copy_(torch.tensor([0.0, 2.2, -2.0, 3.4]))


def block_evaluated(model: nn.Module) -> None:
    model.block.eval()


def undone(model: nn.Module) -> torch.optim.Optimizer:
    """A loop that loads what it began with before every step."""
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.register_forward_pre_hook(lambda *_: model.load_state_dict(state) and None)
    return opt


def begins_late(model: nn.Module) -> torch.optim.Optimizer:
    """A warm-up that is stepped once in five steps."""
    opt = torch.optim.SGD(model.parameters(), lr=0.0)
    calls = iter(range(1, 100))

    def after(*_: Any) -> None:
        opt.param_groups[0]["lr"] = 0.1 * min(1.0, next(calls) // 5 / 2)

    opt.register_step_post_hook(after)
    return opt


def over_too_early(model: nn.Module) -> torch.optim.Optimizer:
    """A schedule that was made for six steps."""
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = iter(range(100))

    def after(*_: Any) -> None:
        opt.param_groups[0]["lr"] = 0.1 * max(0.0, 1 - next(calls) / 6)

    opt.register_step_post_hook(after)
    return opt


def binary_twice(outputs: Tensor, y: Tensor) -> Tensor:
    scores = outputs[:, 0].sigmoid()
    return F.binary_cross_entropy_with_logits(scores, (y > 1).float(), reduction="none")


def single(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs[:, :1], torch.zeros_like(y), reduction="none")


def broadcast_squares(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs[:, :1] - y.float()).square().mean(1)


def broadcast_module(outputs: Tensor, y: Tensor) -> Tensor:
    with pytest.warns(UserWarning, match="different to the input size"):
        return F.smooth_l1_loss(outputs[:, 0], y.float()[:, None], reduction="none").mean(0)


def nan_sample(step: int, x: Tensor) -> Tensor:
    if step == 6:
        x[3] = float("nan")
    return x


FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "no step": ("CP201", {"update": lambda step: False}),
    "detached": ("CP202", {"change": detached_start}),
    "frozen": ("CP203", {"change": frozen_start}),
    "optimizer of another model": ("CP204", {"optimizer": of_others}),
    "optimizer of the head": ("CP204", {"optimizer": of_head_only}),
    "not zeroed": ("CP206", {"zero": lambda step: False}),
    "zeroed every other step": ("CP206", {"zero": lambda step: step % 2 == 0}),
    "learning rate 0": ("CP207", {"optimizer": lambda m: torch.optim.SGD(m.parameters(), lr=0.0)}),
    "evaluation mode": ("CP208", {"kind": "cnn", "change": lambda model: model.eval()}),
    "evaluation mode of dropout": ("CP208", {"kind": "transformer", "change": lambda m: m.eval()}),
    "undone": ("CP201", {"optimizer": undone}),
    "learning rate 0 from some step on": ("CP207", {"optimizer": over_too_early, "steps": 16}),
    "learning rate 0 in the first epoch": ("CP207", {"optimizer": begins_late, "steps": 16}),
    "evaluation mode of a part": (
        "CP208",
        {"kind": "transformer", "change": block_evaluated},
    ),
    "statistics that nobody has measured": (
        "CP208",
        {"kind": "cnn", "change": lambda model: nn.Sequential(model[:3].eval(), *model[3:])},
    ),
    "double softmax": ("CP301", {"change": with_last(nn.Softmax(dim=1))}),
    "double sigmoid": ("CP301", {"losses_of": binary_twice}),
    "softmax missing": ("CP302", {"losses_of": nll}),
    "log missing": ("CP302", {"losses_of": nll_of_probabilities}),
    "softmax over the samples": ("CP302", {"losses_of": over_samples}),
    "clamped": ("CP303", {"losses_of": lambda z, y: cross_entropy(z.clamp(-1, 1), y)}),
    "relu at the end": ("CP303", {"change": with_last(nn.ReLU())}),
    "tanh at the end": ("CP303", {"change": with_last(nn.Tanh())}),
    "one class": ("CP304", {"losses_of": single}),
    "sure head": ("CP305", {"change": sure_head}),
    "random biases": ("CP305", {"change": random_biases}),
    "targets broadcast": ("CP306", {"losses_of": broadcast_squares}),
    "targets broadcast in a module": ("CP306", {"losses_of": broadcast_module}),
    "bytes": ("CP401", {"kind": "cnn", "inputs": lambda s, x: (x * 60 + 128).clamp(0, 255)}),
    "nan in a sample": ("CP501", {"inputs": nan_sample}),
    "half precision": (
        "CP502",
        {
            "change": lambda m: m.bfloat16(),
            "optimizer": lambda m: torch.optim.SGD(m.parameters(), lr=1e-4),
        },
    ),
}


@pytest.mark.filterwarnings("ignore::cockpit.CockpitWarning")
@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_named_first(tmp_path: Path, fault: str) -> None:
    code, settings = FAULTS[fault]
    assert codes(train(tmp_path / "run.db", **settings))[:1] == [code]


def test_every_rule_has_a_fault() -> None:
    tested = {code for code, _ in FAULTS.values()} | {"CP205"}  # which has a test of its own
    tested |= {code for code, *_ in test_layers.FAULTS.values()}
    named = {name for name, _ in test_course.FAULTS.values()} | test_course.NOTES
    assert {r.code for r in RULES} == tested | {r.code for r in RULES if r.name in named}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rules_are_consistent(rule: Any) -> None:
    names = [one.name for one in RULES]
    codes_ = [one.code for one in RULES]
    assert len(set(names)) == len(names)
    assert codes_ == sorted(set(codes_))
    assert set(rule.explains) <= set(names)
    assert rule.instrument is None or rule.instrument in {one.name for one in INSTRUMENTS}


def test_listed_twice(tmp_path: Path) -> None:
    def both(model: nn.Module) -> torch.optim.Optimizer:
        with pytest.warns(UserWarning, match="duplicate parameters"):
            return torch.optim.SGD([*model.parameters(), model[0].weight], lr=0.1)

    (finding,) = train(tmp_path / "run.db", optimizer=both).findings
    assert finding.code == "CP205"
    assert finding.subjects == ("0.weight",)


def test_the_place_is_named(tmp_path: Path) -> None:
    def only(settings: dict[str, Any]) -> Finding:
        (finding,) = train(tmp_path / "run.db", **settings).findings
        return finding

    finding = only({"inputs": nan_sample})
    assert (finding.step, finding.subjects) == (6, ("0",))
    assert finding.evidence["samples"] == [3]
    of_layer = ("0.weight", "0.bias", "2.weight", "2.bias")
    assert only({"optimizer": of_head_only}).subjects == of_layer
    assert only({"change": frozen_start}).subjects == of_layer[:2]


@pytest.mark.filterwarnings("ignore::cockpit.CockpitWarning")
def test_nan_that_begins_in_the_gradients(tmp_path: Path) -> None:
    def change(model: nn.Module) -> None:
        calls = iter(range(100))

        def spoil(grad: Tensor) -> Tensor:
            return grad * float("nan") if next(calls) == 6 else grad

        model[2].weight.register_hook(spoil)

    (finding,) = train(tmp_path / "run.db", change=change).findings
    assert (finding.code, finding.step, finding.subjects) == ("CP501", 6, ("2.weight",))


def test_a_cause_hides_its_consequences(tmp_path: Path) -> None:
    code, settings = FAULTS["learning rate 0"]
    diagnosis = train(tmp_path / "run.db", **settings)
    assert codes(diagnosis) == [code]
    assert [(one.finding.code, one.cause) for one in diagnosis.consequences] == [("CP201", code)]


# -- healthy, though it may not look so -----------------------------------------------------------


def weighted(outputs: Tensor, y: Tensor) -> Tensor:
    weight = torch.tensor([10.0, 1.0, 1.0, 1.0])
    return F.cross_entropy(outputs, y, weight=weight, reduction="none")


def smoothed(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y, label_smoothing=0.1, reduction="none")


def by_hand(outputs: Tensor, y: Tensor) -> Tensor:
    return F.nll_loss((outputs.softmax(1) + 1e-9).log(), y, reduction="none")


def in_two_parts(outputs: Tensor, y: Tensor) -> Tensor:
    return F.nll_loss(F.log_softmax(outputs / 0.7, dim=1), y, reduction="none")


def many_positions(outputs: Tensor, y: Tensor) -> Tensor:
    """A sum over positions, which is that many times the loss of a guess at one."""
    several = outputs[:, :, None].expand(-1, -1, 9)
    return F.cross_entropy(several, y[:, None].expand(-1, 9), reduction="none").sum(1)


def pairwise(outputs: Tensor, y: Tensor) -> Tensor:
    """Every output against every other one, as contrastive losses have it."""
    scores = outputs[:, :1]
    apart = (scores - scores.T).square()
    return torch.where(y[:, None] == y, apart, (1 - apart).relu()).mean(1)


def capped(outputs: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(8 * torch.tanh(outputs / 8), y)


def squared(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs - F.one_hot(y, outputs.shape[1])).square().mean(1)


def warm_up(model: nn.Module) -> torch.optim.Optimizer:
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    opt.param_groups[0]["lr"] = 0.0
    calls = iter(range(1000))

    def after(*_: Any) -> None:
        opt.param_groups[0]["lr"] = 0.05 * min(next(calls) + 1, 2)

    opt.register_step_post_hook(after)
    return opt


def slow(model: nn.Module) -> torch.optim.Optimizer:
    """A learning rate that is made for sums."""
    return torch.optim.SGD(model.parameters(), lr=0.01)


def frozen_norms(model: nn.Module) -> None:
    """Statistics that have been measured before, and are kept."""
    for _ in range(3):
        model[1](torch.randn(8, 8, 6, 6))
    model[1].eval()


def zero_branch(model: nn.Module) -> None:
    """A last layer of zeros: at the first step nothing before it has a gradient."""
    with torch.no_grad():
        model[-1].weight.zero_()


HEALTHY: dict[str, dict[str, Any]] = {
    "class weights": {"losses_of": weighted},
    "smoothed labels": {"losses_of": smoothed},
    "log of softmax": {"losses_of": by_hand},
    "log_softmax and nll": {"losses_of": in_two_parts},
    "sum over positions": {"losses_of": many_positions, "optimizer": slow},
    "soft bound on scores": {"losses_of": capped},
    "squares": {"losses_of": squared},
    "pairs": {"losses_of": pairwise, "audit": False},
    "warm-up from 0": {"optimizer": warm_up},
    "frozen statistics": {"kind": "cnn", "change": frozen_norms},
    "branch of zeros": {"change": zero_branch},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_meant_is_not_named(tmp_path: Path, name: str) -> None:
    assert codes(train(tmp_path / "run.db", **HEALTHY[name])) == []


def loop(path: Path, run: Callable[[Cockpit, nn.Module, torch.optim.Optimizer], None]) -> list[str]:
    torch.manual_seed(0)
    model = MODELS["mlp"]()
    opt = OPTIMIZERS["sgd"](model.parameters())
    with Cockpit(model, configuration("health"), optimizer=opt, log=path) as watch:
        run(watch, model, opt)
    return codes(diagnose(path))


@pytest.mark.parametrize("to_none", [True, False])
def test_zeroing_within_the_block_is_seen(tmp_path: Path, to_none: bool) -> None:
    def run(watch: Cockpit, model: nn.Module, opt: torch.optim.Optimizer) -> None:
        for step in range(10):
            x, y = batch("mlp")
            losses = cross_entropy(model(x), y)
            loss = losses.mean()
            with watch(step, loss=loss, individual_losses=losses):
                opt.zero_grad(set_to_none=to_none)
                loss.backward()
            opt.step()

    assert loop(tmp_path / "run.db", run) == []


@pytest.mark.parametrize("told", [True, False])
def test_accumulation_is_not_taken_for_a_fault(tmp_path: Path, told: bool) -> None:
    def run(watch: Cockpit, model: nn.Module, opt: torch.optim.Optimizer) -> None:
        for step in range(8):
            opt.zero_grad()
            for part in range(3):
                x, y = batch("mlp")
                losses = cross_entropy(model(x), y)
                loss = losses.mean()
                info = {"micro_batch": (part, 3)} if told else {}
                watched = told or part == 2
                with (
                    watch(step, loss=loss, individual_losses=losses, **info)
                    if watched
                    else nullcontext()
                ):
                    (loss / 3).backward()
            opt.step()

    assert loop(tmp_path / "run.db", run) == []


def test_the_page_lists_every_rule() -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (CP\d+) \| ([a-z-]+) \| (\w+) \|", page, flags=re.M)
    assert listed == [(rule.code, rule.name, rule.severity) for rule in RULES]
