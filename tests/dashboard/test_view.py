"""What the page is told: pictures, lists, findings, settings and data."""

import csv
import io
import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
from dashboard.conftest import FINDING, HOSTILE, PARAMETERS, STEPS, write_run
from dashboard.conftest import rows_of as written
from dashboard.test_plotly import values

from cockpit.dashboard import about, opened, view
from cockpit.dashboard.download import rows_of
from cockpit.dashboard.library import Library
from cockpit.dashboard.opened import Shelf
from cockpit.errors import InvalidArgument
from cockpit.instruments import Heat, Line, Panel
from cockpit.log import Row, RunFile, RunWriter, write_json
from cockpit.run import open_run


@pytest.fixture
def shelf(folder: Path) -> Shelf:
    return Shelf(Library(folder))


def pictures(shelf: Shelf, *names: str, runs: tuple[str, ...] = ("first.db",), **query: object):
    answer = view.figures(shelf, view.Query(runs, names, **query))  # type: ignore[arg-type]
    assert not answer["rest"]
    return {one["name"]: one for one in answer["panels"]}


# -- the list of runs -----------------------------------------------------------------------------


def test_the_list_says_how_far_each_run_is(shelf: Shelf) -> None:
    found = {one.name: one.record() for one in shelf.summaries()}
    assert set(found) == {"first.db", "sweep/second.db", f"{HOSTILE}.db"}
    first = found["first.db"]
    assert (first["status"], first["steps"], first["last"]) == ("closed", STEPS, STEPS - 1)
    assert first["model"] == f"Net {HOSTILE}"
    assert json.loads(json.dumps(first)) == first


def test_a_run_is_live_until_it_is_closed_or_its_process_ends(tmp_path: Path) -> None:
    shelf = Shelf(Library(tmp_path))
    assert shelf.summaries() == []
    writer = write_run(tmp_path / "run.db", close=False)
    assert [one.status for one in shelf.summaries()] == ["live"]
    before = shelf.summaries()[0].stamp
    writer.record(STEPS, written(STEPS, np.random.default_rng(0)))
    writer.flush()
    after = shelf.summaries()[0]
    assert (after.steps, after.stamp == before) == (STEPS + 1, False)
    writer.close()
    assert [one.status for one in shelf.summaries()] == ["closed"]


@pytest.mark.parametrize(
    ("process", "age", "status"),
    [
        ({"pid": 2**22 + 1}, 0.0, "stopped"),
        ({"host": "elsewhere"}, 0.0, "live"),
        ({"host": "elsewhere"}, 3600.0, "stopped"),
    ],
)
def test_a_run_that_was_not_closed(process: dict[str, object], age: float, status: str) -> None:
    from cockpit.log.schema import this_process

    stamp = (1, 1, int((time.time() - age) * 1e9), 0, 0, 0)
    summary = opened.Summary("a.db", stamp, False, this_process() | process, 1, 0, 0.0, "")
    assert summary.status == status


def test_an_empty_helper_file_is_no_sign_of_life() -> None:
    now, then = (int((time.time() - age) * 1e9) for age in (0.0, 3600.0))
    elsewhere = {"pid": 1, "host": "elsewhere"}
    for size, status in ((0, "stopped"), (32, "live")):
        one = opened.Summary("a.db", (1, 1, then, 2, size, now), False, elsewhere, 1, 0, 0.0, "")
        assert one.status == status
        assert one.updated == pytest.approx((then if size == 0 else now) / 1e9)


def test_a_damaged_file_is_listed_and_takes_nothing_with_it(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "bad.db").write_bytes((folder / "first.db").read_bytes()[:5000])
    write_run(tmp_path / "good.db", steps=3)
    found = {one.name: one for one in Shelf(Library(tmp_path)).summaries()}
    assert found["bad.db"].status == "damaged"
    assert found["bad.db"].error
    assert found["good.db"].steps == 3


