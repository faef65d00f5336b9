"""The benchmarks measure what they say: turns, ratios, peaks, growth, exponents, and the networks that are meant."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks import __main__ as bench
from benchmarks import costs, overhead, readme, scale, subjects
from benchmarks.cases import CASES, ECONOMY, EXACT, IDLE, SELDOM, WITHOUT, exact_curvature
from benchmarks.costs import PLAIN, Case, Group, Tracked
from benchmarks.measuring import bytes_of, interleaved
from benchmarks.networks import Make, Training, dense, gpt2, mlp, resnet18, three_c_three_d, tiny
from benchmarks.rows import HEAD, OPTIONAL, Row
from benchmarks.tables import Aim, Section, Table
from cockpit import CockpitError, configuration
from cockpit.profiling.figures import Figure
from cockpit.profiling.memory import peak_memory
from cockpit.quantities import GradHist1d, HessMaxEV, HessTrace, Loss, TICDiag

MIB = 2**20


def nothing() -> None:
    pass


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# -- measuring ------------------------------------------------------------------------------------


def test_steps_take_turns() -> None:
    order: list[str] = []
    steps = {name: lambda name=name: order.append(name) for name in "ABC"}
    times = interleaved(steps, repeats=3, warmup=2, tick=lambda: order.append("."))
    assert "".join(order) == 5 * "A.B.C."
    assert {name: len(of_step) for name, of_step in times.items()} == dict.fromkeys("ABC", 3)


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


def alone(code: str) -> str:
    """Run code in a process of its own, where no other test's tensors come and go."""
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_growth_is_seen() -> None:
    code = """
import torch
from benchmarks.measuring import growth, live_tensors
kept = []
before = live_tensors()
tensors, _ = growth(lambda: kept.append(torch.zeros(256)), steps=10, warmup=5)
print(tensors, live_tensors() - before)
"""
    assert alone(code).split() == [str(10 * 1024), str(15 * 1024)]


def test_a_training_does_not_grow() -> None:
    code = """
from benchmarks import growth
section = growth.measured(True, lambda: None)
print(section.data["tensors"], [aim.met for aim in section.aims])
"""
    assert alone(code) == "0 [True]\n"


# -- networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (mlp, 1_336_610),
        (three_c_three_d, 895_210),
        (resnet18, 11_181_642),
        (gpt2, 842_496),
    ],
)
def test_networks(make: Make, size: int) -> None:
    problem = make(3)
    assert sum(p.numel() for p in problem.model.parameters()) == size
    assert problem.losses().shape == (3,)
    problem.model.eval()
    torch.testing.assert_close(problem.losses(slice(1, 3)), problem.losses()[1:])


def test_the_largest_network_has_the_shape_of_gpt2_small() -> None:
    curve = scale.CURVES[-1]
    with torch.device("meta"):
        problem = curve.make(curve.sizes[-1])
    count = sum(p.numel() for p in problem.model.parameters())
    positions = (1024 - 64) * 768  # its context is shorter
    assert count + positions == 124_439_808


def test_a_benchmark_does_not_go_on_without_a_quantity() -> None:
    training = Training(tiny, [HessTrace(curvature="diag_h")], 4)  # without BackPACK's loss module
    with pytest.raises(CockpitError, match="HessTrace"):
        training()


def test_exact_curvature_is_had_with_backpack() -> None:
    made = exact_curvature("business")
    training = costs.training(tiny, made, 4)
    with costs.backpack_in_silence():
        training()
        training()
    run = training.watch.run()
    assert {q.curvature for q in made.quantities() if isinstance(q, HessTrace | TICDiag)} == {
        "diag_h"
    }
    assert len(run.series("HessTrace")) == 2
    training.close()


