"""The JSON of Cockpit 1.0: what is written is read again, and never half of it."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cockpit.cli import main
from cockpit.errors import InvalidArgument, NotARunFile
from cockpit.log import JsonFile, ParameterInfo, Row, RunFile, RunWriter, json_v1, write_json
from cockpit.plotter import CockpitPlotter
from cockpit.plotting import animation
from cockpit.run import open_run

NAN, INF = math.nan, math.inf
NAMES = ("fc.weight", "fc.bias")
OUTPUT: dict[int, dict[str, Any]] = {
    0: {
        "Loss": 2.5,
        "GradNorm": [1.0, NAN],
        "GradHist1d": {"hist": np.arange(3), "edges": np.linspace(-1, 1, 4)},
        "Parameters": [np.ones((2, 3)), np.zeros(2)],
        "Time": 17.5,
        "train_loss": 3.0,
    },
    2: {"Loss": INF, "GradNorm": [-INF, 4.0], "learning_rate": 0.1},
    10: {"NormTest": 1.0},
    11: {"valid_accuracy": 0.5},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_json(tmp_path / "run", OUTPUT)


def written(tmp_path: Path, content: Any, name: str = "old.json") -> Path:
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


# -- writing --------------------------------------------------------------------------------------


def test_it_is_plain_json_with_nan_as_nan(path: Path) -> None:
    assert path.name == "run.json"
    text = path.read_text()
    content = json.loads(text)
    assert list(content) == ["0", "2", "10", "11"]
    assert content["0"]["GradHist1d"] == {"hist": [0, 1, 2], "edges": list(np.linspace(-1, 1, 4))}
    assert content["0"]["Parameters"] == [[[1.0] * 3] * 2, [0.0, 0.0]]
    assert '"GradNorm": [1.0, NaN]' in text
    assert '"Loss": Infinity' in text
    assert "-Infinity" in text


def test_the_ending_is_appended_once_and_folders_are_made(tmp_path: Path) -> None:
    for name in ("a/b/run", "a/b/run.json"):
        assert write_json(str(tmp_path / name), {}) == tmp_path / "a/b/run.json"
    assert write_json(tmp_path / "run.db", {}).name == "run.db.json"
    assert json.loads((tmp_path / "a/b/run.json").read_text()) == {}


def test_complex_values_become_two_arrays(tmp_path: Path) -> None:
    path = write_json(tmp_path / "run", {0: {"Mine": np.array([1 + 2j, 3j])}})
    assert json.loads(path.read_text())["0"]["Mine"] == {"real": [1.0, 0.0], "imag": [2.0, 3.0]}


@pytest.mark.parametrize("where", ["values", "sync", "replace"])
def test_a_failure_in_the_middle_leaves_the_old_file_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    before = path.read_bytes()

    def fail(*arguments: object) -> None:
        assert path.read_bytes() == before, "the old file is there until the new one is complete"
        raise OSError(28, "No space left on device")

    new: dict[int, dict[str, Any]] = {step: {"Loss": 1.0} for step in range(3000)}
    if where == "values":
        new[2999] = {"Loss": object()}
        expected: type[Exception] = AttributeError  # an object is no number
    else:
        monkeypatch.setattr(os, "fsync" if where == "sync" else "replace", fail)
        expected = InvalidArgument
    with pytest.raises(expected):
        write_json(path, new)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path], "nothing is left lying around"


def test_a_link_stays_a_link(path: Path) -> None:
    link = path.with_name("latest.json")
    link.symlink_to(path)
    write_json(link, {0: {"Loss": 1.0}})
    assert link.is_symlink()
    assert json.loads(path.read_text()) == {"0": {"Loss": 1.0}}


def test_where_nothing_can_be_written_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgument, match=r"run\.json cannot be written: .*Give the path of"):
        write_json(tmp_path / "file" / "run", {})


# -- reading --------------------------------------------------------------------------------------


def test_what_was_written_is_read(path: Path) -> None:
    run = open_run(path)
    assert (run.settings, run.status) == ({}, "closed")
    assert run.parameters == ["parameter0", "parameter1"]
    assert run.steps.tolist() == [0, 2, 10]
    assert run.times["wall"].tolist()[0] == 17.5
    assert np.isnan(run.times["wall"][1:]).all()
    assert set(run.quantities) == {name for values in OUTPUT.values() for name in values}
    assert run.series("Loss").to_dict() == {0: 2.5, 2: INF}
    norms = run.series("GradNorm")
    np.testing.assert_array_equal(norms["parameter0"], [1.0, -INF])
    np.testing.assert_array_equal(norms["parameter1"], [NAN, 4.0])
    assert run.wide().loc[11, "valid_accuracy"] == 0.5
    (hist,) = run.arrays("GradHist1d", "hist")["value"]
    assert hist.dtype == np.int64
    np.testing.assert_array_equal(hist, [0, 1, 2])
    shapes = {part: v.shape for part, v in run.arrays("Parameters")[["part", "value"]].values}
    assert shapes == {"parameter0": (2, 3), "parameter1": (2,)}
    assert run.events().empty
    assert len(run.scalars("GradNorm")) == 4
    assert repr(run).endswith("closed, 3 steps, 9 quantities)")


def test_a_run_file_written_as_json_is_the_same_run(tmp_path: Path) -> None:
    infos = [ParameterInfo(name, (2,), "float32") for name in NAMES]
    writer = RunWriter(tmp_path / "run.db", parameters=infos)
    rng = np.random.default_rng(0)
    for step in (3, 0, 20):
        rows = [Row("GradNorm", rng.normal(), parameter=name) for name in NAMES]
        rows += [Row("Stats", rng.normal(), key=key) for key in ("mean", "std")]
        rows += [Row("ParameterStats", rng.normal(), "mean", name) for name in NAMES]
        rows += [Row("Alpha", NAN), Row("epoch_count", step / 7, source="log")]
        rows += [Row("GradHist1d", rng.integers(0, 9, 5), key="hist")]
        writer.record(step, rows)
    writer.close()
    with RunFile(writer.path) as file:
        path = write_json(tmp_path / "copy", file.output(metrics=True))
    original, copy = open_run(writer.path), open_run(path)
    assert set(copy.quantities) == set(original.quantities)
    renamed = {name: f"parameter{place}" for place, name in enumerate(NAMES)}

    def table(run: Any) -> dict[tuple[Any, ...], Any]:
        frame = run.scalars()
        for old, new in renamed.items():
            frame["part"] = frame["part"].str.replace(old, new, regex=False)
        return {tuple(row[:3]): row[3] for row in frame.itertuples(index=False)}

    np.testing.assert_equal(table(copy), table(original))
    for step, values in original.series("GradHist1d", "hist").items():
        np.testing.assert_array_equal(copy.series("GradHist1d", "hist")[step], values)


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, {"0": {"Loss": 0}, "10": {"Loss": 10}, "2": {"Loss": 2}})
    assert open_run(path).series("Loss").to_dict() == {0: 0.0, 2: 2.0, 10: 10.0}


def test_a_second_quantity_of_a_kind_is_per_parameter_too(tmp_path: Path) -> None:
    run = open_run(written(tmp_path, {"0": {"GradNorm-2": [1, 2, 3]}}))
    assert run.series("GradNorm-2").shape == (1, 3)
    assert len(run.parameters) == 3


def test_lists_of_another_length_are_arrays(tmp_path: Path) -> None:
    run = open_run(written(tmp_path, {"0": {"GradNorm": [1, 2, 3], "UpdateRatio": [1, 2]}}))
    assert run.series("UpdateRatio")[0].tolist() == [1, 2]


def test_edges_of_two_lengths_are_parts(tmp_path: Path) -> None:
    hist = {"hist": [[1, 2, 3]], "edges": [[0, 1], [0, 1, 2, 3]]}
    run = open_run(written(tmp_path, {"0": {"GradHist2d": hist}}))
    assert run.series("GradHist2d", "hist")[0].shape == (1, 3)
    assert run.series("GradHist2d", "edges/1")[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "value", ["text", [1, "a"], [[1], 2], [{"a": 1}], ["a", [1] * 50], [[1, [2]], [3]]]
)
def test_what_cannot_be_read_is_an_event(tmp_path: Path, value: Any) -> None:
    content = {str(step): {"Loss": 1.0, "Odd": value} for step in range(3)}
    run = open_run(written(tmp_path, content))
    assert run.quantities == ["Loss"]
    (event,) = run.events().to_dict("records")
    assert (event["step"], event["kind"], event["subject"]) == (0, "not-read", "Odd")
    assert event["message"].endswith("(at 3 steps, first at 0)")


def test_null_is_nothing_and_in_a_list_nan(tmp_path: Path) -> None:
    run = open_run(written(tmp_path, {"0": {"Loss": 1, "test_loss": None, "GradNorm": [None, 2]}}))
    assert run.quantities == ["Loss", "GradNorm"]
    assert math.isnan(run.series("GradNorm")["parameter0"][0])
    assert run.events().empty


def test_numbers_too_large_are_infinite(tmp_path: Path) -> None:
    text = f'{{"0": {{"Loss": -1{"0" * 400}, "Mine": [1, 1{"0" * 400}], "More": [1{"0" * 30}]}}}}'
    run = open_run(written(tmp_path, text))
    assert run.series("Loss")[0] == -INF
    assert run.series("Mine")[0].tolist() == [1, INF]
    assert run.series("More")[0].tolist() == [1e30]


def test_an_empty_output_is_a_run_without_steps(tmp_path: Path) -> None:
    run = open_run(written(tmp_path, {}))
    assert (run.steps.tolist(), run.quantities, run.parameters) == ([], [], [])
    assert run.scalars().empty
    assert run.wide().empty


def test_a_name_without_the_ending_is_found(path: Path) -> None:
    assert open_run(path.with_suffix("")).path == path
    with pytest.raises(NotARunFile, match="There is no file"):
        open_run(path.with_name("other"))


def test_the_content_counts_not_the_name(tmp_path: Path) -> None:
    RunWriter(tmp_path / "run.json").close()
    assert open_run(tmp_path / "run.json").status == "closed"
    for start in ("", " \n", "\ufeff"):
        path = tmp_path / "run.db"
        path.write_text(start + '{"0": {"Loss": 1}}', encoding="utf-8")
        assert open_run(path).quantities == ["Loss"]


def test_it_is_parsed_once_and_anew_on_reload(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(
        json_v1, "_by_step", lambda p, old=json_v1._by_step: read.append(p) or old(p)
    )
    run = open_run(path)
    run.scalars()
    run.arrays()
    run.events()
    assert len(read) == 1
    write_json(path, {0: {"Loss": 1.0}})
    assert run.series("Loss")[0] == 2.5
    run.reload()
    assert run.series("Loss")[0] == 1.0
    assert len(read) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"0": {"Loss": 1.0, "GradNo', "is not whole JSON .*cut short or damaged.*Take an older"),
        ("[1, 2]", "is JSON, but not an output of Cockpit 1.0.*begins with a list"),
        ('{"name": {}}', "'name' is no number of a step.*Cockpit.write"),
        ('{"-1": {}}', "'-1' is no number of a step"),
        (f'{{"{"9" * 30}": {{}}}}', "is no number of a step"),
        ('{"0": 1.0}', "step 0 has no values by name"),
        ('{"0": {"Loss": ' + "[" * 200_000, "nested too deeply"),
        ('{"0": {"Loss": ' + '{"a": ' * 200_000, "nested too deeply"),
        ('{"0": {"Loss": 1' + "0" * 5000 + "}}", "is not whole JSON"),
        ("hello", "is not whole JSON"),
        ("", "is empty"),
    ],
)  # fmt: skip
def test_foreign_files_are_refused_by_name(tmp_path: Path, content: str, message: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(NotARunFile, match=f"(?s)old.json.*{message}"):
        open_run(path)


def test_lists_nested_as_deeply_as_the_parser_allows_do_no_harm(tmp_path: Path) -> None:
    for depth in (70, 400, 900):
        path = written(
            tmp_path, '{"0": {"Loss": 1, "Odd": ' + "[" * depth + "1" + "]" * depth + "}}"
        )
        try:
            assert open_run(path).series("Loss")[0] == 1.0
        except NotARunFile as error:
            assert "nested too deeply" in str(error)  # noqa: PT017


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_bytes(b'{"0": \xff')
    with pytest.raises(NotARunFile, match="is not whole JSON"):
        open_run(path)


def test_huge_files_are_refused_before_they_are_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_v1, "MAX_BYTES", 10)
    with pytest.raises(NotARunFile, match=r"has \d+ bytes; JSON of more than 10 is not read\. Rec"):
        JsonFile(path)


# -- what else takes it ---------------------------------------------------------------------------


def test_the_command_line_takes_it(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "not known, 2 tensors\n" in shown
    assert "GradNorm" in shown
    assert main(["plot", str(path)]) == 0
    assert path.with_name("run.png").is_file()


def test_an_animation_is_made_from_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    monkeypatch.setattr(animation, "FRAMES", 3)
    made = CockpitPlotter(figsize=(6, 4)).build_animation(str(path), duration=40, loop=2)
    assert made == path.with_name("run.gif")
    with Image.open(made) as picture:
        assert picture.format == "GIF"
        assert picture.n_frames == 3
        assert picture.info["duration"] == 40
        assert picture.info["loop"] == 2
        assert picture.size[0] == animation.WIDTH
    assert sorted(one.name for one in path.parent.iterdir()) == ["run.gif", "run.json"]


def test_an_animation_refuses_what_it_cannot_make(path: Path, tmp_path: Path) -> None:
    plotter = CockpitPlotter(figsize=(6, 4))
    with pytest.raises(InvalidArgument, match="duration is the time of a frame in milliseconds"):
        plotter.build_animation(path, duration=0)
    with pytest.raises(InvalidArgument, match=r"loop must be 0 \(for ever\)"):
        plotter.build_animation(path, loop=-1)
    with pytest.raises(InvalidArgument, match="has no tracked steps yet"):
        plotter.build_animation(written(tmp_path, {}))
    with pytest.raises(NotARunFile, match="There is no file"):
        plotter.build_animation(tmp_path / "none.json")