def test_the_json_of_cockpit_1_0_is_a_run(tmp_path: Path) -> None:
    write_json(tmp_path / "old", {step: {"NormTest": 1.0 + step} for step in range(5)})
    (tmp_path / "other.json").write_text('{"name": "no run"}')
    shelf = Shelf(Library(tmp_path))
    (found,) = shelf.summaries()
    assert (found.name, found.status, found.steps) == ("old.json", "closed", 5)
    assert pictures(shelf, "grad-tests", runs=("old.json",))["grad-tests"]["pictures"]
    assert about.settings(shelf, "old.json")["quantities"] == [{"name": "NormTest", "series": 1}]
    assert b"4,NormTest,,5.0" in b"".join(rows_of(tmp_path / "old.json", "csv"))


def test_some_steps_are_read_without_the_others(folder: Path) -> None:
    with RunFile(folder / "first.db") as file:
        assert file.extent() == (STEPS, 0, STEPS - 1)
        loss = next(one.id for one in file.series() if one.quantity == "Loss")
        steps, found = file.scalars_at(loss, [40, 17, 3, 10**6])
        _, every, whole = file.scalars(loss)
        assert steps.tolist() == [3, 17, 40]
        assert np.array_equal(found, whole[np.searchsorted(every, steps)], equal_nan=True)
        assert math.isnan(found[1])


# -- pictures -------------------------------------------------------------------------------------


def test_the_board_names_what_was_recorded(shelf: Shelf) -> None:
    board = view.board(shelf, ("first.db",))
    found = {one["name"]: one["quantities"] for one in board["instruments"]}
    assert found["loss"] == ["Loss"]
    assert found["grad-norm-layers"] == ["GradNorm"]
    assert f"quantity:my metric {HOSTILE}" in found
    assert board["parameters"] == PARAMETERS


def test_pictures_show_the_values_of_the_run(shelf: Shelf) -> None:
    (picture,) = pictures(shelf, "loss")["loss"]["pictures"]
    expected = open_run(shelf.library.folder / "first.db").series("Loss")
    raw = picture["figure"]["data"][0]
    assert np.array_equal(values(raw["x"]), expected.index)
    assert np.array_equal(values(raw["y"]), expected.to_numpy(), equal_nan=True)
    assert picture["how_to_read"]


def test_what_the_page_has_is_not_sent_again(shelf: Shelf) -> None:
    (first,) = pictures(shelf, "alpha")["alpha"]["pictures"]
    (second,) = pictures(shelf, "alpha", known={"alpha": first["tag"]})["alpha"]["pictures"]
    assert second == {"id": "alpha", "tag": first["tag"]}
    (third,) = pictures(shelf, "alpha", known={"alpha": first["tag"]}, style="dark")["alpha"][
        "pictures"
    ]
    assert "figure" in third


def test_new_values_show_up(tmp_path: Path) -> None:
    shelf = Shelf(Library(tmp_path))
    writer = write_run(tmp_path / "run.db", close=False)
    (before,) = pictures(shelf, "loss", runs=("run.db",))["loss"]["pictures"]
    writer.record(STEPS, written(STEPS, np.random.default_rng(0)))
    writer.flush()
    (after,) = pictures(shelf, "loss", runs=("run.db",))["loss"]["pictures"]
    assert values(before["figure"]["data"][0]["x"])[-1] == STEPS - 1
    assert values(after["figure"]["data"][0]["x"])[-1] == STEPS
    writer.close()


def test_layers_are_filtered_by_the_rows_of_a_picture(shelf: Shelf) -> None:
    one = pictures(shelf, "grad-norm-layers", layers=frozenset({"conv2"}))["grad-norm-layers"]
    assert one["rows"] == PARAMETERS  # the filter itself needs them all
    data = one["pictures"][0]["figure"]["data"]
    assert [trace["name"] for trace in data] == ["conv2.weight", "conv2.bias"]
    norms = open_run(shelf.library.folder / "first.db").series("GradNorm", "conv2.bias")
    assert np.array_equal(values(data[1]["y"]), norms.to_numpy())
    assert (
        pictures(shelf, "grad-norm-layers", layers=frozenset())["grad-norm-layers"]["pictures"]
        == []
    )
    assert pictures(shelf, "loss", layers=frozenset())["loss"]["pictures"]