def test_products_are_those_of_the_run() -> None:
    training = Training(tiny, [HessMaxEV(), Loss()], 4)
    for _ in range(3):
        training()
    training.close()
    products = costs.products_of(training)
    assert len(products) == 3
    assert all(1 <= count <= HessMaxEV().max_products for count in products)
    without = Training(tiny, [Loss()], 4)
    without()
    assert costs.products_of(without) == []
    without.close()


# -- costs ----------------------------------------------------------------------------------------


def test_a_case_is_measured() -> None:
    sets = {
        "loss": Tracked(lambda: [Loss()], 1e9, memory=1e9, earlier=7),
        "HessMaxEV": Tracked(lambda: [HessMaxEV()], products=0),
        "exact": Tracked(lambda: [GradHist1d(samples=None)], nanoseconds=1e9, over="loss"),
    }
    case = Case("tiny", tiny, (Group(sets, 2, 1),), batch_size=4)
    plain, loss, sharpness, exact = costs.rows_of(case, case.groups[0], 4, False, nothing)
    assert [row.tracked for row in (plain, loss, sharpness, exact)] == [PLAIN, *sets]
    assert plain.ratio.median == plain.bound == plain.reached == 1
    assert plain.peak == plain.plain_peak > 0
    assert loss.earlier == 7
    assert [(aim.what, aim.met) for aim in loss.aims] == [
        ("x plain", True),
        ("peak", True),
    ]
    assert [(aim.what, aim.met) for aim in sharpness.aims] == [("products", False)]
    assert sharpness.products >= 1
    assert sharpness.bound > 1
    assert sharpness.peak > plain.peak
    assert [aim.value for aim in exact.aims] == [exact.nanoseconds]


def test_steps_between_tracked_ones_count() -> None:
    seldom = CASES["mlp"].groups[1]
    assert (list(seldom.sets), seldom.steps) == ([SELDOM], 10)
    dense_make = lambda n: dense(n, (6, 5, 3))  # noqa: E731
    tracked = seldom.sets[SELDOM]
    every = costs.bound_of(dense_make, Tracked(lambda: configuration(ECONOMY)), 8, None)
    assert costs.bound_of(dense_make, tracked, 8, None) == pytest.approx((9 + every) / 10)
    never = Tracked(lambda: configuration(ECONOMY), every=math.inf)
    assert costs.bound_of(dense_make, never, 8, None) == 1
    taken: list[int] = []
    costs.several(lambda: taken.append(1), 10)()
    assert len(taken) == 10


def test_time_for_an_element_is_that_beyond_the_rest() -> None:
    assert costs.nanoseconds([3.0, 5.0, 9.0], [1.0, 4.0, 5.0], 10**9) == 2.0


def test_the_aims_of_time() -> None:
    aims = {
        name: [s.time for g in case.groups for n, s in g.sets.items() if n in readme.COLUMNS]
        for name, case in CASES.items()
        if name in readme.NETWORKS
    }
    assert aims == {
        "mlp": [3.5, 5, 15, 1.15, 1.01],
        "3c3d": [2, 3.5, 10, 1.15, 1.01],
        "transformer": [2.5, 4, 15, 1.15, 1.01],
    }


@pytest.mark.parametrize("name", CASES)
def test_every_set_can_be_had(name: str) -> None:
    for group in CASES[name].groups:
        for label, tracked in group.sets.items():
            assert tracked.quantities(), label
            assert tracked.nanoseconds is None or tracked.over in group.sets


def test_exact_histograms_differ_from_economy_by_their_samples_alone() -> None:
    sets = {n: s for g in CASES["mlp"].groups for n, s in g.sets.items()}
    kinds = {name: {type(q).__name__ for q in sets[name].quantities()} for name in sets}
    assert kinds[EXACT] == kinds[ECONOMY] == kinds[WITHOUT] | {"GradHist1d"}
    (histogram,) = (q for q in sets[EXACT].quantities() if isinstance(q, GradHist1d))
    assert histogram.samples is None
    assert not any(q.is_due(step) for q in sets[IDLE].quantities() for step in range(100))


