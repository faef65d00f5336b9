"""Reading parts of a run, and of a run that is being written only what is new."""

from contextlib import closing

import numpy as np
import pytest

from cockpit.errors import InvalidArgument
from cockpit.log import ParameterInfo, Row, RunFile, RunWriter
from cockpit.run import OVERLAP, open_run

NAN = float("nan")


def rows(step):
    return [
        Row("Loss", step / 2),
        Row("Norm", 1.0 + step, parameter="w"),
        Row("Norm", 1.0, "samples", detail=True),
        Row("Hist", np.arange(3) + step, "hist"),
        Row("Hist", np.arange(3) - step, "hist", "w", True),
    ]


@pytest.fixture
def writer(tmp_path):
    parameters = [ParameterInfo("w", (3,), "float32")]
    with closing(RunWriter(tmp_path / "run.db", parameters=parameters)) as writer:
        yield writer


def record(writer, steps):
    for step in steps:
        writer.record(step, rows(step))
    writer.flush()


def everything(run):
    curves = [run.curve(q, p) for q in run.quantities for p in run.parts(q)]
    arrays = [run.arrays(q, p) for q in run.quantities for p in run.parts(q, "array")]
    return curves, [(a["step"].tolist(), [v.tolist() for v in a["value"]]) for a in arrays]


def assert_same(run, other):
    (curves, arrays), (others, other_arrays) = everything(run), everything(other)
    for curve, expected in zip(curves, others, strict=True):
        np.testing.assert_array_equal(curve, expected)
    assert arrays == other_arrays
    assert run.steps.tolist() == other.steps.tolist()
    assert run.status == other.status


def test_parts_by_kind_and_without_details(writer):
    record(writer, range(2))
    run = open_run(writer.path)
    assert run.parts("Norm") == ["w", "samples"]
    assert run.parts("Norm", details=False) == ["w"]
    assert run.parts("Hist") == []
    assert run.parts("Hist", "array") == ["hist", "hist/w"]
    assert run.parts("Unknown") == []


def test_a_curve_has_steps_and_values(writer):
    record(writer, range(3))
    writer.record(3, [Row("Loss", NAN)])
    writer.flush()
    run = open_run(writer.path)
    steps, values = run.curve("Loss")
    assert steps.dtype == np.int64
    np.testing.assert_array_equal(steps, [0, 1, 2, 3])
    np.testing.assert_array_equal(values, [0, 0.5, 1, NAN])
    with pytest.raises(InvalidArgument, match="no part 'x'"):
        run.curve("Loss", "x")


def test_of_two_curves_with_one_name_the_first_counts(writer):
    writer.record(0, [Row("Loss", 1.0)])
    writer.record(0, [Row("Loss", 9.0, source="log")], tracked=False)
    writer.record(1, [Row("Loss", 5.0, source="log")], tracked=False)
    writer.flush()
    steps, values = open_run(writer.path).curve("Loss")
    assert (steps.tolist(), values.tolist()) == ([0, 1], [1.0, 5.0])


def test_the_newest_arrays_also_where_few_steps_have_any(writer):
    record(writer, range(3))
    for step in range(3, 200):
        writer.record(step, [Row("Loss", 0.0)])
    writer.flush()
    run = open_run(writer.path)
    step, found = run.newest("Hist")
    assert step == 2
    assert {part: array.tolist() for part, array in found.items()} == {
        "hist": [2, 3, 4],
        "hist/w": [-2, -1, 0],
    }
    assert run.newest("Loss") is None
    assert run.newest("Unknown") is None


def test_refresh_sees_what_is_new_and_reads_no_more(writer, monkeypatch):
    record(writer, range(3 * OVERLAP))
    run = open_run(writer.path)
    assert_same(run, open_run(writer.path))
    record(writer, range(3 * OVERLAP, 4 * OVERLAP))
    starts = []
    read = RunFile.scalars
    monkeypatch.setattr(
        RunFile,
        "scalars",
        lambda s, i=None, *, start=None: starts.append(start) or read(s, i, start=start),
    )
    run.refresh()
    assert set(starts) == {2 * OVERLAP}
    monkeypatch.undo()
    assert_same(run, open_run(writer.path))


def test_refresh_sees_values_that_come_late(writer):
    record(writer, range(2 * OVERLAP))
    run = open_run(writer.path)
    writer.record(2 * OVERLAP, [])
    assert run.curve("Loss")[0][-1] == 2 * OVERLAP - 1
    late, too_late = [300, 301, 302], 10
    writer.record(2 * OVERLAP + 5, [Row("Loss", 0.0)])
    for step in late:
        writer.record(step, [Row("Alpha", 1.0)], tracked=False)
    writer.flush()
    run.refresh()
    assert run.curve("Alpha")[0].tolist() == late
    assert run.curve("Loss")[0][-1] == 2 * OVERLAP + 5
    writer.record(too_late, [Row("Alpha", 2.0)], tracked=False)
    writer.close()
    run.refresh()
    assert_same(run, open_run(writer.path))


def test_refresh_of_a_run_that_is_closed(writer):
    record(writer, range(5))
    run = open_run(writer.path)
    everything(run)
    writer.close()
    run.refresh()
    assert run.status == "closed"
    kept = run.curve("Loss")[0]
    run.refresh()
    assert np.shares_memory(run.curve("Loss")[0], kept)
