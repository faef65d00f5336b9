"""Exports: what comes out is what went in, read back with the programs that it is for."""

from __future__ import annotations

import builtins
import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from cockpit import Cockpit, cli, quantities
from cockpit.cli import export as command
from cockpit.errors import InvalidArgument, Unsupported
from cockpit.export import FORMATS, TABLES, export
from cockpit.findings import Finding
from cockpit.integrations.tensorboard import TensorBoardTracker
from cockpit.log import ParameterInfo, Row, RunWriter, write_json
from cockpit.run import Run, open_run

VALUES = (0.1, 1 / 3, np.nan, np.inf, -np.inf, 1e-300, -0.0, 12345678901234567.0)

ARRAYS = (
    np.arange(6).reshape(2, 3),
    np.array([1.5, np.nan, np.inf], dtype=np.float32),
    np.array([1 + 2j, -1j]),
    np.zeros((0, 4)),
    np.array([[True], [False]]),
)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    parameters = [ParameterInfo(name, (2,), "float32") for name in ("w,\n", 'b"')]
    writer = RunWriter(tmp_path / "run.db", parameters=parameters)
    for step, value in enumerate(VALUES):
        rows = [Row("Loss", value), Row("GradNorm", value, parameter="w,\n")]
        arrays = [Row("Arrays", ARRAYS[step], key="a")] if step < len(ARRAYS) else []
        writer.record(step, [*rows, Row("GradNorm", 1.0, parameter='b"'), *arrays])
    writer.note(3, "not-checked", "Alpha", 'a, "b"\nc')
    writer.note(None, "older-run-kept", "x", "y")
    writer.finding(
        Finding(
            code="CP101",
            name="too-high",
            severity="error",
            step=3,
            title="Too, high",
            why="w",
            action="a",
            source="s",
            subjects=("w,\n", "x"),
            evidence={"alpha": 1.5, "names": ["a"]},
        )
    )
    writer.close()
    return open_run(tmp_path / "run.db")


def read_csv(source: Any) -> pd.DataFrame:
    """Read steps and numbers to the last bit, which pandas does by itself in later versions only."""
    found = pd.read_csv(source, dtype=str, keep_default_na=False)
    for name in found:
        kind = int if name == "step" else float
        with suppress(ValueError):
            found[name] = found[name].map(kind)
    return found