# -- scale ----------------------------------------------------------------------------------------


def test_exponents_of_power_laws() -> None:
    assert scale.exponent([1, 2, 4, 8], [3, 12, 48, 192]) == pytest.approx(2)


def point(size: int, plain: float, economy: float, needs: dict[str, float]) -> scale.Point:
    seconds = {PLAIN: Figure(plain, plain, plain), ECONOMY: Figure(economy, economy, economy)}
    ratio = Figure(economy / plain, economy / plain, economy / plain)
    return scale.Point(
        size, size**2, seconds, ratio, {PLAIN: 100 * size, ECONOMY: 200 * size}, needs
    )


def test_what_grows_faster_is_said() -> None:
    points = [
        point(s, s, 2 * s, {"Slow": 0.5 * s, "Fast": s**1.5 / 10, "Small": s**3 / 1e9})
        for s in (1, 16, 32, 64)
    ]
    curve = scale.Curve("c", "size", (1, 16, 32, 64), lambda size: dense(size, (3, 2)))
    faster = scale.growing_faster(curve, points)
    assert faster == {"Fast": pytest.approx(1.5)}
    assert (
        "Fast grows faster than the plain step (1.50 against 1.00), at last 80% of it: NOT EXPLAINED."
        in (scale.notes(curve, points, faster))
    )
    explained = scale.Curve("c", "size", curve.sizes, curve.make, reasons={"Fast": "it is fast"})
    assert scale.notes(explained, points, faster)[-1].endswith("it is fast.")
    by_parameters = scale.Curve("c", "size", curve.sizes, curve.make, by_parameters=True)
    assert scale.exponents(by_parameters, points)["Fast"] == pytest.approx(0.75)
    assert scale.table(curve, points, faster).rows[-1][0] == "exponent*"


def test_a_curve_is_measured() -> None:
    curve = scale.Curve("c", "width", (4, 8, 16), lambda width: dense(6, (5, width, 3)))
    section = scale.measured([curve], True, nothing)
    found = section.data["c"]["points"]
    assert [(p["size"], p["parameters"]) for p in found] == [(4, 39), (8, 75)]
    assert all(p["peaks"][ECONOMY] > p["peaks"][PLAIN] > 4 * 3 * 39 for p in found)
    assert {"SquareNorms", "DotMean", "Histogram1d"} <= found[0]["needs"].keys()
    assert all(seconds > 0 for p in found for seconds in p["needs"].values())


# -- how it is shown ------------------------------------------------------------------------------


def printed(table: Table, width: int = 150) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table.terminal(width))
    return capture.get()


def test_tables() -> None:
    figure = Figure(2.0, 1.0, 3.0)
    row = Row("HessMaxEV", figure, Figure(9.5, 9.0, 10.0), 4.75, 3 * MIB, 2 * MIB, 12)
    row.aims.extend([Aim("x plain", 9.5, 10), Aim("products", 9, 8)])
    table = Table(
        "3c3d",
        HEAD,
        [tuple(row.cells())],
        ("tracked", "aims"),
        ("A note.",),
        OPTIONAL,
    )
    lines = table.markdown().splitlines()
    assert lines[2] == f"| {' | '.join(HEAD)} |"
    assert len({line.count("|") for line in lines[2:5]}) == 1
    assert lines[4] == (
        "| HessMaxEV | 2.0 | 1.0-3.0 | 9.50 | 9.00-10.00 | 4.75 | 50% | 12 | 3.0 | 1.50 "
        "| <= 10: met; products 9 <= 8: MISSED |"
    )
    assert lines[-1] == "A note."
    text = printed(table)
    assert "step [ms]" in text  # which is no markup
    assert "products 9 <= 8: MISSED" in text
    assert "Left out" not in text
    narrow = printed(table, 80)
    assert "products 9 <= 8: MISSED" in narrow
    assert "9.00-10.00" not in narrow
    assert "Left out, for want of room: quartiles, quartiles, x plain" in narrow


