"""The command: exit codes, what it prints, and the meaning of every value in the table."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cockpit import __version__, cli
from cockpit.cli import demo, plot
from cockpit.cli.commands import COMMANDS as REGISTERED
from cockpit.cli.entry import _parser
from cockpit.findings import Finding
from cockpit.log import ParameterInfo, Row, RunWriter
from cockpit.presets import PRESETS
from cockpit.run import open_run
from cockpit.summary import readings

PARAMETERS = [
    ParameterInfo("fc.weight", (3, 4), "float32"),
    ParameterInfo("fc.bias", (3,), "float32"),
]
COMMANDS = tuple(command.name for command in REGISTERED)


def write(path: Path, *columns: tuple[str, object], settings: dict | None = None) -> Path:
    """Write a run; a column is a quantity and its values over the steps, each a number, an array
    or a dict by part."""
    writer = RunWriter(path, settings=settings, parameters=PARAMETERS)
    for quantity, values in columns:
        for step, value in enumerate(values):
            parts = value if isinstance(value, dict) else {"": value}
            rows = []
            for part, one in parts.items():
                key, _, parameter = part.rpartition("/") if "fc." in part else (part, "", "")
                rows.append(Row(quantity, one, key, parameter, detail=part.startswith("hist/")))
            writer.record(step, rows)
    writer.close()
    return path


def per_parameter(weight: list[float], bias: list[float]) -> list[dict[str, float]]:
    return [{"fc.weight": w, "fc.bias": b} for w, b in zip(weight, bias, strict=True)]


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    settings = {
        "model": "Net",
        "optimizers": [{"class": "SGD", "lr": 0.1, "momentum": 0.9, "nesterov": False}],
    }
    columns = (("Loss", np.linspace(2, 1, 30)), ("Alpha", [0.12] * 30))
    return write(tmp_path / "run.db", *columns, settings=settings)


# -- exit codes --------------------------------------------------------------------------------------


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_every_help_has_an_example(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*command, "--help"])
    assert ended.value.code == 0
    assert f"Example: cockpit {' '.join(command)}" in capsys.readouterr().out


def test_help_loads_nothing_of_the_reading_side() -> None:
    code = (
        "import sys\nfrom cockpit.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "assert not {'pandas', 'matplotlib', 'cockpit.run', 'cockpit.demo'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cockpit", "show", "nowhere.db"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "nowhere.db" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_command_it_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert all(name in printed.err for name in COMMANDS)


@pytest.mark.parametrize(
    "arguments",
    [
        ["fly"],
        ["show"],
        ["demo", "--epochs", "0"],
        ["demo", "--epochs", "1.5"],
        ["demo", "--batch-size", "1"],
        ["demo", "--lr", "nan"],
        ["demo", "--lr", "-1"],
        ["demo", "--preset", "luxury"],
    ],
)
def test_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: cockpit")


def test_a_user_error_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no run file, whatever its name")
    for path in (tmp_path / "missing.db", text):
        for command in ("show", "watch", "plot", "report", "export"):
            assert cli.main([command, str(path)]) == 2
            printed = capsys.readouterr()
            assert printed.out == ""
            assert printed.err.startswith("cockpit: ")
            assert str(path) in printed.err
            assert printed.err.count("\n") == 1


@pytest.mark.parametrize(("error", "code"), [(OSError("disk full"), 1), (KeyboardInterrupt(), 130)])
def test_failures(
    error: BaseException,
    code: int,
    run_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise error

    monkeypatch.setattr(plot, "draw", fail)
    assert cli.main(["plot", str(run_file)]) == code
    assert capsys.readouterr().err.count("\n") == 1


def test_the_page_names_all_commands_and_its_lines_can_be_given() -> None:
    page = (Path(__file__).parents[1] / "docs" / "command-line.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `cockpit (\w+)` \|", page, flags=re.M)
    assert sorted(listed) == sorted(COMMANDS)
    lines = re.findall(r"^cockpit (.*)$", page, flags=re.M)
    examples = [command.example.removeprefix("cockpit ") for command in REGISTERED]
    for line in (*lines, *examples):
        assert _parser().parse_args(shlex.split(line)).command is not None, line


# -- show and plot -----------------------------------------------------------------------------------


def test_show(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["show", str(run_file)]) == 0
    out = capsys.readouterr().out
    assert f"{run_file}, closed" in out
    assert "30 tracked, 0 to 29" in out
    assert "Net, 2 tensors, 15 elements" in out
    assert "SGD lr=0.1 momentum=0.9\n" in out
    assert "everything that was due was checked" in out
    assert "slightly beyond the minimum of the local model" in " ".join(out.split())
    assert "\x1b" not in out
    table = out[out.index(" quantity") :].splitlines()
    assert max(map(len, table)) <= 80


def test_show_counts_what_was_not_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = RunWriter(tmp_path / "run.db")
    for step in range(3):
        writer.note(step, "not-checked", "Alpha", "the fit is [singular]")
    writer.note(None, "older-run-kept", "run-1.db", "it was in the way")
    writer.close()
    assert cli.main(["show", str(tmp_path / "run.db")]) == 0
    out = capsys.readouterr().out
    assert "Events     4" in out
    assert "not checked: Alpha (3 times): the fit is [singular]" in out
    assert "older run kept: run-1.db: it was in the way" in out


def test_show_has_the_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = RunWriter(tmp_path / "run.db")
    writer.finding(
        Finding(
            code="CP101",
            name="learning-rate-too-high",
            severity="error",
            step=7,
            title="The learning rate is [too] high",
            subjects=("fc.weight",),
            why="Steps overshoot.",
            action="Divide it by 3.",
            source="a paper",
        )
    )
    writer.close()
    assert cli.main(["show", str(tmp_path / "run.db")]) == 0
    out = capsys.readouterr().out
    assert "Findings   1" in out
    assert "CP101 learning-rate-too-high (error, step 7): The learning rate is [too] high" in out
    assert "Divide it by 3." in out


@pytest.mark.parametrize(
    ("quantity", "value", "words"),
    [
        ("HessMaxEV", 12.0, "largest eigenvalue of the {}"),
        ("HessTrace", {"fc.weight": 3.0}, "trace of the {}"),
        ("HessianSpectrum", {"smallest": 0.0, "largest": 3.0}, "eigenvalues of the {}"),
    ],
)
@pytest.mark.parametrize(("basis", "matrix"), [("ggn", "GGN"), ("hessian", "Hessian")])
def test_show_names_the_matrix(
    quantity: str,
    value: object,
    words: str,
    basis: str,
    matrix: str,
    tmp_path: Path,
) -> None:
    writer = RunWriter(tmp_path / "run.db", parameters=PARAMETERS)
    parts = value if isinstance(value, dict) else {"": value}
    rows = [
        Row(quantity, number, *(("", part) if "fc." in part else (part, "")))
        for part, number in parts.items()
    ]
    writer.record(0, rows)
    writer.note(0, "basis", quantity, f"curvature: {basis}; source: graph")
    writer.close()
    (reading,) = readings(open_run(tmp_path / "run.db"))
    assert words.format(matrix) in reading.meaning


def test_show_knows_a_run_that_was_not_closed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = RunWriter(tmp_path / "run.db")
    writer.record(0, [Row("Loss", 1.0)])
    writer.flush()
    assert cli.main(["show", str(tmp_path / "run.db")]) == 0
    writer.close()
    assert "run.db, running" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "name"),
    [([], "run.png"), (["-o", "deep/a.svg"], "deep/a.svg"), (["--dark", "-o", "b"], "b.png")],
)
def test_plot(
    arguments: list[str],
    name: str,
    run_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(run_file.parent)
    assert cli.main(["plot", "run.db", *arguments]) == 0
    assert capsys.readouterr().out == f"{name}\n"
    assert (run_file.parent / name).stat().st_size > 1000


def test_plot_refuses_what_is_no_picture(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = run_file.read_bytes()
    assert cli.main(["plot", str(run_file), "-o", str(run_file)]) == 2
    assert ".png, .pdf, .svg" in capsys.readouterr().err
    assert run_file.read_bytes() == before


# -- the table ---------------------------------------------------------------------------------------

HIST = np.array([0, 5, 90, 5, 0])
EDGES = np.linspace(-2.5, 2.5, 6)


def histograms(counts: np.ndarray, **details: object) -> list[dict[str, object]]:
    hist = {"hist": counts, "edges": EDGES, "nonfinite": 0, "hist/fc.bias": HIST, **details}
    return [hist, hist]


READ = [
    ("Alpha", [-1.4] * 9, "uphill"),
    ("Alpha", [-1.0] * 9, "no move"),
    ("Alpha", [-0.7] * 9, "far short of the minimum"),
    ("Alpha", [-0.3] * 9, "slightly short of the minimum"),
    ("Alpha", [0.0] * 9, "at the minimum"),
    ("Alpha", [7.0] * 100 + [0.3] * 9, "slightly beyond the minimum"),
    ("Alpha", [0.7, np.nan, 0.8], "far beyond the minimum"),
    ("Alpha", [1.7] * 9, "loss is higher than before"),
    ("Alpha", [np.nan], "not defined"),
    ("NormTest", [0.4] * 9, "well known: the batch is large enough"),
    ("NormTest", [0.988] * 9, "roughly known"),
    ("NormTest", [2.3] * 9, "a larger batch would give a better direction"),
    ("NormTest", [np.nan] * 9, "not defined"),
    ("NormTest-2", [2.3] * 9, "a larger batch would give a better direction"),
    ("InnerTest", [0.4] * 9, "downhill with high probability"),
    ("InnerTest", [0.8] * 9, "probably points downhill"),
    ("InnerTest", [1.4] * 9, "may well point uphill"),
    ("OrthoTest", [0.4] * 9, "well known"),
    ("OrthoTest", [0.988] * 9, "roughly known"),
    ("OrthoTest", [1.4] * 9, "most of the direction is noise"),
    ("Loss", np.linspace(2, 1, 40), "fell from 2"),
    ("Loss", [2.0] * 40, "has not fallen: it began at 2"),
    ("Loss", [2.0, 1.0], "it was 2 at step 0"),
    ("Loss", [2.0, np.inf], "diverged"),
    ("GradNorm", per_parameter([1, 2], [3, 1]), "from 1.50 in fc.weight to 2 in fc.bias"),
    ("GradNorm", per_parameter([1, 1], [1e-4, 1e-4]), "do not learn at the same pace"),
    ("GradNorm", per_parameter([1, 1], [1, 0]), "no gradient reaches fc.bias"),
    ("GradNorm", per_parameter([1, np.nan], [1, 1]), "not finite: fc.weight"),
    ("Distance", per_parameter([0], [0]), "where they began"),
    ("Distance", per_parameter([0, 1], [0, 0]), "not trained, still where they began: fc.bias"),
    ("Distance", per_parameter(list(range(20)), list(range(20))), "no slower than at first"),
    ("Distance", per_parameter(list(np.arange(20) ** 0.3), [1] * 20), "slower than at first, as usual"),
    ("Distance", per_parameter([9] * 20, [1] * 20), "standstill"),
    ("Distance", per_parameter(list(range(20, 0, -1)), [1] * 20), "coming back"),
    ("UpdateSize", per_parameter([1, 1], [0, 0]), "the length of one step"),
    ("UpdateSize", per_parameter([0, 0], [0, 0]), "leave the parameters as they are"),
    ("UpdateSize", per_parameter([np.nan] * 2, [0, 0]), "diverged"),
    ("GradHist1d", histograms(HIST), "few, as usual"),
    ("GradHist1d", histograms(HIST + 9), "check the scale of the inputs"),
    ("GradHist1d", histograms(HIST, nonfinite=3), "3 elements of gradients are not finite"),
    ("GradHist1d", histograms(HIST, **{"hist/fc.weight": HIST * [0, 0, 1, 0, 0]}), "elements of fc.weight"),
    ("Time", [10.0, 10.5, 11.0], "for one step; 1 s in all"),
    ("Time", [10.0], "the only value so far"),
    ("learning_rate", [0.1, 0.1], "constant so far"),
    ("learning_rate", [0.0, 0.5, 0.1], "it began at 0, 0.500 at its highest"),
    ("epoch_count", [1.5], "epochs so far"),
    ("test_accuracy", [0.5, 0.8, 0.7], "the best was 0.800 at step 1"),
    ("test_loss", [0.9, 0.8], "the best so far"),
    ("test_loss", [2.321, 2.320], "hardly better than at first: it began at 2.32"),
    ("test_loss", [0.9], "the only value so far"),
    ("batch_size", [64.0] * 3, "constant so far"),
    ("Mine", [3.0, -1.0, 2.0], "between −1 and 3 so far"),
    ("Mine", [{"a": 1.0, "b": 2.0}], "from 1 to 2"),
    ("Mine", [np.arange(6.0).reshape(2, 3)], "elements from 0 to 5"),
    ("Mine", [np.nan], "never a finite number"),
]  # fmt: skip


@pytest.mark.parametrize(("quantity", "values", "meaning"), READ)
def test_what_a_value_means(quantity: str, values: object, meaning: str, tmp_path: Path) -> None:
    (reading,) = readings(open_run(write(tmp_path / "run.db", (quantity, values))))
    assert reading.quantity == quantity
    assert meaning in reading.meaning
    assert reading.value


def test_a_step_is_compared_with_the_distance(tmp_path: Path) -> None:
    ones, far = per_parameter([1] * 30, [0] * 30), per_parameter([100] * 30, [0] * 30)
    run = open_run(write(tmp_path / "a.db", ("UpdateSize", ones), ("Distance", far)))
    assert readings(run)[0].meaning == "one step is 1 % of the distance from the start"
    run = open_run(write(tmp_path / "b.db", ("UpdateSize", ones), ("Distance", ones)))
    assert "the training oscillates" in readings(run)[0].meaning


@pytest.mark.parametrize(
    ("rate", "expected"), [([], "--lr 0.5"), (["--lr", "0.5"], "the usual rate")]
)
def test_the_demonstration_proposes_another_rate(
    rate: list[str],
    expected: str,
    run_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_file.rename(run_file.with_name("demo.db"))
    monkeypatch.setattr("cockpit.demo.train", lambda *args, **options: 0.5)
    monkeypatch.setattr(demo, "draw", lambda run, path, **options: path)
    assert cli.main(["demo", "--out", str(run_file.parent), *rate]) == 0
    assert expected in capsys.readouterr().out.partition("Next:")[2]


def test_the_presets_of_the_demonstration_are_those_that_there_are() -> None:
    assert list(demo.PRESETS) == list(PRESETS)
