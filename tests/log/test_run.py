import subprocess
import sys
from contextlib import closing

import numpy as np
import pandas as pd
import pytest

from cockpit.errors import InvalidArgument, NotARunFile
from cockpit.log import ParameterInfo, Row, RunWriter
from cockpit.run import open_run

NAN = float("nan")


def rows(step):
    return [
        Row("Loss", step / 2),
        Row("NormTest", NAN if step == 1 else 10.0 * step),
        Row("NormTest", 0.5, key="w1", detail=True),
        Row("GradNorm", 1.0 + step, parameter="fc.weight"),
        Row("GradNorm", 2.0 + step, parameter="fc.bias"),
        Row("Hist", np.arange(3) + step, key="hist"),
        Row("Hist", np.linspace(0, 1, 4), key="edges"),
        Row("Hist", np.arange(3), key="hist", parameter="fc.bias", detail=True),
        Row("Vector", np.full(2, step)),
    ]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "run.db"
    parameters = [ParameterInfo("fc.weight", (3, 2), "f"), ParameterInfo("fc.bias", (3,), "f")]
    with closing(RunWriter(path, settings={"lr": 0.1}, parameters=parameters)) as writer:
        for step in (0, 1, 2):
            writer.record(step, rows(step))
        writer.record(2, [Row("train_loss", 7.0, source="log")], tracked=False)
        writer.record(5, [Row("train_loss", 8.0, source="log")], tracked=False)
        writer.note(1, "not-checked", "Alpha", "no second step")
        writer.note(None, "info", "", "hello")
    return path


@pytest.fixture
def run(path):
    with open_run(path) as run:
        yield run


def test_what_the_run_says_about_itself(run, path):
    assert run.path == path
    assert run.settings == {"lr": 0.1}
    assert run.status == "closed"
    assert run.parameters == ["fc.weight", "fc.bias"]
    assert run.quantities == ["Loss", "NormTest", "GradNorm", "Hist", "Vector", "train_loss"]
    assert run.steps.tolist() == [0, 1, 2]
    assert list(run.times.columns) == ["step", "wall", "monotonic"]
    assert run.times.shape == (3, 3)
    assert run.times["monotonic"].is_monotonic_increasing
    assert repr(run) == f"Run({str(path)!r}: closed, 3 steps, 6 quantities)"


def test_scalars_are_tidy_and_sorted_by_step(run):
    frame = run.scalars()
    assert list(frame.columns) == ["step", "quantity", "part", "value"]
    assert len(frame) == 3 * 5 + 2
    assert frame["step"].is_monotonic_increasing
    first = frame[frame["step"] == 0]
    assert first["quantity"].tolist() == ["Loss", "NormTest", "NormTest", "GradNorm", "GradNorm"]
    assert first["part"].tolist() == ["", "", "w1", "fc.weight", "fc.bias"]
    assert first["value"].tolist() == [0.0, 0.0, 0.5, 1.0, 2.0]
    assert frame["value"].isna().sum() == 1


def test_scalars_of_one_quantity(run):
    frame = run.scalars("GradNorm")
    assert frame["step"].tolist() == [0, 0, 1, 1, 2, 2]
    assert frame["value"].tolist() == [1, 2, 2, 3, 3, 4]
    empty = run.scalars("Vector")
    assert empty.empty
    assert list(empty.columns) == list(frame.columns)
    assert (empty.dtypes == frame.dtypes).all()


def test_arrays(run):
    frame = run.arrays()
    assert len(frame) == 3 * 4
    assert frame["part"].tolist()[:4] == ["hist", "edges", "hist/fc.bias", ""]
    assert frame["value"].dtype == object
    hist = run.arrays("Hist", part="hist")
    assert hist["step"].tolist() == [0, 1, 2]
    assert [value.tolist() for value in hist["value"]] == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert len(run.arrays("Hist")) == 9
    assert len(run.arrays(part="edges")) == 3
    assert run.arrays("Loss").empty


def test_series_of_a_single_value_leaves_details_out(run):
    series = run.series("NormTest")
    assert isinstance(series, pd.Series)
    assert (series.name, series.index.name) == ("NormTest", "step")
    np.testing.assert_array_equal(series, [0.0, NAN, 20.0])
    assert series.dtype == np.float64
    assert run.series("NormTest", part="w1").tolist() == [0.5] * 3
    assert run.series("train_loss").to_dict() == {2: 7.0, 5: 8.0}


def test_series_of_several_parts_is_a_frame(run):
    frame = run.series("GradNorm")
    assert list(frame.columns) == ["fc.weight", "fc.bias"]
    assert frame.to_numpy().tolist() == [[1, 2], [2, 3], [3, 4]]
    assert frame.index.tolist() == [0, 1, 2]
    assert run.series("GradNorm", "fc.bias").tolist() == [2, 3, 4]


def test_series_of_arrays(run):
    series = run.series("Vector")
    assert series.dtype == object
    assert [value.tolist() for value in series] == [[0, 0], [1, 1], [2, 2]]
    frame = run.series("Hist")
    assert list(frame.columns) == ["hist", "edges"]
    assert frame.loc[2, "hist"].tolist() == [2, 3, 4]
    assert run.series("Hist", "hist/fc.bias")[0].tolist() == [0, 1, 2]