def fake(aims: list[Aim]) -> subjects.Subject:
    table = Table("A table", ("what", "value"), [("this", "1")], ("what",))
    return lambda quick, tick: (tick(), Section([table], aims, {"rows": [1]}, "as [it] stands"))[1]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the results go; the subjects are swift."""
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results")
    made = {"good": fake([Aim("good", 1, 2)]), "bad": fake([Aim("bad", 3, 2)])}
    monkeypatch.setattr(bench, "SUBJECTS", made)
    return tmp_path / "results"


def test_everything_is_printed_and_kept(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--quick"]) == 0
    out = capsys.readouterr().out
    for words in ("A table", "as [it] stands", "1 of 3 aims are missed", "bad 3 <= 2: MISSED"):
        assert words in out
    record = json.loads((results / "quick.json").read_text(encoding="utf-8"))
    assert record["sections"] == {"good": {"rows": [1]}, "bad": {"rows": [1]}}
    assert [aim["met"] for aim in record["aims"]] == [True, False, True]
    assert {"processor", "threads", "torch"} <= record["machine"].keys()
    text = (results / "quick.md").read_text(encoding="utf-8")
    assert "| this | 1 |" in text
    assert "- bad 3 <= 2: MISSED" in text


@pytest.mark.parametrize(
    ("arguments", "code"), [([], 0), (["--strict"], 1), (["--only", "good", "--strict"], 0)]
)
def test_missed_aims_count_only_if_wanted(results: Path, arguments: list[str], code: int) -> None:
    assert bench.main(arguments) == code
    assert (results / ("partial.json" if "--only" in arguments else "full.json")).exists()


def test_a_subject_that_fails_leaves_the_others(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(quick: bool, tick: Callable[[], None]) -> Section:
        raise ValueError("no [luck]")

    monkeypatch.setitem(bench.SUBJECTS, "good", broken)
    assert bench.main([]) == 1
    assert "ValueError: no [luck]" in capsys.readouterr().out
    assert not (results / "full.json").exists()
    record = json.loads((results / "partial.json").read_text(encoding="utf-8"))
    assert list(record["sections"]) == ["bad"]


@pytest.mark.parametrize("names", ["nothing", "good,nothing", ","])
def test_unknown_subjects_are_refused(
    names: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["--only", names])
    assert ended.value.code == 2
    assert "Choose from good, bad" in capsys.readouterr().err


def test_help_names_the_subjects(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert all(name in out for name in subjects.SUBJECTS)


def test_budgets_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, Any] = dict.fromkeys(overhead.Overhead.__dataclass_fields__, 0.0)
    values |= {"network": "mlp", "preset": "full", "batch_size": 4, "steps": 500}
    values |= {"budget": 0.05, "processor": 0.08, "tracked": {"Loss": 9}}
    monkeypatch.setattr(overhead, "measure", lambda quick, progress: [overhead.Overhead(**values)])
    section = subjects.overhead(True, nothing)
    assert [(aim.value, aim.met) for aim in section.aims] == [(pytest.approx(3), False)]
    assert "Loss 9" in section.tables[0].markdown()


def test_what_a_training_took_is_compared_with_plain_steps_of_its_time() -> None:
    """A machine that grows slower, steps of 1 % more, two interruptions and two tracked steps."""
    speed = [1 + step / 400 for step in range(400)]
    plain, seconds = list(speed), [1.01 * s for s in speed]
    plain[17] = seconds[31] = 50.0
    for step in (100, 350):
        seconds[step] += 4.0
    taken = overhead.excess(seconds, plain, {100, 350})
    assert taken == pytest.approx(0.01 + 8 / sum(speed), abs=2e-4)
    assert overhead.excess(plain, plain, ()) == pytest.approx(0, abs=1e-4)


def test_budgets_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(overhead.NETWORKS, "tiny", (tiny, 4))
    (row,) = overhead.of_network("tiny", 4, steps=60, presets=("economy",))
    assert (row.network, row.preset, row.steps) == ("tiny", "economy", 60)
    assert row.tracked["Loss"] > 0
    assert 0 < row.own < math.inf
    assert json.loads(json.dumps(asdict(row))) == asdict(row)


def test_the_log_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import log

    figures = [log.Figure("rows", 6.5, "µs", 20), log.Figure("file", 30.0, "bytes", 24)]
    monkeypatch.setattr(log, "measure", lambda quick: figures)
    section = subjects.log(True, nothing)
    assert [aim.met for aim in section.aims] == [True, False]
    assert section.tables[0].rows[1] == ("file", "30", "bytes", "<= 24: MISSED")


# -- the README -----------------------------------------------------------------------------------


def row(tracked: str, ratio: float, earlier: float | None = None) -> dict[str, Any]:
    return {
        "tracked": tracked,
        "ratio": {"median": ratio},
        "earlier": earlier,
        "nanoseconds": 9.6 if tracked == EXACT else None,
        "aims": [{"what": "x plain", "value": ratio, "limit": 3.5}],
    }


def made_up() -> dict[str, Any]:
    rows = [row(ECONOMY, 2.52, 228), row("business", 3.0), row("full", 12), row(SELDOM, 1.15)]
    rows += [row(IDLE, 1.0042), row(EXACT, 80)]
    sections = {name: {"batch_size": 128, "rows": rows} for name in readme.NETWORKS}
    machine = {"processor": "some processor", "threads": 2, "torch": "2.14"}
    return {"machine": machine, "sections": sections, "quick": False, "aims": []}


def test_the_table_of_the_readme() -> None:
    table = readme.table(made_up())
    lines = table.splitlines()
    assert "| MLP 784-1000-500-100-10 | 2.5 × | 3.0 × | 12.0 × | 1.150 × | 1.004 × |" in lines
    assert "| Cockpit 1.0.2 | 228 × |  |  |  |  |" in lines
    assert "some processor, 2 threads, torch 2.14" in " ".join(lines)
    assert "Aims that are missed: MLP 784-1000-500-100-10, full (3.5 ×);" in " ".join(lines)
    assert max(map(len, table.splitlines())) <= 120
    text = f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n"
    assert readme.updated(text, made_up()) == text.replace("old", table)


def test_a_table_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="once each"):
        readme.updated("no marks", made_up())
    with pytest.raises(ValueError, match="--quick"):
        readme.updated(f"{readme.BEGIN}\n{readme.END}", made_up() | {"quick": True})


def test_the_readme_is_checked_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, results = tmp_path / "README.md", tmp_path / "full.json"
    monkeypatch.setattr(readme, "README", page)
    monkeypatch.setattr(readme, "RESULTS", results)
    monkeypatch.setattr(readme, "FAULTS", tmp_path / "faults.json")
    marks = readme.BEGIN, readme.END, readme.RATES_BEGIN, readme.RATES_END
    page.write_text("\n".join(marks), encoding="utf-8")
    assert readme.main([]) == 2
    assert "Run python -m benchmarks first" in capsys.readouterr().err
    results.write_text("{}", encoding="utf-8")
    assert readme.main([]) == 2
    results.write_text(json.dumps(made_up()), encoding="utf-8")
    assert readme.main(["--check"]) == 1
    assert readme.main([]) == 0
    assert readme.main(["--check"]) == 0
    assert "2.5 ×" in page.read_text(encoding="utf-8")


def test_the_table_in_the_readme_is_that_of_the_results() -> None:
    results = json.loads(readme.RESULTS.read_text(encoding="utf-8"))
    text = readme.README.read_text(encoding="utf-8")
    assert readme.updated(text, results) == text
