"""The examples run by themselves, say what they are for, and their answers hold."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PATHS = sorted(EXAMPLES.glob("*.py"))
TABLE = (EXAMPLES / "README.md").read_text(encoding="utf-8")

# By example: arguments with which it takes less time, and what it then prints, in this order.
RUNS: dict[str, tuple[list[str], list[str]]] = {
    "01_basic_loop": (
        ["--epochs", "1"],
        [r"62 steps, loss 2\.\d+ -> [01]\.", r"median alpha [-+]", r"noise / gradient \d"],
    ),
    "02_own_quantity": (["--steps", "20"], [r"Of 64 samples, [1-6]?\d do at first"]),
    "03_learning_rate": (
        ["--steps", "20", "--lr", "0.003", "0.3"],
        [
            r"rate 0\.003 .* median alpha -",
            r"rate 0\.3 ",
            r"best learning rate on the test images is 0\.3;",
        ],
    ),
    "04_input_scale": (
        ["--steps", "1"],
        [r"normalised:   0\.00%", r"raw +: +[2-9]\.\d+%", r"Yes: they pile up"],
    ),
    "05_vanishing_gradients": (
        ["--steps", "3"],
        [
            r"ReLU: the gradient reaches the input's layer",
            r"Sigmoid: the gradient vanishes on its way",
        ],
    ),
    "06_edge_of_stability": (["--steps", "5"], [r"the sharpness starts at \d", "has not come"]),
    "07_text_transformer": (
        ["--steps", "12"],
        [r"12 steps, loss 4\.\d+ -> [23]\.", r"every part learns", r"Spread of the attention"],
    ),
    "08_lightning": (["--epochs", "1"], [r"32 steps, accuracy", r"layers\.3\.weight +0\.0"]),
    "09_transformers": (["--epochs", "1"], [r"64 steps, loss 3\.\d+ ->", r"In the second half"]),
    "10_two_processes": (["--steps", "4"], [r"Alpha +of 3 steps", r"Yes, up to rounding"]),
    "11_doctor": (
        ["--steps", "12"],
        [r"CP301 error, since step 0", r"And without", r"Gone: .*\bsoftmax"],
    ),
}


def test_every_example_is_run_and_listed() -> None:
    assert list(RUNS) == [path.stem for path in PATHS]
    assert re.findall(r"^\| \[`(\S+)\.py`\]\(\1\.py\) \|", TABLE, flags=re.M) == list(RUNS)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_example(path: Path, tmp_path: Path) -> None:
    arguments, expected = RUNS[path.stem]
    run = subprocess.run(
        [sys.executable, str(path), *arguments, "--out", "here"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout.partition("\n")[0].endswith("?")  # the question, first
    found = re.search(".*".join(f"(?:{one})" for one in expected), run.stdout, flags=re.S)
    assert found, run.stdout
    (picture,) = re.findall(r"^Pictures?: (\S+)$", run.stdout, flags=re.M)
    assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    assert [one.name for one in tmp_path.iterdir()] == ["here"]  # nothing lies elsewhere
    assert list((tmp_path / "here").glob("*.db"))


# What Lightning calls in PyTorch.
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_help(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("sys.argv", [str(path), "--help"])
    threads = torch.get_num_threads()
    with pytest.raises(SystemExit) as done:
        runpy.run_path(str(path), run_name="__main__")
    torch.set_num_threads(threads)
    assert done.value.code == 0
    said = capsys.readouterr().out
    assert f"usage: {path.name}" in said
    for option in (*RUNS[path.stem][0], "--out"):
        assert option in said or not option.startswith("--")
    assert list(tmp_path.iterdir()) == []  # to ask costs nothing


def test_the_sharpness_rises_to_the_edge_of_stability(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(EXAMPLES / "06_edge_of_stability.py"))["main"]
    threads = torch.get_num_threads()
    (result,) = main(["--lr", "0.2", "--steps", "300", "--out", str(tmp_path)])
    assert torch.get_num_threads() == threads
    assert result.bound == 10
    assert result.sharpness.iloc[0] < 5  # far below the edge at first
    assert 50 < result.reached < 250
    assert 0.8 < result.late < 1.2
    assert (result.loss.loc[: result.reached].diff().iloc[1:] < 0).all()
    assert result.alpha.loc[100:150].median() < -0.9
    assert result.alpha.iloc[-2:].median() > 0.5
    assert f"It is there at step {result.reached}," in capsys.readouterr().out
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"edge_of_stability_0.2.db", "edge_of_stability.png"}


def test_an_edge_that_is_not_reached_is_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(EXAMPLES / "06_edge_of_stability.py"))["main"]
    (result,) = main(["--lr", "0.01", "--steps", "11", "--out", str(tmp_path)])
    assert result.reached is None
    assert "It has not come there in these steps" in capsys.readouterr().out
