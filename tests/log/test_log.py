import gc
import json
import logging
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from contextlib import closing

import numpy as np
import pytest

from cockpit.errors import (
    CockpitWarning,
    InvalidArgument,
    InvalidType,
    NotARunFile,
    RunFileInUse,
)
from cockpit.log import ParameterInfo, Row, RunFile, RunWriter
from cockpit.log.schema import SCHEMA_VERSION

PARAMETERS = (ParameterInfo("fc.weight", (3, 2), "float32"), ParameterInfo("fc.bias", (3,), "f"))

ARRAYS = {
    "int64": np.array([[2**62, -1]]),
    "bool": np.array([True, False, True]),
    "float16": np.array([0.5, np.inf], dtype=np.float16),
    "float32": np.array([[1.5, np.nan], [np.inf, -np.inf]], dtype=np.float32),
    "uint8": np.arange(256, dtype=np.uint8),
    "complex": np.array([1 + 2j]),
    "empty": np.zeros((0, 7)),
    "0-d": np.array(3.5),
    "compressible": np.zeros((100, 100), dtype=np.int64),
    "incompressible": np.random.default_rng(0).normal(size=5000),
    "start compressible": np.r_[np.zeros(2048), np.random.default_rng(0).normal(size=2048)],
    "transposed": np.arange(6.0).reshape(2, 3).T,
    "strided": np.arange(10)[::2],
    "big-endian": np.array([1, 256], dtype=">i4"),
}


def values(path):
    """{(quantity, key, parameter, step): value} of all scalars."""
    with RunFile(path) as file:
        series = {one.id: one for one in file.series()}
        return {
            (series[i].quantity, series[i].key, series[i].parameter, s): v
            for i, s, v in zip(*(column.tolist() for column in file.scalars()), strict=True)
        }


def start(code, *arguments):
    """A Python process that runs `code` with RunWriter and Row imported."""
    header = "import os, sys, time\nfrom cockpit.log import Row, RunWriter\n"
    command = [sys.executable, "-W", "error", "-c", header + textwrap.dedent(code)]
    return subprocess.Popen(
        [*command, *map(str, arguments)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "a b?#%.db"  # what a URI must not take literally


@pytest.fixture
def old_run(path):
    with closing(RunWriter(path)) as writer:
        writer.record(0, [Row("Loss", 7.0)])
    return path


# --- values


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.25, 1.25),
        (3, 3.0),
        (True, 1.0),
        (float("inf"), np.inf),
        (float("-inf"), -np.inf),
        (float("nan"), np.nan),
        (2**53 + 1, 2.0**53),
        (10**400, np.inf),
        (-(10**400), -np.inf),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.int64(5), 5.0),
        (np.bool_(True), 1.0),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_numbers_round_trip(path, value, expected):
    with closing(RunWriter(path)) as writer:
        writer.record(4, [Row("q", value)])
    assert values(path).keys() == {("q", "", "", 4)}
    np.testing.assert_equal(values(path)["q", "", "", 4], expected)


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_round_trip(path, name):
    array = ARRAYS[name]
    with closing(RunWriter(path)) as writer:
        writer.record(1, [Row("q", array, key="k", parameter="p", detail=True, source="log")])
    with RunFile(path) as file:
        ((series, step, read),) = file.arrays(1)
        assert list(file.arrays(2)) == []
        assert file.scalars()[0].size == 0
    assert (series.quantity, series.key, series.parameter) == ("q", "k", "p")
    assert (series.kind, series.detail, series.source, step) == ("array", True, "log", 1)
    assert read.dtype == array.dtype.newbyteorder("=")
    assert read.shape == array.shape
    assert read.flags.writeable
    np.testing.assert_array_equal(read, array)


def test_only_arrays_that_shrink_are_compressed(path):
    with closing(RunWriter(path)) as writer:
        writer.record(0, [Row(name, array) for name, array in ARRAYS.items()])
    query = "SELECT quantity, length(blob) FROM arrays JOIN series ON series = series.id"
    with closing(sqlite3.connect(path)) as connection:
        sizes = dict(connection.execute(query))
    assert sizes["compressible"] < 1000
    assert sizes["incompressible"] == ARRAYS["incompressible"].nbytes


