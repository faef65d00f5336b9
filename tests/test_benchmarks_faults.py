"""The fault benchmark: faults change what they say, halves are apart, baselines and counts are right."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.faults import __main__ as faults
from benchmarks.faults import baselines, judging, page, recording
from benchmarks.faults.judging import DOCTOR, Judged, Said, bands, of_places, shown_at, smoothed
from benchmarks.faults.kinds import BY_NAME, KINDS
from benchmarks.faults.splits import (
    FACTORS,
    HALVES,
    HEALTHY,
    SEEDS,
    TUNED,
    Planned,
    planned,
    rates,
)
from benchmarks.faults.summary import Half, Health, Score, percent
from benchmarks.faults.sweep import middle_of_good
from benchmarks.faults.training import ARCHITECTURES, OPTIMIZERS, Setup, shuffled
from benchmarks.tables import Aim, Section, Table
from cockpit import configuration
from cockpit.doctor import RULES, Record
from cockpit.log import Row
from cockpit.quantities import Quantity


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def setup_of(
    architecture: str = "mlp", optimizer: str = "sgd", seed: int = 0, rate: float = 0.1
) -> Setup:
    return Setup(architecture, optimizer, rate, seed)


# -- the plan -------------------------------------------------------------------------------------


def test_there_is_enough() -> None:
    assert len(KINDS) >= 30
    assert len(BY_NAME) == len(KINDS)
    for half in HALVES:
        healthy = [plan for plan in planned(half) if plan.kind == HEALTHY]
        assert len(healthy) >= 60
        assert {plan.architecture for plan in healthy} == set(ARCHITECTURES)
        assert {plan.optimizer for plan in healthy} == set(OPTIMIZERS)
        assert {plan.variant for plan in healthy} == set(FACTORS)
        assert {plan.kind for plan in planned(half)} == {HEALTHY, *BY_NAME}
    names = [plan.name for half in HALVES for plan in planned(half)]
    assert len(set(names)) == len(names)


def test_every_kind_and_architecture_has_three_seeds() -> None:
    for half in HALVES:
        seeds: dict[tuple[str, str, str], set[int]] = {}
        for plan in planned(half):
            if plan.kind != HEALTHY:
                key = plan.kind, plan.variant, plan.architecture
                seeds.setdefault(key, set()).add(plan.seed)
        assert all(found == set(SEEDS[variant]) for (_, variant, _), found in seeds.items())


def test_the_halves_share_nothing() -> None:
    tuning, held_out = planned("tuning"), planned("held-out")
    assert not {p.seed for p in tuning} & {p.seed for p in held_out}
    for kind in KINDS:
        first, second = (
            {(p.variant, p.architecture) for p in half if p.kind == kind.name}
            for half in (tuning, held_out)
        )
        assert {variant for variant, _ in first} == {"a", "b", "c"}
        assert {variant for variant, _ in second} == {"d"}
        assert {architecture for _, architecture in first} == {a for _, a in second}
        changes = {kind.a, kind.b, kind.c, kind.d}
        assert len(changes) == 4


def test_every_healthy_combination_is_there() -> None:
    for half in HALVES:
        cells = Counter(
            (p.architecture, p.optimizer, p.variant) for p in planned(half) if p.kind == HEALTHY
        )
        assert len(cells) == len(ARCHITECTURES) * len(OPTIMIZERS) * len(FACTORS)
        for (_, _, factor), runs in cells.items():
            assert runs == (5 if half == "tuning" and factor in TUNED else 2)


def test_what_is_expected_are_rules_that_there_are() -> None:
    rules = {rule.name for rule in RULES}
    assert {name for kind in KINDS for name in kind.named} <= rules
    known = {alarm for kind in KINDS for alarm in kind.baselines}
    assert known <= {
        *("VanishingGradient", "ExplodingTensor", "WeightUpdateRatio", "DeadRelu"),
        *("SaturatedActivation", "LossNotDecreasing", "UnchangedTensor", "SpikeDetection"),
        *("NonFiniteLoss", "LossAboveStart"),
    }


def test_healthy_rates_are_within_a_factor_of_three() -> None:
    for plan in planned("held-out"):
        if plan.kind == HEALTHY and plan.seed == 30 and plan.architecture == "regression":
            best = rates()["best"]["regression"][plan.optimizer]
            assert plan.setup()[0].rate == pytest.approx(best * FACTORS[plan.variant])
    assert (min(FACTORS.values()), max(FACTORS.values())) == (1 / 3, 3.0)


def test_the_edge_is_above_the_healthy_rates() -> None:
    for architecture in ARCHITECTURES:
        for optimizer in OPTIMIZERS:
            best, edge = (rates()[which][architecture][optimizer] for which in ("best", "edge"))
            assert edge > 3.5 * best


def test_the_best_rate_is_in_the_middle_of_the_good_ones() -> None:
    grid = [0.1, 0.3, 0.9, 2.7]
    assert middle_of_good(grid, [1.0, 0.5, 0.4, 0.45], 2.0) == 0.9
    assert middle_of_good(grid, [1.0, 0.5, 0.4, math.inf], 2.0) == 0.3
    assert middle_of_good(grid, [0.4, 0.5, 0.5, 1.9], 2.0) == 0.3
    with pytest.raises(ValueError, match="is good with its triple"):
        middle_of_good(grid, [0.1, 1.9, 1.9, 1.9], 2.0)


# -- the faults -----------------------------------------------------------------------------------


def each_fault() -> list[Any]:
    """Return every variant of every kind, on the first of its architectures."""
    first: dict[tuple[str, str], Planned] = {}
    for half in HALVES:
        for plan in planned(half):
            if plan.kind != HEALTHY:
                first.setdefault((plan.kind, plan.variant), plan)
    return [pytest.param(plan, id="-".join(key)) for key, plan in first.items()]


def outcome(setup: Setup) -> tuple[Any, ...]:
    """Return what can be seen of a training that is made ready."""
    draw = torch.Generator().manual_seed(0)
    batches = setup.order(setup.data, setup.batch_size, draw)
    places = [next(batches) for _ in range(2)]
    model, probes = setup.model, (0, 25, 130, 134, 148, 199)
    modes = []
    for step in (60, 100):
        setup.prepare(model, step)
        modes.append(model.training)
    with torch.no_grad():
        outputs, y = model(setup.inputs(134, setup.data.x[places[1]])), setup.data.y[places[1]]
        outputs = 5 * outputs  # as large as they are later
        losses = [
            setup.losses(outputs, setup.targets(step, y)) for step in (134, 133, 132, 131, 128)
        ]
        means = [float(setup.reduce(of_step)) for of_step in losses]
    groups = [
        [(len(group["params"]), group["lr"], group["weight_decay"]) for group in one.param_groups]
        for one in setup.optimizers(setup)
    ]
    return (
        *(len(places[0]), losses[0].shape, means, setup.clip, setup.steps),
        *(places[0].tolist(), groups, setup.rate, modes),
        setup.inputs(113, setup.data.x[:8]).float().nan_to_num(-99.0).sum().item(),
        *([setup.schedule(step) for step in probes], [setup.zeroes(step) for step in probes]),
        [setup.updates(step) for step in probes],
        [p.requires_grad for p in model.parameters()],
        {p.dtype for p in model.parameters()},
        [name for name, _ in model.named_modules()],
        setup.after_backward.__code__.co_code,
        setup.data.x.float().nan_to_num(-99.0).abs().sum().item(),
        after_an_update(setup),
    )


@torch.no_grad()
def after_an_update(setup: Setup) -> float:
    """Return the sum of a parameter after it was changed and the next step was prepared."""
    parameter = next(setup.model.parameters())
    parameter.add_(1)
    setup.prepare(setup.model, 101)
    return float(parameter.sum())


@pytest.mark.parametrize("plan", each_fault())
def test_a_fault_changes_the_training(plan: Planned) -> None:
    setup, injected = plan.setup()
    rate = rates()["best"][plan.architecture][plan.optimizer]
    healthy = Setup(plan.architecture, plan.optimizer, rate, plan.seed)
    assert repr(outcome(setup)) != repr(outcome(healthy))
    assert 0 <= injected.step < setup.steps
    there = {name for name, _ in setup.model.named_modules()}
    there |= {name for name, _ in setup.model.named_parameters()}
    assert all(place in there or place.startswith("sample ") for place in injected.places)


def gradients(setup: Setup) -> dict[str, Tensor | None]:
    x, y = setup.data.x[:16], setup.data.y[:16]
    setup.reduce(setup.losses(setup.model(x), y)).backward()
    return {name: p.grad for name, p in setup.model.named_parameters()}


def applied(kind: str, variant: str, architecture: str, optimizer: str = "sgd") -> Setup:
    return Planned("tuning", architecture, kind, variant, optimizer, 0).setup()[0]


@pytest.mark.parametrize("variant", ["a", "b", "c"])
def test_detached_layers_get_no_gradient(variant: str) -> None:
    setup = applied("detached", variant, "mlp")
    grads = gradients(setup)
    assert grads["fc1.weight"] is None
    assert grads["head.weight"] is not None


@pytest.mark.parametrize("architecture", ["mlp", "cnn", "regression"])
def test_a_rounded_activation_has_no_slope(architecture: str) -> None:
    grads = gradients(applied("detached", "d", architecture))
    first, *others = grads.values()
    assert first is not None
    assert first.count_nonzero() == 0
    assert all(grad is not None and grad.count_nonzero() for grad in others[1:])


@pytest.mark.parametrize(
    ("kind", "times"), [("attention-logits", 1), ("twice-in-optimizer", 2), ("not-in-optimizer", 0)]
)
def test_what_optimizers_have(kind: str, times: int) -> None:
    setup, injected = Planned("held-out", "transformer", kind, "d", "adamw", 0).setup()
    optimizers = setup.optimizers(setup)
    had = Counter(p for one in optimizers for group in one.param_groups for p in group["params"])
    for name, parameter in setup.model.named_parameters():
        in_place = name.startswith(injected.places)
        assert had[parameter] == (times if in_place else 1)


def test_the_rate_is_zero_in_the_first_epoch() -> None:
    setup = applied("rate-zero", "d", "regression")
    epoch = len(setup.data.x) // setup.batch_size
    seen = [setup.schedule(step) for step in (0, epoch - 1, epoch, 5 * epoch - 1, 5 * epoch, 199)]
    assert seen == pytest.approx([0.0, 0.0, 0.2, 0.8, 1.0, 1.0])


@pytest.mark.parametrize("architecture", ["mlp", "transformer"])
def test_a_softmax_over_the_batch_leaves_classes_free(architecture: str) -> None:
    setup = applied("softmax-missing", "d", architecture)
    with torch.no_grad():
        outputs, y = setup.model(setup.data.x[:8]), setup.data.y[:8]
    losses = setup.losses(outputs, y)
    torch.testing.assert_close(setup.losses(outputs + torch.arange(outputs.shape[-1]), y), losses)
    assert not torch.allclose(setup.losses(2 * outputs, y), losses)


def test_vanishing_and_exploding_gradients() -> None:
    def ratio(setup: Setup) -> float:
        grads = gradients(setup)
        first, last = grads["fc1.weight"], grads["head.weight"]
        assert first is not None
        assert last is not None
        return float(first.norm() / last.norm())

    healthy = ratio(setup_of())
    assert ratio(applied("vanishing", "a", "mlp")) < 1e-3 * healthy
    for variant in "bc":
        assert ratio(applied("vanishing", variant, "mlp")) < 1e-2 * healthy
    for variant in "abc":
        exploding = gradients(applied("exploding", variant, "mlp"))["fc1.weight"]
        plain = gradients(setup_of())["fc1.weight"]
        assert exploding is not None
        assert plain is not None
        assert exploding.norm() > 100 * plain.norm()


@pytest.mark.parametrize(
    ("variant", "name", "share"), [("a", "act2", 0.9), ("b", "act1", 0.75), ("c", "act3", 0.6)]
)
def test_dead_units_never_fire(variant: str, name: str, share: float) -> None:
    setup = applied("dead-units", variant, "mlp")
    seen: list[Tensor] = []
    setup.model.get_submodule(name).register_forward_hook(lambda m, i, out: seen.append(out))
    setup.model(setup.data.x)
    dead = (seen[0] == 0).all(0).float().mean()
    assert float(dead) >= share - 0.02


def test_symmetric_units_get_the_same_gradient() -> None:
    grads = gradients(applied("symmetric-units", "b", "mlp"))["fc2.weight"]
    assert grads is not None
    torch.testing.assert_close(grads, grads[:1].expand_as(grads))


@pytest.mark.parametrize("architecture", ["mlp", "cnn"])
def test_copies_of_units_stay_copies(architecture: str) -> None:
    setup = applied("symmetric-units", "c", architecture)
    weight = next(setup.model.parameters())
    own = len(weight) // 4
    for _ in range(3):
        gradients(setup)
        with torch.no_grad():
            for parameter in setup.model.parameters():
                assert parameter.grad is not None
                parameter -= 0.1 * parameter.grad
    assert not torch.equal(weight[0], weight[1])
    torch.testing.assert_close(weight[own:], weight[:own].repeat(3, *[1] * (weight.dim() - 1)))


@pytest.mark.parametrize("architecture", ["mlp", "transformer"])
@pytest.mark.parametrize("variant", ["a", "b", "c"])
def test_samples_leak(variant: str, architecture: str) -> None:
    setup = applied("leaking", variant, architecture)
    setup.model.eval()
    x = setup.data.x[:6]
    other = x.clone()
    other[1] = setup.data.x[7]
    with torch.no_grad():
        before, after = setup.model(x), setup.model(other)
    assert not torch.allclose(before[0], after[0], atol=1e-6)


@pytest.mark.parametrize("variant", ["a", "b", "c"])
def test_only_some_labels_are_wrong(variant: str) -> None:
    setup, healthy = applied("labels-partly-wrong", variant, "mlp"), setup_of()
    wrong = setup.data.y != healthy.data.y
    assert 0.15 < float(wrong.float().mean()) < 0.4
    named = {f"sample {place}" for place in wrong.nonzero().flatten().tolist()}
    plan = Planned("tuning", "mlp", "labels-partly-wrong", variant, "sgd", 0)
    assert set(plan.setup()[1].places) == named
    assert torch.equal(setup.data.y_valid, healthy.data.y_valid)


def test_shuffled_labels_keep_their_frequencies() -> None:
    setup, healthy = applied("labels-shuffled", "a", "mlp"), setup_of()
    assert torch.equal(setup.data.y.bincount(), healthy.data.y.bincount())
    agreeing = (setup.data.y == healthy.data.y).float().mean()
    assert float(agreeing) == pytest.approx(0.1, abs=0.03)


def test_the_step_of_a_bad_sample_is_that_of_its_batch() -> None:
    setup, injected = Planned("tuning", "mlp", "not-finite", "a", "sgd", 0).setup()
    batches = shuffled(setup.data, setup.batch_size, torch.Generator().manual_seed(0))
    for step in range(injected.step + 1):
        hit = setup.data.x[next(batches)].isnan().any()
        assert bool(hit) == (step == injected.step)


def test_the_rate_is_halved_where_the_loss_stays() -> None:
    setup = applied("stalled", "c", "mlp")
    rates_seen = []
    for loss in (3.0, 2.0, 2.0, 2.5, 1.9, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0):
        assert float(setup.reduce(torch.tensor([loss, loss]))) == pytest.approx(loss)
        rates_seen.append(setup.schedule(0))
    assert rates_seen == [1.0] * 7 + [0.5] * 3 + [0.25]


@pytest.mark.parametrize("architecture", ["mlp", "transformer"])
def test_a_mean_over_all_samples_is_a_part_of_the_mean(architecture: str) -> None:
    setup = applied("wrong-reduction", "c", architecture)
    losses = torch.rand(setup.batch_size)
    share = setup.batch_size / len(setup.data.x)
    assert float(setup.reduce(losses)) == pytest.approx(share * float(losses.mean()))


def test_a_window_shuffles_near_by() -> None:
    setup = applied("no-shuffling", "c", "mlp")
    batches = setup.order(setup.data, setup.batch_size, torch.Generator().manual_seed(0))
    epoch = [next(batches) for _ in range(len(setup.data.y) // setup.batch_size)]
    assert len(torch.cat(epoch).unique()) == torch.cat(epoch).numel()
    assert max(len(setup.data.y[places].unique()) for places in epoch) <= 3
    assert any((setup.data.y[places].diff() < 0).any() for places in epoch)


def test_weights_decay_by_a_share_of_themselves() -> None:
    for optimizer in OPTIMIZERS:
        setup = applied("weight-decay", "b", "mlp", optimizer)
        (group,) = setup.optimizers(setup)[0].param_groups
        effective = group["lr"] * (10 if optimizer == "momentum" else 1)
        assert effective * group["weight_decay"] == pytest.approx(0.03)


def test_imbalanced_classes() -> None:
    counts = applied("class-imbalance", "a", "cnn").data.y.bincount(minlength=10)
    assert counts[0] > 0.95 * counts.sum()
    counts = applied("class-imbalance", "b", "cnn").data.y.bincount(minlength=10)
    assert counts[0] > 2 * counts[1] > 4 * counts[2]
    counts = applied("class-imbalance", "c", "cnn").data.y.bincount(minlength=10)
    assert 0.87 * counts.sum() < counts[3] < 0.93 * counts.sum()


def test_a_healthy_training_learns_and_faults_of_the_rate_do_not(tmp_path: Path) -> None:
    known = {}
    for kind, variant in ((HEALTHY, "best"), ("rate-zero", "a")):
        plan = Planned("tuning", "regression", kind, variant, "adamw", 0)
        known[kind] = recording.record(plan, tmp_path)
    first, last = known[HEALTHY]["loss"][0], np.mean(known[HEALTHY]["loss"][-20:])
    assert last < 0.2 * first
    assert np.mean(known["rate-zero"]["loss"][-20:]) > 0.8 * known["rate-zero"]["loss"][0]
    index = {one["kind"]: one for one in recording.write_index(tmp_path)}
    assert index["rate-zero"]["expected"] == ["learning-rate-zero", "no-update"]
    assert "loss" not in index[HEALTHY]

    judged = {
        kind: judging.judge(tmp_path / f"{Path(k['file']).stem}.json") for kind, k in known.items()
    }
    assert judged["rate-zero"].named(DOCTOR, 1)
    assert judged["rate-zero"].said["SageMaker Debugger"].right is not None
    assert judged[HEALTHY].said[DOCTOR].alarms == ()
    assert not judged[HEALTHY].failed
    assert not list(tmp_path.glob(".*"))


def test_what_is_tracked_is_the_preset_of_the_doctor() -> None:
    tracked: list[Quantity] = recording.tracked()
    names = {one.name for one in tracked}
    assert {one.name for one in configuration("health")} <= names
    assert "BaselineStatistics" in names
    assert [step for step in range(25) if tracked[0].is_due(step)] == [0, 10, 20]


# -- the baselines --------------------------------------------------------------------------------


def run_of(key: str, values: dict[str, list[float]], every: int = 10) -> Record:
    record = Record()
    for place in range(max(map(len, values.values()))):
        rows = [Row(baselines.QUANTITY, of[place], key, name) for name, of in values.items()]
        record.add(every * place, rows)
    return record


FALLING = [2.0 * 0.99**step for step in range(60)]


@pytest.mark.parametrize(
    ("check", "key", "well", "ill", "step"),
    [
        (baselines.vanishing_gradient, "gradient", [1e-6, 2e-7], [1e-3, 0.9e-7], 10),
        (baselines.exploding_tensor, "gradient", [1.0, 1e30], [1.0, 1.0, math.inf], 20),
        (baselines.weight_update_ratio, "ratio", [9.9, 1e-7], [0.1, 10.1], 10),
        (baselines.weight_update_ratio, "ratio", [9.9, 1e-7], [0.1, 0.9e-8], 10),
        (baselines.dead_relu, "dead", [0.5, math.nan], [0.1, 0.51], 10),
        (baselines.saturated_activation, "saturated", [0.5, math.nan], [0.6], 0),
        (baselines.unchanged_tensor, "unchanged", [1, 1, 0, 1, 1], [0, 1, 1, 1], 30),
    ],
)
def test_rules_of_tensors(
    check: baselines.Check, key: str, well: list[float], ill: list[float], step: int
) -> None:
    assert check(run_of(key, {"a": well, "b": well}), FALLING) is None
    usual = (well + well[-1:] * len(ill))[: len(ill)]
    alarm = check(run_of(key, {"a": usual, "b": ill}), FALLING)
    assert alarm is not None
    assert (alarm.step, alarm.subjects) == (step, ("b",))


@pytest.mark.parametrize(
    ("check", "loss", "step"),
    [
        (baselines.loss_not_decreasing, FALLING, None),
        (baselines.loss_not_decreasing, FALLING[:21] + [FALLING[20]] * 20, 30),
        (baselines.loss_not_decreasing, [1.0] * 10 + [math.nan] * 10, 10),
        (baselines.spike_detection, FALLING, None),
        (baselines.spike_detection, [1.0] * 20 + [2.9], None),
        (baselines.spike_detection, [1.0] * 20 + [3.0], 20),
        (baselines.spike_detection, [1.0] * 5 + [math.nan], 5),
        (baselines.not_finite_or_above_start, [1.0, 1.5, 0.9, 0.8, 0.7, 0.6, 0.5], None),
        (baselines.not_finite_or_above_start, [1.0, *[1.1] * 6], 5),
        (baselines.not_finite_or_above_start, [1.0, math.inf], 1),
    ],
)
def test_rules_of_the_loss(check: baselines.Check, loss: list[float], step: int | None) -> None:
    alarm = check(Record(), loss)
    assert (None if alarm is None else alarm.step) == step


def test_statistics_of_the_baselines(tmp_path: Path) -> None:
    plan = Planned("tuning", "mlp", "dead-units", "a", "sgd", 0)
    recording.record(plan, tmp_path)
    record = Record.of_file(tmp_path / f"{plan.name}.db")
    dead = record.curves(baselines.QUANTITY, "dead")
    assert dead["act2"].values[0] >= 0.88
    assert dead["act1"].values[0] < 0.5
    first = applied("dead-units", "a", "mlp")
    places = next(shuffled(first.data, first.batch_size, torch.Generator().manual_seed(0)))
    first.losses(first.model(first.data.x[places]), first.data.y[places]).mean().backward()
    weight = first.model.get_parameter("head.weight")
    assert weight.grad is not None
    seen = {k: record.curve(baselines.QUANTITY, k, "head.weight") for k in ("gradient", "ratio")}
    change = plan.setup()[0].rate * weight.grad.abs().mean()
    for key, value in (
        ("gradient", weight.grad.abs().mean()),
        ("ratio", change / weight.abs().mean()),
    ):
        curve = seen[key]
        assert curve is not None
        assert curve.values[0] == pytest.approx(float(value.detach()), rel=0.01)
    alarm = baselines.dead_relu(record, FALLING)
    assert alarm is not None
    assert alarm.subjects == ("act2",)


# -- what is counted ------------------------------------------------------------------------------


def test_subjects_belong_to_layers() -> None:
    assert of_places(["fc2.weight", "x"], ["fc2", "act2"])
    assert of_places(["fc2"], ["fc2"])
    assert not of_places(["fc20.weight"], ["fc2"])
    assert not of_places(["x", "fc2.weight"], ["fc2"])
    assert of_places([], ["fc2"]) is False
    assert of_places(["fc2"], []) is None


def test_when_the_loss_shows_it() -> None:
    curves = [[2.0 * 0.9**step * factor for step in range(30)] for factor in (1.0, 0.8)]
    known = [{"architecture": "mlp", "loss": loss} for loss in curves]
    band = bands(known)["mlp"]
    np.testing.assert_allclose(band[1], smoothed(curves[0]))
    assert shown_at([0.9 * value for value in curves[0]], band, 0) is None
    late = [0.9 * value for value in curves[0][:20]] + [5.0] * 10
    assert shown_at(late, band, 0) == 20
    assert shown_at(late, band, 25) == 25
    broken = [0.9 * value for value in curves[0][:7]] + [math.nan] * 23
    assert shown_at(broken, band, 0) == 7
    flat = [1.0] * 60
    assert shown_at(flat, (np.full(30, 0.9), np.full(30, 1.1)), 0) is None
    assert shown_at([*flat[:40], *[0.5] * 20], (np.full(30, 0.9), np.full(30, 1.1)), 0) == 41


def fake(kind: str, ranking: tuple[str, ...], number: int, **said: Any) -> Judged:
    run = {
        "file": f"{kind}-{number}.db",
        "kind": kind,
        "architecture": "mlp",
        "places": said.pop("places", []),
        "step": 0,
    }
    shown = said.pop("shown", None)
    nothing = Said()
    of_doctor = Said(said.pop("alarms", ranking), said.pop("notes", ()), ranking, **said)
    return Judged(run, {DOCTOR: of_doctor, **dict.fromkeys(baselines.BASELINES, nothing)}, shown)


@pytest.fixture
def half() -> Half:
    first, second = "rate-zero", "dead-units"
    return Half(
        "held-out",
        [
            fake(first, ("learning-rate-zero",), 0, right=2, shown=12),
            fake(first, ("stalled", "x", "no-update"), 1, right=20, shown=14),
            fake(first, ("stalled", "x", "y", "no-update"), 2, right=40),
            fake(second, ("dead-units",), 0, places=["act2"], place=True, right=0, shown=None),
            fake(second, (), 1, places=["act2"]),
            fake(HEALTHY, (), 0),
            fake(HEALTHY, ("stalled", "x"), 1, alarms=("stalled",), notes=("x",)),
        ],
    )


def test_shares_are_counted(half: Half) -> None:
    score = Score.of(half.faulty, DOCTOR)
    assert score == Score(5, 4 / 5, 2 / 5, 3 / 5, 1 / 2, 2.0, 3 / 5)
    assert Score.of(half.of_kind("rate-zero"), DOCTOR).place is None
    assert Health.of(half.healthy, DOCTOR) == Health(2, 0.5, 0.5, 0.5)
    assert Score.of(half.faulty, "SageMaker Debugger").detection == 0
    missed = {aim.what: aim.met for aim in half.aims()}
    assert set(missed.values()) == {False}


def test_a_note_counts_only_if_it_names_the_cause() -> None:
    named = fake(
        "frozen", ("frozen-parameters",), 0, alarms=(), notes=("frozen-parameters",), right=0
    )
    other = fake("frozen", ("clipping-never",), 0, alarms=(), notes=("clipping-never",))
    assert named.detected(DOCTOR)
    assert not other.detected(DOCTOR)


def test_tables(half: Half) -> None:
    overall, by_kind, alarmed = page.tables(half)
    assert {len(row) for row in overall.rows} == {len(overall.head)}
    assert overall.rows[0][:6] == ("doctor", "80 %", "40 %", "60 %", "50 %", "2")
    assert "5 runs with faults of 2 kinds, 2 healthy runs" in overall.notes[0]
    assert [row[0] for row in by_kind.rows] == ["rate-zero", "dead-units"]
    assert by_kind.rows[0][-1] == "stalled (2)"
    assert by_kind.rows[1][-1] == "nothing (1)"
    assert (DOCTOR, "x (note)", "1", "50 %") in alarmed.rows
    text = page.updated(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n", page.markdown([half]))
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| rate-zero | mlp | 3 | 100 % | 33 % | 67 % |" in text
    with pytest.raises(ValueError, match="once each"):
        page.updated("no place", "")
    json.dumps(half.data(), allow_nan=False)
    assert [percent(value) for value in (0, 0.005, 0.5, 1)] == ["0 %", "0.5 %", "50 %", "100 %"]


def test_the_cost_is_kept_beside_the_runs(half: Half, tmp_path: Path) -> None:
    assert page.kept_cost(tmp_path / "none.json") is None
    table = Table("Cost", ("network", "x plain"), [("mlp", "1.05")], ("network",))
    section = Section([table], [Aim("mlp: x plain", 1.05, 1.1)], {"rows": []})
    page.keep_cost(tmp_path / "cost.json", section)
    text = page.markdown([half], page.kept_cost(tmp_path / "cost.json"))
    assert "| mlp | 1.05 |" in text
    assert "- mlp: x plain 1.05 <= 1.1: met" in text


# -- the command ----------------------------------------------------------------------------------


def test_runs_are_made_once_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some = ["--half", "tuning", "--only", "targets-broadcast", "--runs", str(tmp_path)]
    plans = faults.chosen(faults.parser().parse_args(["run", *some]))
    assert [plan.kind for plan in plans] == ["targets-broadcast"] * 9
    for plan in plans[:8]:
        recording.record(plan, tmp_path)
    assert faults.main(["report", *some, "--jobs", "1", "--write"]) == 1
    printed = capsys.readouterr()
    assert "1 runs are missing" in " ".join(printed.err.split())
    assert "Nothing is written" in printed.err
    assert "targets-broadcast" in printed.out
    with pytest.raises(SystemExit, match="2"):
        faults.main(["run", "--half", "neither"])
    with pytest.raises(SystemExit, match="2"):
        faults.main([])
