"""The benchmarks measure what they say: turns, ratios, peaks, growth, and the networks that are meant."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks import __main__ as bench
from benchmarks.measuring import bytes_of, growth, interleaved, live_tensors, peak_memory, ratios
from benchmarks.networks import Training, gpt2, mlp, resnet18, three_c_three_d, tiny
from benchmarks.tables import HEAD, Aim, Row, markdown
from cockpit.quantities import HessMaxEV, Loss

MIB = 2**20


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_steps_take_turns() -> None:
    order: list[str] = []
    steps = {name: lambda name=name: order.append(name) for name in "ABC"}
    times = interleaved(steps, repeats=3, warmup=2)
    assert "".join(order) == 5 * "ABC"
    assert {name: len(of_step) for name, of_step in times.items()} == dict.fromkeys("ABC", 3)


def test_ratios_are_taken_repeat_by_repeat() -> None:
    times = {"plain": [1.0, 10.0, 100.0], "tracked": [2.0, 30.0, 400.0]}
    assert ratios(times, "plain") == {"plain": 1.0, "tracked": 3.0}


def test_the_peak_is_that_of_the_worst_moment() -> None:
    def step() -> None:
        first = torch.empty(3 * MIB, dtype=torch.uint8)
        second = torch.empty(2 * MIB, dtype=torch.uint8)
        del first
        third = torch.empty(MIB, dtype=torch.uint8)
        del second, third

    assert peak_memory(step) == pytest.approx(5 * MIB, rel=0.01)


def test_a_peak_that_fails_leaves_the_error_output(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        peak_memory(lambda: 1 // 0, warmup=0)
    print("still there", file=sys.stderr)
    assert "still there" in capfd.readouterr().err


def test_shared_memory_counts_once() -> None:
    tensor = torch.zeros(1000)
    assert bytes_of([tensor, tensor[10:], tensor.view(10, 100)]) == 4000


def test_what_has_no_memory_does_not_count() -> None:
    # The compiler leaves such tensors behind, wherever it ran before in the process.
    with FakeTensorMode():
        stands_in = torch.zeros(1000)
    assert bytes_of([stands_in, torch.empty(1000, device="meta")]) == 0


def test_growth_is_seen() -> None:
    kept: list[torch.Tensor] = []
    before = live_tensors()
    tensors, _ = growth(lambda: kept.append(torch.zeros(256)), steps=10, warmup=5)
    assert tensors == 10 * 1024
    assert live_tensors() - before == 15 * 1024


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (mlp, 1_336_610),
        (three_c_three_d, 895_210),
        (resnet18, 11_181_642),
        (gpt2, 842_496),
    ],
)
def test_networks(make: bench.Make, size: int) -> None:
    problem = make(2)
    assert sum(p.numel() for p in problem.model.parameters()) == size
    assert problem.losses().shape == (2,)


def test_products_are_those_of_the_run() -> None:
    training = Training(tiny, [HessMaxEV(), Loss()], 4)
    for _ in range(3):
        training()
    training.close()
    products = bench.products_of(training)
    assert len(products) == 3
    assert all(1 <= count <= HessMaxEV().max_products for count in products)


def test_a_case_is_measured() -> None:
    sets = {"loss": lambda: [Loss()], "HessMaxEV": lambda: [HessMaxEV()]}
    case = bench.Case(
        "tiny", tiny, sets, 2, {"loss": 1e9}, memory={"loss": 1e9}, products={"HessMaxEV": 0}
    )
    plain, loss, sharpness = bench.measure(case, 2, 1, 4)
    assert [row.tracked for row in (plain, loss, sharpness)] == ["plain", "loss", "HessMaxEV"]
    assert plain.ratio == 1
    assert plain.peak == plain.plain_peak > 0
    assert [(aim.what, aim.met) for aim in loss.aims] == [("time", True), ("peak", True)]
    assert [(aim.what, aim.met) for aim in sharpness.aims] == [("products", False)]
    assert sharpness.peak > plain.peak


def test_tables() -> None:
    row = Row("HessMaxEV", (1.0, 2.0, 3.0), 9.5, 3 * MIB, 2 * MIB, [Aim("time", 9.5, 10)])
    missed = Row("full", (1.0, 2.0, 3.0), 11.0, MIB, 2 * MIB, [Aim("time", 11, 10)])
    lines = markdown("3c3d", [row, missed]).splitlines()
    assert len({line.count("|") for line in lines[2:]}) == 1
    assert lines[2] == f"| {' | '.join(HEAD)} |"
    assert "| HessMaxEV | 2.0 | 1.0-3.0 | 9.50 | 3.0 | 1.50 | time 9.5 <= 10: met |" in lines
    assert lines[-1].endswith("| time 11 <= 10: MISSED |")


def test_everything_is_printed_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = bench.Case("a tiny network", tiny, {"loss": lambda: [Loss()]}, 2, {"loss": 1e9})
    monkeypatch.setattr(bench, "CASES", {"tiny": case})
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(bench, "GROWTH_STEPS", 3)
    assert bench.main(["--quick"]) == 0
    out = capsys.readouterr().out
    for words in (
        "a tiny network, batch 16",
        "time",
        ": met",
        "Growth over 3 steps",
        "bytes of live tensors",
    ):
        assert words in out
    text = (tmp_path / "results" / "quick.md").read_text(encoding="utf-8")
    assert "| loss |" in text
    assert (tmp_path / "results" / "quick.json").exists()
