"""The demonstration: it runs, twice too, and leaves what it promises."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cockpit.cli import main
from cockpit.demo import SmallCNN, fashion_mnist, train
from cockpit.instruments import INSTRUMENTS
from cockpit.log import RunWriter
from cockpit.run import open_run


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