def test_an_array_is_copied_when_it_is_recorded(path):
    array = np.ones(1000)
    with closing(RunWriter(path)) as writer:
        writer.record(0, [Row("q", array)])
        array[:] = 2
    with RunFile(path) as file:
        ((_, _, read),) = file.arrays()
    assert (read == 1).all()


@pytest.mark.parametrize(
    "value",
    ["text", None, 1j, [1.0], np.array(["a"]), np.array([object()]), np.array("2020", "M8")],
)
def test_what_cannot_be_stored_is_refused_by_name(path, value):
    with closing(RunWriter(path)) as writer:
        with pytest.raises(InvalidType, match=r"type \w+\. Give a number|dtype .* Convert to one"):
            writer.record(0, [Row("NormTest", value)])
        with pytest.raises(InvalidType, match=r"step is of type float. Give an integer"):
            writer.record(0.5, [])
    assert values(path) == {}


def test_an_array_too_large_for_the_file_becomes_an_event(path, monkeypatch):
    monkeypatch.setattr("cockpit.log.schema.MAX_STORED_BYTES", 100)
    with closing(RunWriter(path)) as writer:
        writer.record(3, [Row("Big", np.zeros(1000)), Row("Loss", 1.0)])
    with RunFile(path) as file:
        (event,) = file.events()
    assert (event.step, event.kind, event.subject) == (3, "too-large", "Big")
    assert values(path) == {("Loss", "", "", 3): 1.0}


def test_a_scalar_takes_at_most_24_bytes(path):
    generator = np.random.default_rng(0)
    with closing(RunWriter(path)) as writer:
        for step in range(4000):
            numbers = generator.normal(size=50).tolist()
            writer.record(10 * step, [Row(f"q{i}", number) for i, number in enumerate(numbers)])
    with RunFile(path) as file:
        assert file.scalars()[2].size == 200_000
    assert path.stat().st_size <= 24 * 200_000


# --- what else is in a file


def test_settings_parameters_steps_and_events(path):
    settings = {
        "lr": 0.1,
        "nested": {"a": [1, None, True], 5: (2, 3)},
        "number": np.float32(0.5),
        "path": path,
        "function": len,
    }
    before = time.time()
    with closing(RunWriter(path, settings=settings, parameters=PARAMETERS)) as writer:
        assert writer.path == path
        writer.record(10, [])
        writer.record(5, [], tracked=True)
        writer.record(7, [Row("late", 1)], tracked=False)
        writer.note(5, "not-checked", "Alpha", "τ = 0")
        writer.note(None, "info", "", "")
        writer.flush()
        with RunFile(path) as file:
            assert file.status == "running"
            assert file.is_live
            assert file.process["pid"] == os.getpid()
    with RunFile(path) as file:
        assert file.settings == {
            "lr": 0.1,
            "nested": {"a": [1, None, True], "5": [2, 3]},
            "number": 0.5,
            "path": str(path),
            "function": repr(len),
        }
        assert file.parameters == list(PARAMETERS)
        assert file.status == "closed"
        assert not file.is_live
        steps, wall, monotonic = file.steps()
        events = file.events()
    assert steps.tolist() == [5, 10]
    assert steps.dtype == np.int64
    assert before <= wall[1] <= wall[0] <= time.time()
    assert monotonic[1] <= monotonic[0]
    assert [(e.step, e.kind, e.subject, e.message) for e in events] == [
        (5, "not-checked", "Alpha", "τ = 0"),
        (None, "info", "", ""),
    ]


def test_scalars_are_ordered_by_series_and_step(path):
    with closing(RunWriter(path)) as writer:
        for step in (3, 1, 2):
            writer.record(step, [Row("a", step), Row("b", -step)])
    with RunFile(path) as file:
        ids, steps, numbers = file.scalars()
        assert [one.quantity for one in file.series()] == ["a", "b"]
        assert file.scalars(2)[2].tolist() == [-1, -2, -3]
        assert [column.size for column in file.scalars(3)] == [0, 0, 0]
    assert (ids.dtype, steps.dtype, numbers.dtype) == (np.int64, np.int64, np.float64)
    assert ids.tolist() == [1, 1, 1, 2, 2, 2]
    assert steps.tolist() == [1, 2, 3, 1, 2, 3]