def test_many_rows_stay_a_heat_map_and_few_become_lines() -> None:
    steps = np.arange(4.0)
    rows = tuple(f"layer{i}.weight" for i in range(20))
    panel = Panel(
        "T", "GRADIENTS", "", (Heat(steps, np.arange(80.0).reshape(20, 4), "norm", rows),)
    )
    some = view.of_layers(panel, frozenset(f"layer{i}" for i in range(10)))
    assert isinstance(some.marks[0], Heat)
    assert some.marks[0].names == rows[:10]
    few = view.of_layers(panel, frozenset({"layer3", "layer7.weight"}))
    assert [mark.label for mark in few.marks if isinstance(mark, Line)] == [
        "layer3.weight",
        "layer7.weight",
    ]
    assert few.marks[1].y.tolist() == [28, 29, 30, 31]
    assert view.of_layers(panel, frozenset({"layer"})) is None


def test_several_runs_lie_over_each_other(shelf: Shelf) -> None:
    runs = ("first.db", "sweep/second.db")
    found = pictures(shelf, "loss", "grad-norm-layers", runs=runs)
    (loss,) = found["loss"]["pictures"]
    named = [trace for trace in loss["figure"]["data"] if trace["showlegend"]]
    assert [trace["name"] for trace in named] == ["first", "second"]
    assert [len(values(trace["x"])) for trace in named] == [STEPS, 40]
    assert len({trace["line"]["color"] for trace in named}) == 2
    layers = found["grad-norm-layers"]["pictures"]
    assert [one["title"].rpartition(": ")[2] for one in layers] == ["first", "second"]


def test_runs_of_one_name_are_told_apart() -> None:
    labels = view.labels_of(("a/run.db", "b/run.db", "other.db"))
    assert labels == {"a/run.db": "a/run", "b/run.db": "b/run", "other.db": "other"}
    assert set(view.labels_of(("run.db", "run.json")).values()) == {"run.db", "run.json"}


def test_a_picture_that_fails_takes_no_other_with_it(shelf: Shelf, monkeypatch) -> None:
    def fail(self: object, name: str) -> None:
        if name == "alpha":
            raise ZeroDivisionError("by zero")
        return panel(self, name)

    panel = opened.OpenRun.panel
    monkeypatch.setattr(opened.OpenRun, "panel", fail)
    found = pictures(shelf, "alpha", "loss")
    assert found["alpha"]["error"] == "ZeroDivisionError: by zero"
    assert found["loss"]["pictures"]


def test_an_answer_ends_when_it_has_taken_long_enough(shelf: Shelf, monkeypatch) -> None:
    monkeypatch.setattr(view, "ENOUGH_SECONDS", -1.0)
    answer = view.figures(shelf, view.Query(("first.db",), ("alpha", "loss", "grad-norm")))
    assert [one["name"] for one in answer["panels"]] == ["alpha"]
    assert answer["rest"] == ("loss", "grad-norm")


# -- long runs ------------------------------------------------------------------------------------


def test_a_long_run_is_shown_in_part_until_all_of_it_is_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(opened, "LONG", 1000)
    monkeypatch.setattr("cockpit.dashboard.preview.STEPS", 50)
    writer = RunWriter(tmp_path / "long.db")
    for step in range(3000):
        writer.record(
            step,
            [Row("Loss", 99.0 if step == 1234 else 1.0), Row("Rare", 1.0)]
            if step % 2
            else [Row("Loss", 1.0)],
        )
    writer.record(1234, [Row("Loss", 99.0)])
    writer.close()
    shelf = Shelf(Library(tmp_path))
    first = pictures(shelf, "loss", runs=("long.db",))["loss"]
    assert first["coarse"]
    x = values(first["pictures"][0]["figure"]["data"][0]["x"])
    assert (len(x), x[0], x[-1]) == (50, 0, 2999)
    end = time.monotonic() + 30
    while (whole := pictures(shelf, "loss", runs=("long.db",))["loss"])["coarse"]:
        assert time.monotonic() < end
        time.sleep(0.02)
    y = values(whole["pictures"][0]["figure"]["data"][0]["y"])
    assert np.nanmax(y) == 99.0