def equal(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Compare values to the last bit."""
    assert list(found.columns) == list(expected.columns)
    assert len(found) == len(expected) > 0
    for name in expected:
        if expected[name].dtype == np.float64:
            np.testing.assert_array_equal(found[name].to_numpy(float), expected[name].to_numpy())
        else:
            assert found[name].tolist() == expected[name].tolist()


# -- tables ---------------------------------------------------------------------------------------


def test_numbers_as_csv(run: Run, tmp_path: Path) -> None:
    export(run, "csv", tmp_path / "a.csv")
    equal(read_csv(tmp_path / "a.csv"), run.scalars())


def test_numbers_as_parquet(run: Run, tmp_path: Path) -> None:
    export(run, "parquet", tmp_path / "a.parquet")
    equal(pd.read_parquet(tmp_path / "a.parquet"), run.scalars())


@pytest.mark.parametrize(("kind", "read"), [("csv", read_csv), ("parquet", pd.read_parquet)])
def test_all_numbers_side_by_side(kind: str, read: Any, run: Run, tmp_path: Path) -> None:
    export(run, kind, tmp_path / "a", table="wide")
    equal(read(tmp_path / "a"), run.wide().reset_index())


def restored(row: Any) -> np.ndarray:
    """Return the array that a row stands for."""
    values = np.array(row.value, dtype=np.float64)
    dtype = np.dtype(row.dtype)
    if dtype.kind == "c":
        values = values.reshape(-1, 2) @ np.array([1, 1j])
    return values.astype(dtype).reshape([int(size) for size in row.shape])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_arrays_come_back(kind: str, run: Run, tmp_path: Path) -> None:
    export(run, kind, tmp_path / "a", table="arrays")
    if kind == "csv":
        found = read_csv(tmp_path / "a")
        lists = {name: found[name].map(json.loads) for name in ("shape", "value")}
        found = found.assign(**lists)
    else:
        found = pd.read_parquet(tmp_path / "a")
    rows = list(found.itertuples())
    assert len(rows) == len(ARRAYS)
    for row, expected in zip(rows, ARRAYS, strict=True):
        assert (row.quantity, row.part) == ("Arrays", "a")
        assert restored(row).dtype == expected.dtype
        np.testing.assert_array_equal(restored(row), expected)


def test_events(run: Run, tmp_path: Path) -> None:
    export(run, "csv", tmp_path / "a.csv", table="events")
    found = read_csv(tmp_path / "a.csv")
    expected = run.events()
    assert found["message"].tolist() == expected["message"].tolist() == ['a, "b"\nc', "y"]
    assert found["step"].tolist() == ["3", ""]
    assert pd.to_datetime(found["time"]).tolist() == expected["time"].tolist()
    export(run, "parquet", tmp_path / "a.parquet", table="events")
    stored = pd.read_parquet(tmp_path / "a.parquet")
    assert stored["message"].tolist() == expected["message"].tolist()
    assert stored["step"].isna().tolist() == [False, True]


@pytest.mark.parametrize(("kind", "read"), [("csv", read_csv), ("parquet", pd.read_parquet)])
def test_findings(kind: str, read: Any, run: Run, tmp_path: Path) -> None:
    export(run, kind, tmp_path / "a", table="findings")
    (row,) = read(tmp_path / "a").to_dict("records")
    parts = {name: json.loads(row[name]) for name in ("subjects", "evidence")}
    found = Finding.from_record({**row, **parts, "instrument": None})
    assert (found,) == run.finding_records()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("table", TABLES)
def test_an_empty_run_has_the_columns(kind: str, table: str, tmp_path: Path) -> None:
    RunWriter(tmp_path / "run.db").close()
    empty = open_run(tmp_path / "run.db")
    export(empty, kind, tmp_path / "a", table=table)
    found = read_csv(tmp_path / "a") if kind == "csv" else pd.read_parquet(tmp_path / "a")
    assert found.empty
    assert "step" in found.columns


def test_long_tables_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cockpit.export import csv

    monkeypatch.setattr(csv, "ROWS", 7)
    writer = RunWriter(tmp_path / "run.db")
    for step in range(20):
        writer.record(step, [Row("Loss", float(step))])
    writer.close()
    told: list[tuple[int, int]] = []
    run = open_run(tmp_path / "run.db")
    export(run, "csv", tmp_path / "a.csv", on_progress=lambda *done: told.append(done))
    assert told == [(7, 20), (14, 20), (20, 20)]
    equal(read_csv(tmp_path / "a.csv"), run.scalars())


# -- a run as a whole -----------------------------------------------------------------------------


def trained(path: Path, **options: Any) -> Cockpit:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracked = [quantities.Loss(), quantities.GradNorm(), quantities.GradHist1d(bins=9)]
    watch = Cockpit(model, [*tracked, quantities.Alpha()], optimizer=optimizer, log=path, **options)
    for step in range(4):
        x, y = torch.randn(6, 4), torch.randint(3, (6,))
        losses = nn.functional.cross_entropy(model(x), y, reduction="none")
        loss = losses.mean()
        optimizer.zero_grad()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        optimizer.step()
    return watch


def test_json_is_that_of_cockpit_1(run: Run, tmp_path: Path) -> None:
    export(run, "json-v1", tmp_path / "a.json")
    back = open_run(tmp_path / "a.json")
    np.testing.assert_array_equal(back.series("Loss").to_numpy(), VALUES)
    export(back, "json-v1", tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_json_is_what_a_training_writes(run: Run, tmp_path: Path) -> None:
    from cockpit.log import RunFile

    export(run, "json-v1", tmp_path / "a.json")
    with RunFile(run.path) as file:
        write_json(tmp_path / "b.json", file.output(metrics=True))
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def stored(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"histograms": 0, "scalars": 0})
    found.Reload()
    return found


def test_event_files_are_those_of_a_training_that_forwards(tmp_path: Path) -> None:
    watch = trained(tmp_path / "run.db", trackers=[TensorBoardTracker(tmp_path / "live")])
    watch.log(2, test_loss=0.5)
    watch.close()
    run = open_run(tmp_path / "run.db")
    export(run, "tensorboard", tmp_path / "exported")
    live, found = stored(tmp_path / "live"), stored(tmp_path / "exported")
    assert set(found.Tags()["scalars"]) == set(live.Tags()["scalars"])
    for name in found.Tags()["scalars"]:
        pairs = [[(e.step, e.value) for e in of.Scalars(name)] for of in (found, live)]
        assert sorted(pairs[0]) == sorted(pairs[1])
    names = found.Tags()["histograms"]
    assert set(names) == set(live.Tags()["histograms"])
    assert "cockpit/GradHist1d/0.weight" in names
    for name in names:
        pairs = [
            {
                e.step: (e.histogram_value.bucket_limit, e.histogram_value.bucket)
                for e in of.Histograms(name)
            }
            for of in (found, live)
        ]
        assert pairs[0] == pairs[1]
    times = run.times.set_index("step")["wall"]
    for event in found.Scalars("cockpit/Loss"):
        assert event.wall_time == pytest.approx(times[event.step], abs=1e-3)
    assert any("not-checked" in tag for tag in found.Tags()["tensors"])


def test_findings_are_in_event_files(run: Run, tmp_path: Path) -> None:
    export(run, "tensorboard", tmp_path / "tb")
    found = stored(tmp_path / "tb")
    assert {"cockpit/error/text_summary", "cockpit/older-run-kept/text_summary"} <= set(
        found.Tags()["tensors"]
    )


def test_event_files_are_not_mixed(run: Run, tmp_path: Path) -> None:
    export(run, "tensorboard", tmp_path / "tb")
    with pytest.raises(InvalidArgument, match="has event files already"):
        export(run, "tensorboard", tmp_path / "tb")


# -- what is refused ------------------------------------------------------------------------------


def test_formats_and_tables_are_named(run: Run) -> None:
    with pytest.raises(InvalidArgument, match="csv, parquet, json-v1, tensorboard, got 'xls'"):
        export(run, "xls", "a.xls")
    with pytest.raises(InvalidArgument, match="scalars, wide, arrays, events, findings, got 'x'"):
        export(run, "csv", "a.csv", table="x")
    with pytest.raises(InvalidArgument, match="Give a path"):
        export(run, "tensorboard", io.BytesIO())


@pytest.mark.parametrize(
    ("kind", "module", "extra"),
    [("parquet", "pyarrow", "parquet"), ("tensorboard", "torch.utils.tensorboard", "tensorboard")],
)
def test_a_missing_extra_is_named(
    kind: str, module: str, extra: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name == module:
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(Unsupported, match=rf"pip install 'torch-cockpit\[{extra}\]'"):
        export(run, kind, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_nothing_is_left_of_what_fails(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("old")

    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(run, "csv", tmp_path / "a.csv", on_progress=fail)
    assert (tmp_path / "a.csv").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "run.db"]


# -- the command ----------------------------------------------------------------------------------


def test_the_help_knows_all_formats() -> None:
    assert set(command.FORMATS) == set(FORMATS)
    assert command.TABLES == TABLES


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ([], "run.csv"),
        (["--format", "parquet"], "run.parquet"),
        (["--format", "json-v1"], "run.json"),
        (["--format", "tensorboard"], "run-tensorboard"),
        (["-o", "deep/x.csv", "--table", "events"], "deep/x.csv"),
    ],
)
def test_the_command(
    arguments: list[str],
    name: str,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(run.path.parent)
    assert cli.main(["export", "run.db", *arguments]) == 0
    assert capsys.readouterr().out == f"{name}\n"
    assert Path(name).exists()


def test_standard_output(run: Run, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert cli.main(["export", str(run.path), "-o", "-"]) == 0
    equal(read_csv(io.BytesIO(capfdbinary.readouterr().out)), run.scalars())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}", "-o", "{run}"], "is a run file and is not replaced"),
        (["nowhere.db"], "nowhere.db"),
        (["{run}", "--format", "tensorboard", "-o", "-"], "Give a path"),
        (["{run}", "--format", "tensorboard", "-o", "{run}"], "is a file"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    before = run.path.read_bytes()
    assert cli.main(["export", *(one.format(run=run.path) for one in arguments)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert run.path.read_bytes() == before