def test_output_has_the_shape_of_cockpit_1(path):
    hist, weight = np.arange(3), np.ones((3, 2))
    with closing(RunWriter(path, parameters=PARAMETERS)) as writer:
        writer.record(
            0,
            [
                Row("Plain", 1.5),
                Row("Plain", 9.0, key="fit", detail=True),
                Row("GradNorm", 2.0, parameter="fc.bias"),
                Row("GradNorm", 1.0, parameter="fc.weight"),
                Row("Noise", 3.0, key="noise_scale"),
                Row("Noise", 4.0, key="trace"),
                Row("Stats", 6.0, key="mean", parameter="fc.bias"),
                Row("Stats", 5.0, key="mean", parameter="fc.weight"),
                Row("Hist", hist),
                Row("Both", 7.0),
                Row("Both", 8.0, parameter="fc.bias"),
                Row("train_loss", 0.1, source="log"),
            ],
        )
        writer.record(1, [Row("Plain", 2.5), Row("Parameters", weight, parameter="fc.weight")])
        writer.record(2, [Row("train_loss", 0.1, source="log")])
    with RunFile(path) as file:
        output = file.output()
    np.testing.assert_equal(
        output,
        {
            0: {
                "Plain": 1.5,
                "GradNorm": [1.0, 2.0],
                "Noise": {"noise_scale": 3.0, "trace": 4.0},
                "Stats": {"mean": [5.0, 6.0]},
                "Hist": hist,
                "Both": 7.0,
            },
            1: {"Plain": 2.5, "Parameters": [weight]},
        },
    )


# --- living together with other processes


def test_close_leaves_one_file_and_is_idempotent(path):
    writer = RunWriter(path)
    writer.record(0, [Row("q", 1)])
    writer.flush()
    assert len(list(path.parent.iterdir())) == 3
    for _ in range(2):
        writer.close()
        writer.flush()
    assert list(path.parent.iterdir()) == [path]
    assert (
        path.read_bytes()[18:20] == b"\x01\x01"
    )  # not in WAL mode: readable from a read-only folder


def test_a_run_is_readable_while_another_process_writes_it(path):
    code = """
        writer = RunWriter(sys.argv[1])
        step = 0
        while not os.path.exists(sys.argv[1] + ".stop"):
            writer.record(step, [Row(f"q{i}", step) for i in range(20)])
            if step == 0:
                writer.flush()
                print("begun", flush=True)
            step += 1
            time.sleep(0.002)
        writer.close()
        print(step)
    """
    process = start(code, path)
    process.stdout.readline()
    seen = []
    with RunFile(path) as file:
        assert file.is_live
        while len(set(seen)) < 4:
            ids, _, _ = file.scalars()
            counts = np.bincount(ids, minlength=21)[1:]
            assert (counts == counts[0]).all()  # never half a step
            seen.append(int(counts[0]))
            time.sleep(0.05)
    assert seen == sorted(seen)
    with pytest.raises(RunFileInUse, match=f"written by process {process.pid}. Call close()"):
        RunWriter(path)
    with pytest.raises(RunFileInUse, match="or give another path"):
        RunWriter(path, resume=True)
    path.with_name(path.name + ".stop").touch()
    total = int(process.communicate()[0])
    assert process.returncode == 0
    assert len(values(path)) == 20 * total


def test_kill_loses_at_most_the_last_second(path):
    code = """
        writer = RunWriter(sys.argv[1])
        for step in range(10**6):
            writer.record(step, [Row("a", step), Row("b", step)])
            print(step, time.time(), flush=True)
            time.sleep(0.005)
    """
    process = start(code, path)
    lines = [process.stdout.readline() for _ in range(300)]
    process.kill()
    killed = time.time()
    lines += process.communicate()[0].splitlines()
    kept = {step for _, _, _, step in values(path)}
    written = {int(step): float(when) for step, when in map(str.split, filter(None, lines))}
    assert kept == set(range(len(kept)))
    assert len(values(path)) == 2 * len(kept)
    assert max(kept) >= max(step for step, when in written.items() if when < killed - 1.0)
    with RunFile(path) as file:
        assert (file.status, file.is_live) == ("running", False)
    with closing(RunWriter(path, resume=True)) as writer:
        writer.record(10**7, [Row("a", 0)])
    assert len(values(path)) == 2 * len(kept) + 1
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise SystemError('on purpose')"])
def test_the_end_of_the_interpreter_without_close_keeps_everything(path, end):
    code = f"""
        writer = RunWriter(sys.argv[1])
        for step in range(500):
            writer.record(step, [Row("a", step)])
        sys.stderr = open(os.devnull, "w")
        {end}
    """
    process = start(code, path)
    process.communicate()
    assert values(path) == {("a", "", "", step): float(step) for step in range(500)}
    assert list(path.parent.iterdir()) == [path]