# -- findings, settings, data ---------------------------------------------------------------------


def test_findings_and_events(shelf: Shelf) -> None:
    found = about.findings(shelf, "first.db")
    assert found["findings"] == [FINDING.record()]
    (event,) = found["events"]
    assert (event["kind"], event["subject"], event["first"], event["count"]) == (
        "not-checked",
        "Alpha",
        3,
        1,
    )


def test_settings(shelf: Shelf) -> None:
    found = about.settings(shelf, "first.db")
    assert found["settings"]["optimizers"] == [{"class": "SGD", "lr": 0.1}]
    assert [one["name"] for one in found["parameters"]] == PARAMETERS
    assert {"name": "GradNorm", "series": len(PARAMETERS)} in found["quantities"]
    assert str(shelf.library.folder) not in json.dumps(found)


def test_settings_are_shown_as_people_read_them(tmp_path: Path) -> None:
    schedule = "Alpha(track_schedule=_Linear(interval=3, offset=0), verbose=False)"
    stored = {"quantities": {"Alpha": schedule}, "memory_budget": 2**26, "gaps": {}, "seed": 0}
    RunWriter(tmp_path / "a.db", settings=stored).close()
    found = about.settings(Shelf(Library(tmp_path)), "a.db")["settings"]
    assert found == {"quantities": {"Alpha": "every 3 steps"}, "memory_budget": "64 MiB", "seed": 0}


def test_data_as_csv(shelf: Shelf) -> None:
    path = shelf.library.path("first.db")
    rows = list(csv.reader(io.StringIO(b"".join(rows_of(path, "csv")).decode())))
    assert rows[0] == ["step", "quantity", "part", "value"]
    frame = open_run(path).scalars()
    assert len(rows) - 1 == len(frame)
    found = {(int(s), q, p): float(v) for s, q, p, v in rows[1:]}
    for step, quantity, part, value in frame.itertuples(index=False):
        assert found[step, quantity, part] == pytest.approx(value, rel=0, abs=0, nan_ok=True)
    assert math.isnan(found[17, "Loss", ""])
    assert found[30, "NormTest", ""] == math.inf


def test_data_as_json(shelf: Shelf) -> None:
    path = shelf.library.path("first.db")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    found = json.loads(b"".join(rows_of(path, "json", "NormTest")), parse_constant=refuse)
    (series,) = found["series"]
    assert series["steps"] == list(range(STEPS))
    assert series["values"][30] == "inf"
    assert found["settings"]["optimizers"][0]["class"] == "SGD"


def test_arrays_as_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cockpit.dashboard.download.ARRAYS_AT_A_TIME", 3)
    writer = RunWriter(tmp_path / "arrays.db")
    arrays = np.arange(42.0).reshape(7, 2, 3)
    for step, array in enumerate(arrays):
        writer.record(step, [Row("Hist", array, key="hist"), Row("Hist", float(step))])
    writer.close()
    found = json.loads(b"".join(rows_of(tmp_path / "arrays.db", "json", "Hist")))
    by_part = {one["part"]: one for one in found["series"]}
    assert np.array_equal(by_part["hist"]["values"], arrays)
    assert by_part["hist"]["steps"] == by_part[""]["values"] == list(range(7))
    text = b"".join(rows_of(tmp_path / "arrays.db", "csv", "Hist")).decode()
    rows = {(int(s), p): float(v) for s, _, p, v in list(csv.reader(io.StringIO(text)))[1:]}
    assert rows[5, "hist[1,2]"] == arrays[5, 1, 2]
    assert len(rows) == 42 + 7
    whole = b"".join(rows_of(tmp_path / "arrays.db", "csv")).decode()
    assert "hist" not in whole


def test_data_that_is_not_there(shelf: Shelf) -> None:
    path = shelf.library.path("first.db")
    with pytest.raises(InvalidArgument, match="no values of a quantity 'Nothing'"):
        rows_of(path, "csv", "Nothing")
    with pytest.raises(InvalidArgument, match="csv, json"):
        rows_of(path, "xlsx")