def test_steps_without_a_value_are_nan(tmp_path):
    path = tmp_path / "gaps.db"
    with closing(RunWriter(path)) as writer:
        writer.record(0, [Row("q", 1.0, key="a"), Row("h", np.zeros(2), key="a")])
        writer.record(1, [Row("q", 2.0, key="b"), Row("h", 3.0, key="b")])
    run = open_run(path)
    np.testing.assert_array_equal(run.series("q"), [[1, NAN], [NAN, 2]])
    mixed = run.series("h")
    assert mixed.loc[0, "a"].shape == (2,)
    assert np.isnan(mixed.loc[1, "a"])
    assert mixed["b"].isna().tolist() == [True, False]


def test_details_alone_are_shown(tmp_path):
    with closing(RunWriter(tmp_path / "d.db")) as writer:
        writer.record(0, [Row("q", 1.0, key="x", detail=True)])
    assert open_run(tmp_path / "d.db").series("q").tolist() == [1.0]


def test_of_a_quantity_and_a_metric_of_one_name_the_first_counts(tmp_path):
    with closing(RunWriter(tmp_path / "d.db")) as writer:
        writer.record(0, [Row("Loss", 1.0), Row("Loss", 2.0, source="log")])
        writer.record(1, [Row("Loss", 3.0, source="log")])
    run = open_run(tmp_path / "d.db")
    assert run.series("Loss").tolist() == [1.0, 3.0]
    assert run.wide()["Loss"].tolist() == [1.0, 3.0]
    assert len(run.scalars()) == 3


def test_wide(run):
    frame = run.wide()
    assert list(frame.columns) == [
        "Loss",
        "NormTest",
        "NormTest/w1",
        "GradNorm/fc.weight",
        "GradNorm/fc.bias",
        "train_loss",
    ]
    assert frame.index.tolist() == [0, 1, 2, 5]
    assert frame.index.name == "step"
    np.testing.assert_array_equal(frame["Loss"], [0, 0.5, 1, NAN])
    np.testing.assert_array_equal(frame["train_loss"], [NAN, NAN, 7, 8])


def test_events(run):
    frame = run.events()
    assert list(frame.columns) == ["step", "time", "kind", "subject", "message"]
    assert frame.loc[0, ["step", "kind", "subject"]].tolist() == [1, "not-checked", "Alpha"]
    assert frame["step"].isna().tolist() == [False, True]
    assert abs(pd.Timestamp.now("UTC") - frame.loc[0, "time"]) < pd.Timedelta(minutes=5)


@pytest.mark.parametrize("read", ["series", "scalars", "arrays"])
def test_an_unknown_quantity_is_named_with_what_there_is(run, read):
    with pytest.raises(InvalidArgument) as caught:
        getattr(run, read)("normtest")
    assert str(caught.value) == (
        f"{run.path} has no quantity 'normtest'; it has: 'Loss', 'NormTest', 'GradNorm', 'Hist', "
        "'Vector', 'train_loss'. Did you mean 'NormTest'?"
    )


def test_an_unknown_part_is_named_with_what_there_is(run):
    with pytest.raises(InvalidArgument) as caught:
        run.series("GradNorm", "fc.wieght")
    assert str(caught.value) == (
        f"GradNorm in {run.path} has no part 'fc.wieght'; it has: 'fc.weight', 'fc.bias'. "
        "Did you mean 'fc.weight'?"
    )


def test_a_run_without_data(tmp_path):
    RunWriter(tmp_path / "empty.db").close()
    run = open_run(tmp_path / "empty.db")
    assert run.quantities == []
    assert run.steps.tolist() == []
    for frame in (run.scalars(), run.arrays(), run.wide(), run.events(), run.times):
        assert len(frame) == 0
    with pytest.raises(InvalidArgument, match="it has: nothing yet"):
        run.series("Loss")


def test_reload_sees_what_was_written_since(tmp_path):
    path = tmp_path / "run.db"
    with closing(RunWriter(path)) as writer:
        writer.record(0, [Row("a", 1.0)])
        writer.flush()
        run = open_run(path)
        assert (run.status, run.quantities, len(run.scalars())) == ("running", ["a"], 1)
        writer.record(1, [Row("a", 1.0), Row("b", 2.0), Row("c", np.zeros(2))])
        writer.flush()
        assert (len(run.scalars()), len(run.arrays()), len(run.wide())) == (1, 0, 1)
        run.reload()
        assert (len(run.scalars()), len(run.arrays()), len(run.wide())) == (3, 1, 2)
    assert list(tmp_path.iterdir()) == [path]  # no reader kept it open
    assert run.status == "running"
    run.reload()
    assert run.status == "closed"


def test_another_run_in_the_place_of_the_file_is_not_mixed_with_the_first(run, path):
    assert run.quantities[0] == "Loss"
    assert len(run.scalars("Loss")) == 3
    with closing(RunWriter(path)) as writer:
        writer.record(0, [Row("Other", np.zeros(1))])
    assert run.arrays().quantity.tolist() == ["Other"]
    assert run.quantities == ["Other"]
    assert run.scalars().empty


def test_what_is_no_run_file_is_refused_at_once(tmp_path):
    with pytest.raises(NotARunFile, match="There is no file"):
        open_run(tmp_path / "none.db")


def test_values_of_a_large_run_are_read_fast(tmp_path):
    path = tmp_path / "large.db"
    with closing(RunWriter(path)) as writer:
        for step in range(2000):
            writer.record(step, [Row("q", step, parameter=f"p{i}") for i in range(50)])
    run = open_run(path)
    assert run.scalars().shape == (100_000, 4)
    assert run.series("q").shape == run.wide().shape == (2000, 50)
    pd.testing.assert_frame_equal(run.wide(), run.series("q").add_prefix("q/"))


def test_reading_draws_nothing():
    code = "import sys, cockpit.run; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