def test_a_writer_that_is_collected_commits_and_ends_its_thread(path):
    threads = threading.active_count()
    writer = RunWriter(path)
    writer.record(0, [Row("q", 1)])
    assert threading.active_count() == threads + 1
    del writer
    gc.collect()
    assert threading.active_count() == threads
    assert len(values(path)) == 1


def test_without_a_path_the_file_lives_as_long_as_the_writer():
    writer = RunWriter(None)
    writer.record(0, [Row("q", 1)])
    writer.close()
    path = writer.path
    assert len(values(path)) == 1
    del writer
    gc.collect()
    assert not path.parent.exists()


def test_without_a_path_the_file_goes_with_the_interpreter():
    process = start("writer = RunWriter(None)\nprint(writer.path)")
    path = process.communicate()[0].strip()
    assert process.returncode == 0
    assert path.endswith(".db")
    assert not os.path.exists(os.path.dirname(path))


def _record_in_child(writer):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            writer.record(1, [Row("q", 1)])
            writer.flush()
        writer.close()
    (message,) = caught
    assert "forked" in str(message.message)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_neither_writes_nor_hangs(path):
    with closing(RunWriter(path)) as writer:
        writer.record(0, [Row("q", 1)])
        child = multiprocessing.get_context("fork").Process(target=_record_in_child, args=(writer,))
        child.start()
        child.join(20)
        assert child.exitcode == 0
    assert len(values(path)) == 1


# --- a file that is there already


def test_an_old_run_is_renamed_never_overwritten(old_run, caplog):
    caplog.set_level(logging.INFO, "cockpit")
    for number in (8.0, 9.0):
        with closing(RunWriter(old_run)) as writer:
            writer.record(0, [Row("Loss", number)])
    first, second = (old_run.with_name(f"{old_run.stem}-{n}.db") for n in (1, 2))
    assert sorted(old_run.parent.iterdir()) == sorted([old_run, first, second])
    assert [values(p)["Loss", "", "", 0] for p in (first, second, old_run)] == [7, 8, 9]
    assert f"it is now {second}" in caplog.text
    with RunFile(old_run) as file:
        (event,) = file.events()
    assert (event.kind, event.subject) == ("older-run-kept", second.name)


def test_an_old_run_is_renamed_under_the_eyes_of_a_reader(old_run):
    writer = RunWriter(old_run, resume=True)
    writer.record(1, [Row("Loss", 6.0)])
    writer.flush()
    with RunFile(old_run) as reader:
        writer.close()
        assert reader.scalars()[2].tolist() == [7.0, 6.0]
        with closing(RunWriter(old_run)) as new:
            new.record(0, [Row("Loss", 5.0)])
            new.flush()
            assert reader.scalars()[2].tolist() == [7.0, 6.0]
            assert values(old_run) == {("Loss", "", "", 0): 5.0}
    assert values(old_run) == {("Loss", "", "", 0): 5.0}
    assert len(values(old_run.with_name(f"{old_run.stem}-1.db"))) == 2


def test_a_live_writer_in_this_process_is_refused(path):
    writer = RunWriter(path)
    with pytest.raises(RunFileInUse, match=r"this very process. Call close\(\)"):
        RunWriter(path)
    writer.close()
    RunWriter(path).close()


def test_a_writer_of_another_host_or_a_reused_pid_does_not_block(path):
    for key, value in {"host": "elsewhere", "started": "1", "pid": 2**22 + 1}.items():
        RunWriter(path, resume=True).close()
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            change = "UPDATE meta SET value = ? WHERE key = ?"
            connection.execute(change, (json.dumps("running"), "status"))
            connection.execute(change, (json.dumps(value), key))
        RunWriter(path).close()


