"""Rules on optimisation, data and labels: real trainings with one fault, and the same without it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit import Cockpit, configuration
from cockpit.doctor import RULES, Diagnosis, NotKnown, Record, diagnose
from cockpit.log import ParameterInfo, Row
from cockpit.quantities import Loss
from cockpit.quantities.targets import Targets
from cockpit.run import open_run
from cockpit.schedules import linear

CLASSES, FEATURES, SAMPLES, BATCH = 10, 20, 1500, 50
RULE = {rule.name: rule for rule in RULES}


def data(seed: int) -> tuple[Tensor, Tensor]:
    """Gaussian clouds around ten centres, which overlap a little."""
    torch.manual_seed(seed)
    centres, y = 1.2 * torch.randn(CLASSES, FEATURES), torch.randint(CLASSES, (SAMPLES,))
    return centres[y] + torch.randn(SAMPLES, FEATURES), y


def shuffled(y: Tensor, size: int) -> Iterator[Tensor]:
    while True:
        yield from torch.randperm(len(y))[: len(y) // size * size].split(size)


def in_order(y: Tensor, size: int) -> Iterator[Tensor]:
    while True:
        yield from y.argsort(stable=True)[: len(y) // size * size].split(size)


def fit(
    path: Path,
    *,
    rate: float = 0.1,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    labels: Callable[[Tensor], Tensor] = lambda y: y,
    order: Callable[[Tensor, int], Iterator[Tensor]] = shuffled,
    size: int = BATCH,
    few: int = SAMPLES,
    width: int = 32,
    reduce: Callable[[Tensor], Tensor] = torch.mean,
    clip: float | None = None,
    clip_each: float | None = None,
    schedule: Callable[[int], float] = lambda step: 1.0,
    steps: int = 160,
    ids: bool = False,
    seed: int = 0,
    **settings: Any,
) -> Diagnosis:
    """Train a perceptron, tracked at every tenth step, and return what the doctor says of the run file."""
    x, right = data(seed)
    x, y, valid = x[:few], labels(right[:few]), slice(-500, None)
    x_valid, y_valid = data(seed)[0][valid], right[valid]
    model = nn.Sequential(
        nn.Linear(FEATURES, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, CLASSES),
    )
    opt = optimizer(model.parameters(), lr=rate, **settings)
    batches = order(y, size)
    with Cockpit(model, configuration("health", linear(10)), optimizer=opt, log=path) as watch:
        for step in range(steps):
            places = next(batches)
            for group in opt.param_groups:
                group["lr"] = rate * schedule(step)
            opt.zero_grad()
            losses = F.cross_entropy(model(x[places]), y[places], reduction="none")
            loss = reduce(losses)
            named = {"sample_ids": places} if ids else {}
            with watch(step, loss=loss, individual_losses=losses, **named):
                loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            for parameter in model.parameters() if clip_each is not None else ():
                nn.utils.clip_grad_norm_([parameter], clip_each)
            opt.step()
            if step % 15 == 14:
                with torch.no_grad():
                    watch.log(step, valid_loss=float(F.cross_entropy(model(x_valid), y_valid)))
    return diagnose(path)


def names(diagnosis: Diagnosis) -> list[str]:
    """Names of the causes, without notes, the most probable first."""
    return [finding.name for finding in diagnosis.findings if finding.severity != "note"]


HEALTHY: dict[str, dict[str, Any]] = {
    "sgd": {},
    "three times less": {"rate": 0.03},
    "three times more": {"rate": 0.3},
    "momentum": {"rate": 0.02, "momentum": 0.9, "weight_decay": 1e-3},
    "adamw": {"rate": 3e-3, "optimizer": torch.optim.AdamW},
    "clipped now and then": {"clip": 1.0},
    "warm-up and decay": {"schedule": lambda step: min(step / 20, 1.0) * (1 - step / 160)},
    "a sum, and a rate made for it": {"rate": 0.1 / BATCH, "reduce": torch.sum},
    "batches of 16": {"size": 16, "rate": 0.05},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_trainings_have_no_causes(tmp_path: Path, name: str) -> None:
    diagnosis = fit(tmp_path / "run.db", **HEALTHY[name])
    assert names(diagnosis) == []
    assert not any(one.failed for one in diagnosis.unchecked)


def permuted(y: Tensor) -> Tensor:
    return y[torch.randperm(len(y))]


def wrong_places(y: Tensor) -> Tensor:
    return torch.arange(len(y)) % 4 == 1


def partly_wrong(y: Tensor) -> Tensor:
    """Every fourth label is another one."""
    return torch.where(wrong_places(y), (y + torch.randint(1, CLASSES, y.shape)) % CLASSES, y)


def mostly_one(y: Tensor) -> Tensor:
    return torch.where(torch.rand(len(y)) < 0.93, 0, y)


def bumps(step: int) -> float:
    return 300.0 if step == 100 else 1.0


def second_stage(step: int) -> float:
    return 100.0 if step >= 80 else 1.0


def times_forty(step: int) -> float:
    return 40.0 if step >= 80 else 1.0


def stops(step: int) -> float:
    return 1.0 if step < 40 else 1e-6


FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "diverging": ("learning-rate-too-high", {"rate": 30.0}),
    "too high for Adam": ("learning-rate-too-high", {"rate": 0.3, "optimizer": torch.optim.AdamW}),
    "raised until it breaks": (
        "learning-rate-too-high",
        {"rate": 0.01, "schedule": lambda step: 1.1**step},
    ),
    "too low": ("learning-rate-too-low", {"rate": 1e-3}),
    "too low for Adam": (
        "learning-rate-too-low",
        {"rate": 2e-5, "optimizer": torch.optim.AdamW},
    ),
    "a second stage": ("learning-rate-too-high", {"schedule": second_stage}),
    "a step too far": ("loss-spikes", {"schedule": bumps}),
    "clipped short": ("clipping-always", {"clip": 0.01}),
    "batches of two": ("batch-too-small", {"size": 2}),
    "sorted": ("no-shuffling", {"order": in_order}),
    "clipped one by one": ("clipping-always", {"clip_each": 0.01}),
    "one over the steps": ("stalled", {"schedule": lambda step: 1 / (1 + step), "rate": 0.02}),
    "ten times the rate": ("learning-rate-too-high", {"schedule": times_forty, "rate": 0.1}),
    "stopped": ("stalled", {"schedule": stops}),
    "by heart": ("overfitting", {"few": 100, "rate": 0.2, "labels": partly_wrong}),
    "decay": ("weight-decay-dominates", {"weight_decay": 1.0}),
    "decay of AdamW": (
        "weight-decay-dominates",
        {"weight_decay": 20.0, "rate": 3e-3, "optimizer": torch.optim.AdamW},
    ),
    "sum": ("wrong-reduction", {"reduce": torch.sum, "rate": 0.5}),
    "divided twice": ("wrong-reduction", {"reduce": lambda losses: losses.mean() / len(losses)}),
    "divided by 10": (
        "wrong-reduction",
        {"reduce": lambda losses: losses.mean() / 10, "rate": 0.03},
    ),
    "permuted labels": ("labels-shuffled", {"labels": permuted}),
    "wrong labels": ("labels-partly-wrong", {"labels": partly_wrong, "steps": 200}),
    "one class": ("class-imbalance", {"labels": mostly_one}),
}


@pytest.mark.filterwarnings("ignore::cockpit.CockpitWarning")
@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_named_first(tmp_path: Path, fault: str) -> None:
    name, settings = FAULTS[fault]
    assert names(fit(tmp_path / "run.db", **settings))[:1] == [name]


NOTES = {"clipping-never", "batch-needlessly-large", "underfitting"}
"""Rules that only note something; what they note has tests of its own."""


def notes(diagnosis: Diagnosis) -> set[str]:
    found = (*diagnosis.findings, *(one.finding for one in diagnosis.consequences))
    return {finding.name for finding in found if finding.severity == "note"}


def test_what_is_only_noted(tmp_path: Path) -> None:
    assert "clipping-never" in notes(fit(tmp_path / "a.db", clip=1e4))
    assert "batch-needlessly-large" in notes(fit(tmp_path / "b.db", size=SAMPLES, rate=0.03))
    narrow = fit(tmp_path / "c.db", width=1, rate=0.1, steps=200, seed=1)
    assert "underfitting" in notes(narrow)
    found = (*narrow.findings, *(one.finding for one in narrow.consequences))
    assert [one.subjects for one in found if one.name == "underfitting"] == [("0",)]
    divided = fit(tmp_path / "e.db", rate=0.8, reduce=lambda losses: losses.mean() / 8)
    assert "wrong-reduction" in notes(divided)
    assert notes(fit(tmp_path / "d.db")) == set()


def test_wrong_labels_are_named(tmp_path: Path) -> None:
    diagnosis = fit(tmp_path / "run.db", labels=partly_wrong, steps=200, ids=True)
    (finding,) = (one for one in diagnosis.findings if one.name == "labels-partly-wrong")
    wrong = wrong_places(torch.zeros(SAMPLES))
    named = [int(subject.removeprefix("sample ")) for subject in finding.subjects]
    assert len(named) >= 10
    assert np.mean([bool(wrong[place]) for place in named]) >= 0.8


def test_without_numbers_samples_are_named_by_step_and_place(tmp_path: Path) -> None:
    diagnosis = fit(tmp_path / "run.db", labels=partly_wrong, steps=200)
    (finding,) = (one for one in diagnosis.findings if one.name == "labels-partly-wrong")
    step, place = (int(word.split()[1]) for word in finding.subjects[0].split(", "))
    assert step % 10 == 0
    assert 0 <= place < BATCH


@pytest.mark.parametrize(
    ("after", "step"),
    [([], None), ([0.6, 0.5], None), ([1.1], 10), ([3.0, 3.0], 10)],
    ids=["the last batch", "a hard batch", "a slow way back", "a new level"],
)
def test_a_loss_that_jumps_has_to_stay_up(after: list[float], step: int | None) -> None:
    run = Record()
    losses = [2.0, 1.5, 1.3, 1.1, 1.0, 0.9, 0.8, 1.0, 0.7, 0.6, 3.0, *after]
    for at, loss in enumerate(losses):
        run.add(at, [Row("Loss", loss)])
    seen = RULE["loss-spikes"].examine(run)
    assert not isinstance(seen, NotKnown)
    assert (None if seen is None else seen.step) == step


PLATEAU = [1.0] * 20
LONG = 0.02
"""Way of an update in units of the weights: healthy where there is little to learn, and far in some hundred steps."""


def course(
    losses: list[float],
    *,
    promise: float = 0.08,
    left: float = 0.0,
    size: float = LONG,
    rate: Callable[[int], float] = lambda number: 0.1,
) -> Record:
    """A run tracked at every tenth step: losses in units of a blind guess, and updates that are all alike."""
    run = Record(parameters=[ParameterInfo("a.weight", (16, 16), "float32")])
    for number, loss in enumerate(losses):
        rows = [
            Row("Loss", loss),
            Row("Targets", loss, "loss"),
            Row("Targets", 1.0, "entropy"),
            Row("Targets", 64.0 * (number + 1), "seen"),
            Row("UpdateRatio", size, "", "a.weight"),
            Row("UpdateSlopes", -promise * loss, "start"),
            Row("UpdateSlopes", -left * promise * loss, "end"),
            Row("Wiring", rate(number), "learning_rate", "a.weight"),
        ]
        run.add(10 * number, rows)
    return run


def named(run: Record, name: str) -> bool:
    seen = RULE[name].examine(run)
    assert not isinstance(seen, NotKnown)
    return seen is not None


def test_a_long_way_alone_is_no_high_learning_rate() -> None:
    """There may be little to learn; it takes an update that promised what it did not keep."""
    assert not named(course([0.88] * 40), "learning-rate-too-high")
    assert named(course([0.88] * 40, promise=3.0), "learning-rate-too-high")
    assert not named(course([0.88] * 40, promise=3.0, size=LONG / 10), "learning-rate-too-high")


def test_a_loss_above_a_guess_has_to_stay_there() -> None:
    assert not named(course([1.0, 3.7, 1.7, 0.5, *[0.4] * 10]), "learning-rate-too-high")
    assert named(course([1.0, 3.7, 3.1, 2.8, *[2.9] * 10]), "learning-rate-too-high")


def test_a_jump_while_the_rate_is_raised_is_not_called_a_spike() -> None:
    losses = [1.0, 0.6, 0.4, 0.3, 0.3, 0.3, 0.3, 1.3, 1.5, 1.4, 1.4]
    raised = course(losses, rate=lambda number: 0.1 * 1.5**number)
    assert named(raised, "learning-rate-too-high")
    assert not named(raised, "loss-spikes")
    warmed_up = course(losses, rate=lambda number: 0.1 * min(number + 1, 4))
    assert named(warmed_up, "loss-spikes")


def test_the_end_of_a_plateau_is_no_fault_of_the_labels() -> None:
    assert named(course(PLATEAU), "labels-shuffled")
    assert not named(
        course([*PLATEAU[:9], 0.98, 0.95, 0.93, 0.9, 0.8, 0.7, 0.6]), "labels-shuffled"
    )
    assert not named(course(PLATEAU, left=0.5), "labels-shuffled")  # it still leads down


def test_a_validation_loss_that_lags_is_no_overfitting() -> None:
    run, lagging = course([1.0, *[0.6] * 4, *[0.4] * 10]), [1.1, 0.96, 1.07, 1.26, 1.48, 0.35]
    learned_by_heart = course([1.0, *[0.6] * 4, *[0.2] * 10])
    for number, loss in enumerate(lagging):
        for one in (run, learned_by_heart):
            one.add(25 * number + 24, [Row("valid_loss", loss, source="log")], tracked=False)
    assert not named(run, "overfitting")
    assert named(learned_by_heart, "overfitting")


# -- what is recorded -----------------------------------------------------------------------------


def test_a_warm_up_that_is_too_long_is_noted(tmp_path: Path) -> None:
    long = fit(tmp_path / "a.db", rate=0.3, schedule=lambda step: (step + 1) / 20_000)
    (finding,) = (one for one in long.findings if one.name == "learning-rate-too-low")
    assert finding.severity == "note"
    assert "still being raised" in finding.title


def test_samples_learned_by_heart_are_noted() -> None:
    """Where the validation loss does not rise, nothing is lost: it is a note."""
    for least, expected in ((0.01, "note"), (0.1, None)):
        run = course([1.0, *[0.5] * 4, *[least] * 20])
        for number, loss in enumerate([0.9, 0.5, *[0.4] * 7]):
            run.add(25 * number + 24, [Row("valid_loss", loss, source="log")], tracked=False)
        seen = RULE["overfitting"].examine(run)
        assert not isinstance(seen, NotKnown)
        assert (None if seen is None else seen.severity) == expected


def test_a_steady_rise_is_overfitting_though_the_gap_is_small() -> None:
    for losses, expected in (
        ([1.0, 0.8, 0.85, 0.9, 0.95, 1.0], True),
        ([1.0, 0.8, 0.95, 0.85, 1.0, 0.9], False),
    ):
        run = course([1.0, *[0.7] * 5, *[0.5] * 20])
        for number, loss in enumerate(losses):
            run.add(40 * number + 39, [Row("valid_loss", loss, source="log")], tracked=False)
        assert named(run, "overfitting") is expected


def test_labels_that_are_missing_are_read_as_one_class() -> None:
    def labels(share: float, alike: float) -> bool:
        run = course([1.0, *[0.6] * 20])
        for number in range(21):
            facts = {"suspect": share, "suspects_alike": alike, "classes": 10, "accuracy": 0.7}
            facts |= {"doubt": 0.0, "lower_half": 0.0}
            run.add(10 * number, [Row("Targets", float(v), k) for k, v in facts.items()])
        return named(run, "labels-partly-wrong")

    assert labels(0.15, 0.12)
    assert not labels(0.15, 0.5)  # of one class that resembles it
    assert not labels(0.05, 0.12)


@pytest.mark.parametrize("length", [1, 2])
def test_a_jump_between_tracked_steps_is_seen(tmp_path: Path, length: int) -> None:
    """A single batch may be hard; two in a row are something else."""
    torch.manual_seed(0)
    (x, y), model = (
        data(0),
        nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES)),
    )
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses_at = []
    with Cockpit(
        model, configuration("health", linear(10)), optimizer=opt, log=tmp_path / "run.db"
    ) as watch:
        for step in range(130):
            places = torch.randint(SAMPLES, (BATCH,))
            inputs = 6 * torch.randn(BATCH, FEATURES) if 112 <= step < 112 + length else x[places]
            opt.zero_grad()
            losses = F.cross_entropy(model(inputs), y[places], reduction="none")
            loss = losses.mean()
            losses_at.append(float(loss.detach()))
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            opt.step()
    run = open_run(tmp_path / "run.db")
    steps, largest = run.curve("LossPeaks", "largest")
    _, two = run.curve("LossPeaks", "two")
    assert steps.tolist() == [*range(10, 130, 10)]
    for step, of_one, of_two in zip(steps, largest, two, strict=True):
        since = losses_at[step - 9 : step + 1]
        assert of_one == pytest.approx(max(since), rel=1e-6)
        assert of_two == pytest.approx(max(map(min, itertools.pairwise(since))), rel=1e-6)
    found = [one for one in diagnose(tmp_path / "run.db").findings if one.name == "loss-spikes"]
    assert [one.step for one in found] == ([120] if length > 1 else [])


def test_targets_are_what_they_are_by_definition(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, counts = nn.Linear(4, 6).double(), torch.zeros(6)
    scores, given = [], []
    with Cockpit(model, [Targets()], log=tmp_path / "run.db") as watch:
        for step in range(3):
            x, y = torch.randn(9, 4, dtype=torch.float64), torch.randint(6, (9,))
            y[0] = -100
            outputs = 9 * model(x)
            loss = F.cross_entropy(outputs, y)
            scores.append(outputs.detach())
            given.append(y)
            with watch(step, loss=loss, sample_ids=torch.arange(9) + 9 * step):
                loss.backward()
    run = open_run(tmp_path / "run.db")
    record = Record.of_file(tmp_path / "run.db")
    for step, (z, y) in enumerate(zip(scores, given, strict=True)):
        z, own = z[1:].softmax(1), y[1:]
        counts += torch.bincount(own, minlength=6)
        rank = (z > z.gather(1, own[:, None])).sum(1)
        doubtful = (rank >= 3) & (z.amax(1) > 0.5)
        sure = (rank > 0) & (z.amax(1) > 0.5)
        label = max(range(6), key=lambda c: int((sure & (own == c)).sum()))
        suspected = sure & (own == label)
        looks = z.argmax(1)[suspected].tolist()
        pairs = [a == b for a, b in itertools.combinations(looks, 2)]
        expected = {
            "loss": F.nll_loss(z.log(), own),
            "accuracy": (rank == 0).double().mean(),
            "lower_half": (rank >= 3).double().mean(),
            "entropy": torch.distributions.Categorical(counts).entropy(),
            "batch_entropy": torch.distributions.Categorical(
                torch.bincount(own, minlength=6).double()
            ).entropy(),
            "most": counts.max() / counts.sum(),
            "least": counts[counts > 0].min() / counts.sum(),
            "seen": counts.sum(),
            "doubt": doubtful.double().mean(),
            "suspect": suspected.double().mean(),
            "suspects_alike": float(np.mean(pairs)) if pairs else 1.0,
        }
        for key, value in expected.items():
            steps, values = run.curve("Targets", key)
            assert values[list(steps).index(step)] == pytest.approx(float(value), rel=1e-5), key
        flags = record.flags("Targets", "doubtful", step)
        assert flags is not None
        assert flags[1:].tolist() == doubtful.tolist()
        flags = record.flags("Targets", "suspected", step)
        assert flags is not None
        assert flags[1:].tolist() == suspected.tolist()
        ids = record.flags("Targets", "sample_ids", step)
        assert ids is not None
        assert ids.tolist() == [9 * step + place for place in range(9)]


def test_targets_of_squared_errors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, given = nn.Linear(4, 2).double(), []
    with Cockpit(model, [Targets()], log=tmp_path / "run.db") as watch:
        for step in range(3):
            x, y = torch.randn(9, 4, dtype=torch.float64), torch.randn(9, 2, dtype=torch.float64)
            loss = F.mse_loss(model(x), y)
            given.append(y)
            with watch(step, loss=loss):
                loss.backward()
    run, seen = open_run(tmp_path / "run.db"), torch.cat(given)
    between = torch.stack([y.mean(0) for y in given]).var(0, correction=0).mean()
    assert run.curve("Targets", "variance")[1][-1] == pytest.approx(
        float(seen.var(0, correction=0).mean())
    )
    assert run.curve("Targets", "batch_variance")[1][-1] == pytest.approx(float(between))


# -- looking again does not take anything back ----------------------------------------------------


@pytest.mark.filterwarnings("ignore::cockpit.CockpitWarning")
@pytest.mark.parametrize("fault", ["diverging", "too low", "sorted", "decay", "permuted labels"])
def test_a_finding_stays_and_keeps_its_step(tmp_path: Path, fault: str) -> None:
    name, settings = FAULTS[fault]
    fit(tmp_path / "run.db", **settings)
    whole = Record.of_file(tmp_path / "run.db")
    rows = [
        (int(step), Row(quantity, float(value), key, part, True))
        for (quantity, key), parts in whole._numbers.items()
        for part, kept in parts.items()
        for step, value in zip(*kept.curve(), strict=True)
    ]
    live, seen = Record(whole.settings, whole.parameters, bounded=True), []
    for step in sorted({step for step, _ in rows}):
        live.add(step, [row for at, row in rows if at == step])
        finding = RULE[name].examine(live)
        seen.append(None if finding is None or isinstance(finding, NotKnown) else finding.step)
    found = [step for step in seen if step is not None]
    assert found
    assert len(set(found)) == 1
    assert None not in seen[seen.index(found[0]) :]
    final = RULE[name].examine(whole)
    assert final is not None
    assert not isinstance(final, NotKnown)
    assert final.step == found[0]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_without_their_numbers_rules_say_what_is_missing(tmp_path: Path, rule: Any) -> None:
    model = nn.Linear(3, 2)
    with Cockpit(model, [Loss()], log=tmp_path / "run.db") as watch:
        for step in range(20):
            loss = model(torch.randn(4, 3)).square().mean()
            with watch(step, loss=loss):
                loss.backward()
    seen = rule.examine(Record.of_file(tmp_path / "run.db"))
    assert seen is None or isinstance(seen, NotKnown)
