"""The demonstration and the examples: they run, twice too, and leave what they promise."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from cockpit.cli import main
from cockpit.demo import SmallCNN, fashion_mnist, train
from cockpit.instruments import INSTRUMENTS
from cockpit.log import RunWriter
from cockpit.run import open_run

EXAMPLES = Path(__file__).parents[1] / "examples"
SHORTER = {"edge_of_stability": ["--steps", "5"]}
"""Arguments with which an example takes less time."""


def test_images() -> None:
    images = fashion_mnist()
    assert images.x_train.shape == (4000, 1, 28, 28)
    assert images.x_test.shape == (1000, 1, 28, 28)
    for labels, count in ((images.y_train, 400), (images.y_test, 100)):
        assert torch.bincount(labels).tolist() == [count] * 10
    assert images.x_train.mean().item() == pytest.approx(0, abs=1e-4)
    assert images.x_train.std().item() == pytest.approx(1, abs=1e-4)


def test_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for _ in range(2):  # the second one replaces what the first one left
        assert main(["demo", "--quick", "--out", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert {path.name for path in tmp_path.iterdir()} == {"demo.db", "demo.png"}
    assert str(tmp_path / "demo.db") in out
    assert str(tmp_path / "demo.png") in out
    assert "step 24/24  loss" in out
    assert "Test accuracy" in out
    assert "NormTest" in out
    run = open_run(tmp_path / "demo.db")
    assert (len(run.steps), run.status) == (24, "closed")
    # Everything was checked but Alpha of the last step, which is followed by none.
    events = run.events()
    assert events[events["kind"] != "basis"]["subject"].tolist() == ["Alpha"]
    recorded = set(run.quantities)
    due = [item for item in INSTRUMENTS if recorded.intersection(item.quantities)]
    assert all(item(run) is not None for item in due)


def test_the_demo_learns_and_repeats_itself(tmp_path: Path) -> None:
    threads, reports = torch.get_num_threads(), []
    runs = {}
    for name, seed in (("first", 0), ("second", 0), ("other", 1)):
        path = tmp_path / f"{name}.db"
        accuracy = train(path, seed=seed, max_steps=40, on_step=reports.append)
        assert accuracy > 0.4
        wide = open_run(path).wide()
        runs[name] = wide.drop(columns="Time")
    assert runs["first"].equals(runs["second"])
    assert not runs["first"].equals(runs["other"])
    assert [report.done for report in reports[:40]] == list(range(1, 41))
    assert torch.get_num_threads() == threads


def test_the_demo_keeps_the_runs_of_others(tmp_path: Path) -> None:
    RunWriter(tmp_path / "demo.db", settings={"model": "Precious"}).close()
    train(tmp_path / "demo.db", max_steps=1)
    assert open_run(tmp_path / "demo.db").settings["model"] == SmallCNN.__name__
    assert open_run(tmp_path / "demo-1.db").settings["model"] == "Precious"


def test_the_demo_refuses_to_overwrite_what_is_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "demo.db").write_text("my diary")
    assert main(["demo", "--quick", "--out", str(tmp_path)]) == 2
    assert (tmp_path / "demo.db").read_text() == "my diary"
    assert "demo.db" in capsys.readouterr().err


# What Lightning calls in PyTorch.
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_example(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(path), *SHORTER.get(path.stem, [])])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
    assert f"]({path.name})" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


def test_the_sharpness_rises_to_the_edge_of_stability(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(EXAMPLES / "edge_of_stability.py"))["main"]
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
    main = runpy.run_path(str(EXAMPLES / "edge_of_stability.py"))["main"]
    (result,) = main(["--lr", "0.01", "--steps", "11", "--out", str(tmp_path)])
    assert result.reached is None
    assert "It has not come there in these steps" in capsys.readouterr().out