def test_resuming_replaces_rows_and_keeps_the_others(path):
    with closing(RunWriter(path, settings={"a": 1}, parameters=PARAMETERS)) as writer:
        for step in range(4):
            writer.record(step, [Row("Loss", step), Row("Hist", np.array([step]))])
    more = ParameterInfo("out.bias", (1,), "f")
    with closing(RunWriter(path, parameters=[*PARAMETERS, more], resume=True)) as writer:
        for step in (2, 3, 4):
            writer.record(step, [Row("Loss", -step), Row("Hist", np.array([-step]))])
    assert [values(path)["Loss", "", "", step] for step in range(5)] == [0, 1, -2, -3, -4]
    with RunFile(path) as file:
        assert len(file.series()) == 2
        assert file.steps()[0].tolist() == [0, 1, 2, 3, 4]
        assert [a.item() for _, _, a in file.arrays()] == [0, 1, -2, -3, -4]
        assert file.settings == {"a": 1}
        assert file.parameters == [*PARAMETERS, more]


def test_resuming_with_another_model_is_refused(path):
    RunWriter(path, parameters=PARAMETERS).close()
    other = ParameterInfo("fc.bias", (4,), "f")
    with pytest.raises(
        InvalidArgument, match=r"fc.bias has shape \[3\], that of this model \S+ \[4\]"
    ):
        RunWriter(path, parameters=[other], resume=True)
    with RunFile(path) as file:
        assert file.status == "closed"


@pytest.mark.parametrize("resume", [False, True])
def test_no_path_of_use_is_refused(tmp_path, resume):
    (tmp_path / "file").write_text("x")
    for bad in (tmp_path, tmp_path / "file" / "run.db", "/dev/null/run.db", tmp_path / ("n" * 300)):
        with pytest.raises(
            InvalidArgument, match=r"no run file can be written at .* Give the path"
        ):
            RunWriter(bad, resume=resume)
    with pytest.raises(NotARunFile, match="is not an SQLite database"):
        RunWriter(tmp_path / "file", resume=resume)
    assert (tmp_path / "file").read_text() == "x"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_of_several_processes_that_begin_at_once_one_writes(tmp_path):
    code = """
        sys.stdin.readline()
        try:
            writer = RunWriter(sys.argv[1])
        except Exception as error:
            print(type(error).__name__)
        else:
            print("writes", flush=True)
        sys.stdin.readline()
    """
    path = tmp_path / "run.db"
    RunWriter(path).close()
    processes = [start(code, path) for _ in range(3)]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    results = [process.stdout.readline().strip() for process in processes]
    for process in processes:
        process.communicate("\n")
    assert sorted(results) == ["RunFileInUse", "RunFileInUse", "writes"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run-1.db", "run.db"]


# --- files that are none


def _database(path, *statements):
    path.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "There is no file {path}. Give the path that was passed"),
        (lambda p: p.mkdir(), "{path} is a folder, not a run file. Give the path of a file"),
        (lambda p: p.touch(), "{path} is empty, not a run file. Remove it"),
        (lambda p: p.write_text("{}"), "{path} is not an SQLite database and so not a run file"),
        (
            lambda p: _database(p, "CREATE TABLE a(b)"),
            "{path} is an SQLite database of another program, not a run file. Give",
        ),
        (
            lambda p: p.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 20),
            "{path} is damaged: file is not a database. Take an older copy",
        ),
    ],
)
def test_what_is_no_run_file_is_named(tmp_path, make, message):
    path = tmp_path / "x.db"
    make(path)
    with pytest.raises(NotARunFile) as caught:
        RunFile(path)
    assert str(caught.value).startswith(message.format(path=path))


def test_a_newer_schema_is_refused_with_the_way_out(old_run):
    _database(old_run, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    message = "written by a newer version of torch-cockpit .* Upgrade with: pip install"
    for opening in (RunFile, RunWriter, lambda path: RunWriter(path, resume=True)):
        with pytest.raises(NotARunFile, match=message):
            opening(old_run)
    assert list(old_run.parent.iterdir()) == [old_run]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE arrays SET dtype = 'object'",
        "UPDATE arrays SET shape = '[2, 3]'",
        "UPDATE arrays SET shape = '[-1]'",
        "UPDATE arrays SET shape = '7'",
        "UPDATE arrays SET shape = 'x'",
        "UPDATE arrays SET shape = '[1000000, 1000000]'",
        "UPDATE arrays SET shape = '[50]'",
        "UPDATE arrays SET blob = 'text'",
        "UPDATE arrays SET series = 77",
        "DROP TABLE arrays",
    ],
)
def test_damaged_arrays_are_reported_as_such(path, damage):
    with closing(RunWriter(path)) as writer:
        writer.record(0, [Row("q", np.arange(4.0))])
    _database(path, damage)
    with RunFile(path) as file, pytest.raises(NotARunFile, match=r"is damaged: .* Take an older"):
        list(file.arrays())


def test_damaged_pages_and_values_are_reported_as_such(old_run):
    _database(old_run, "UPDATE scalars SET value = 'text'")
    with (
        RunFile(old_run) as file,
        pytest.raises(NotARunFile, match=r"is damaged: could not convert"),
    ):
        file.scalars()
    size = old_run.stat().st_size
    with old_run.open("r+b") as raw:
        raw.seek(4096)
        raw.write(b"\xff" * (size - 4096))
    with RunFile(old_run) as file, pytest.raises(NotARunFile, match=r"is damaged: .*malformed"):
        file.scalars()


def test_the_file_cannot_be_changed_through_the_reader(old_run):
    with RunFile(old_run) as file:
        for statement in ("DELETE FROM scalars", "ATTACH ':memory:' AS a", "PRAGMA query_only = 0"):
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                file._connection.execute(statement)
        assert file._connection.execute("PRAGMA trusted_schema").fetchone() == (0,)


def test_closing_amid_an_iteration_is_fine(path):
    with closing(RunWriter(path)) as writer:
        writer.record(0, [Row("a", np.zeros(2)), Row("b", np.zeros(2))])
    with RunFile(path) as file:
        one, two = file.arrays(), file.arrays()
        next(one)
        assert len(list(two)) == 2
        assert len(file.output()) == 1
    del one, two
    gc.collect()


# --- failure


def test_a_failure_warns_once_and_the_log_goes_on(path):
    writer = RunWriter(path)
    writer.record(1, [Row("q", 1.0)])
    writer.flush()
    _database(path, "DROP TABLE scalars")

    def train():
        for step in range(2, 100):
            writer.record(step, [Row("q", 1.0)])
            if step % 10 == 2:
                writer.flush()
        writer.note(3, "kind", "", "")
        writer.close()
        writer.close()

    with pytest.warns(CockpitWarning) as caught:
        train()
    (message,) = (str(one.message) for one in caught)
    assert message.startswith(f"{path} cannot be written (OperationalError: no such table: ")
    assert "What is recorded from step 2 on (1 values so far) waits in memory" in message
    assert caught[0].filename == __file__
    with RunFile(path) as file:
        assert file.steps()[0].tolist() == list(range(1, 100))
        assert file.scalars()[1].tolist() == list(
            range(2, 100)
        )  # the first ones went with the table
        assert [(e.kind, e.subject) for e in file.events()] == [
            ("log-interrupted", path.name),
            ("kind", ""),
        ]
        assert file.status == "closed"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit of the file size")
def test_a_full_disk_costs_what_was_not_committed(path):
    code = """
        import resource, warnings
        import numpy as np
        warnings.simplefilter("ignore")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        writer = RunWriter(sys.argv[1])
        for step in range(60):
            writer.record(step, [Row("a", np.random.rand(3000)), Row("b", step)])
            writer.flush()
        writer.close()
    """
    process = start(code, path)
    process.communicate()
    assert process.returncode == 0
    with RunFile(path) as file:
        steps = file.steps()[0].tolist()
        assert 5 < len(steps) < 60
        assert steps == list(range(len(steps))) == [step for _, step, _ in file.arrays()]


def test_a_failure_that_nobody_asked_about_is_logged(path, caplog, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(path / "nowhere"))
    writer = RunWriter(path)
    writer.record(0, [Row("q", 1.0)])
    path.unlink()
    path.mkdir()
    del writer
    gc.collect()
    assert (
        f"{path} lacks 1 values of step 0, and what had been written before: it could"
        in caplog.text
    )
    assert "was deleted or moved away" in caplog.text


def test_recording_after_close_warns_once(old_run):
    writer = RunWriter(old_run)
    writer.close()
    with pytest.warns(CockpitWarning, match=r"was closed; .* from step 5 on is lost"):
        writer.record(5, [])
    writer.record(6, [])
    writer.close()


def test_the_log_needs_neither_pandas_nor_matplotlib():
    code = "import cockpit.log; print({'pandas', 'matplotlib'} & set(sys.modules))"
    assert start(code).communicate()[0].strip() == "set()"
