import sqlite3
import subprocess
import sys
import textwrap
import time
import tracemalloc
import zlib
from contextlib import closing

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cockpit.errors import CockpitWarning, NotARunFile
from cockpit.log import Row, RunFile, RunWriter
from cockpit.log.arrays import ArrayWriter
from cockpit.log.blocks import (
    BLOCK_STEPS,
    pack_block,
    pack_steps,
    unpack_block,
    unpack_steps,
)
from cockpit.log.schema import DTYPES, TABLES, pack, unpack

shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@given(st.data(), st.sampled_from(list(DTYPES)), shapes, st.integers(1, 9))
def test_blocks_come_back_bit_by_bit(data, dtype, shape, count):
    size = int(np.prod(shape)) * DTYPES[dtype].itemsize * count
    content = data.draw(st.binary(min_size=size, max_size=size))
    if dtype == "bool":
        content = bytes(byte & 1 for byte in content)
    stacked = np.frombuffer(content, dtype).reshape(count, *shape)
    found = unpack_block(dtype, str(list(shape)), count, pack_block(list(stacked)))
    assert (found.dtype, found.shape) == (stacked.dtype, stacked.shape)
    assert found.tobytes() == stacked.tobytes()


@given(st.sets(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_steps_come_back(steps):
    steps = sorted(steps)
    found = unpack_steps(steps[0], steps[-1], len(steps), pack_steps(steps))
    assert (found.dtype, found.tolist()) == (np.int64, steps)


def test_regular_steps_take_next_to_nothing():
    assert len(pack_steps(range(1000, 6120, 20))) < 40


@pytest.mark.parametrize(
    ("dtype", "shape", "count", "blob"),
    [
        ("object", "[2]", 3, b""),
        ("int64", "[-2]", 3, b""),
        ("int64", "2", 3, b""),
        ("int64", "[2]", 0, b""),
        ("int64", "[2]", True, bytes(16)),
        ("int64", "[2]", "3", bytes(48)),
        ("int64", "[0]", 10**9, b""),
        ("int64", "[1000000]", 1000, b""),
        ("int64", "[10000000000, 10000000000]", 1, b""),
        ("int64", "[2]", 3, bytes(49)),
        ("int64", "[2]", 3, bytes(47)),
        ("int64", "[2]", 3, zlib.compress(bytes(47))),
        ("int64", "[2]", 3, zlib.compress(bytes(2**28))[:40]),
        ("int64", "[1000]", 1, zlib.compress(bytes(2**23))[:7999]),
    ],
)
def test_blocks_that_could_not_have_been_written_are_refused_in_little_memory(
    dtype, shape, count, blob
):
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"an array|a block"):
        unpack_block(dtype, shape, count, blob)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@pytest.mark.parametrize("steps", [[0, 2, 1, 3], [0, 1, 1, 3], [1, 2, 2, 3], [0, 1, 2, 4]], ids=str)
def test_steps_that_do_not_rise_from_the_first_to_the_last_are_refused(steps):
    with pytest.raises(ValueError, match="other steps than rising ones from 0 to 3"):
        unpack_steps(0, 3, 4, pack_steps(steps))


# --- in the run file


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


def histogram(step):
    return np.random.default_rng(step).poisson(np.linspace(0, 30, 50))


def tables(path):
    """The blocks' (series, first, last, count) and the single rows' (series, step)."""
    with closing(sqlite3.connect(path)) as connection:
        blocks = connection.execute("SELECT series, first, last, count FROM blocks").fetchall()
        single = connection.execute("SELECT series, step FROM arrays").fetchall()
    return sorted(blocks), sorted(single)


def arrays(path, **limits):
    with RunFile(path) as file:
        return {(one.quantity, step): array for one, step, array in file.arrays(**limits)}


def assert_same(found, expected):
    assert list(found) == list(expected)
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array, strict=True)


def test_many_arrays_become_blocks_and_the_last_ones_are_single_until_the_end(path):
    edges, steps = np.linspace(-1, 1, 51), 2 * BLOCK_STEPS + 88
    expected = {("Edges", step): edges for step in range(steps)}
    expected |= {("Hist", step): histogram(step) for step in range(steps)}
    with closing(RunWriter(path)) as writer:
        for step in range(steps):
            writer.record(step, [Row("Edges", edges), Row("Hist", histogram(step))])
        writer.flush()
        blocks, single = tables(path)
        whole = [(0, BLOCK_STEPS - 1), (BLOCK_STEPS, 2 * BLOCK_STEPS - 1)]
        assert blocks == [(one, *ends, BLOCK_STEPS) for one in (1, 2) for ends in whole]
        assert single == [(one, step) for one in (1, 2) for step in range(2 * BLOCK_STEPS, steps)]
        assert_same(arrays(path), expected)
    blocks, single = tables(path)
    assert [count for *_, count in blocks] == [BLOCK_STEPS, BLOCK_STEPS, 88] * 2
    assert single == []
    assert_same(arrays(path), expected)
    with RunFile(path) as file:
        _, _, array = next(file.arrays(2))
    assert array.flags.owndata
    assert array.flags.writeable
    with closing(sqlite3.connect(path)) as connection:  # no room is left unused
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)


def test_many_series_that_fill_at_once_are_packed_one_after_the_other(path, monkeypatch):
    monkeypatch.setattr("cockpit.log.arrays.BLOCK_STEPS", 8)
    count = 70
    with closing(RunWriter(path)) as writer:
        rows = [Row(f"q{place}", np.array([place])) for place in range(count)]
        for step in range(8):
            writer.record(step, rows)
        writer.flush()
        assert len(tables(path)[0]) == 2
        for step in range(8, 8 + count):
            writer.record(step, [Row("Loss", 1.0)])
        writer.flush()
        blocks, single = tables(path)
        assert (len(blocks), single) == (count, [])
    assert len(arrays(path)) == 8 * count


def test_blocks_take_far_less_than_single_rows(path):
    edges, steps = np.linspace(0, 1, 51), 600
    with closing(RunWriter(path)) as writer:
        for step in range(steps):
            writer.record(step, [Row("Hist", histogram(step)), Row("Edges", edges)])
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT sum(length(blob) + length(steps)) FROM blocks"
        ((together,),) = connection.execute(query)
    apart = sum(
        len(zlib.compress(pack(array).data))
        for s in range(steps)
        for array in (histogram(s), edges)
    )
    assert together < 0.25 * apart


@pytest.mark.parametrize(("start", "stop"), [(None, 3), (500, 520), (1099, None), (512, 512)])
def test_some_steps_are_read_without_the_others(path, start, stop):
    with closing(RunWriter(path)) as writer:
        for step in range(1100):
            writer.record(step, [Row("a", np.array([step])), Row("b", np.array(-step))])
    found = arrays(path, start=start, stop=stop)
    steps = range(1100)[start:stop]
    assert_same(
        found,
        {("a", s): np.array([s]) for s in steps} | {("b", s): np.array(-s) for s in steps},
    )


def test_large_arrays_and_those_of_changing_shape_stay_single(path):
    large, count = np.zeros(2**18, dtype=np.uint8), BLOCK_STEPS + 10
    with closing(RunWriter(path)) as writer:
        for step in range(count):
            writer.record(step, [Row("changing", np.arange(step % 7))])
        for step in range(3):
            writer.record(step, [Row("large", np.append(large, [step]))])
    blocks, single = tables(path)
    assert blocks == []
    assert single == [(1, step) for step in range(count)] + [(2, step) for step in range(3)]
    assert [len(array) for array in arrays(path).values()][:9] == [0, 1, 2, 3, 4, 5, 6, 0, 1]


def test_a_series_may_change_its_dtype_and_shape(path):
    kinds = [np.zeros(3), np.zeros(3, np.float32), np.zeros((1, 3)), np.zeros(0, np.bool_)]
    expected = {("q", step): kinds[step // 50] for step in range(200)}
    with closing(RunWriter(path)) as writer:
        for (_, step), array in expected.items():
            writer.record(step, [Row("q", array)])
    assert [count for *_, count in tables(path)[0]] == [50] * 4
    assert_same(arrays(path), expected)


operations = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.integers(0, 30)),
        st.tuples(st.just("next"), st.integers(1, 12)),
        st.tuples(st.just("shape"), st.integers(0, 2)),
        st.tuples(st.just("rewind"), st.integers(0, 30)),
        st.tuples(st.sampled_from(["flush", "reopen"]), st.just(0)),
    ),
    max_size=25,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operations)
def test_whatever_is_done_in_whatever_order_the_file_holds_the_last_of_each_step(
    tmp_path_factory, monkeypatch, operations
):
    monkeypatch.setattr("cockpit.log.arrays.BLOCK_STEPS", 4)
    path = tmp_path_factory.mktemp("model") / "run.db"
    writer, expected, count, shape = RunWriter(path), {}, 0, 1

    def record(step):
        nonlocal count
        count += 1
        expected["q", step] = np.full(shape, count)
        writer.record(step, [Row("q", expected["q", step])])

    for name, value in operations:
        if name == "record":
            record(value)
        elif name == "next":
            for step in range(value):
                record(max((s for _, s in expected), default=0) + step % 3)
        elif name == "shape":
            shape = value
        elif name == "rewind":
            writer.rewind(value, writer.mark())
            expected = {key: array for key, array in expected.items() if key[1] <= value}
        elif name == "flush":
            writer.flush()
        else:
            writer.close()
            writer = RunWriter(path, resume=True)
    for _ in range(2):  # before and after close()
        writer.flush()
        assert_same(arrays(path), {key: expected[key] for key in sorted(expected)})
        _assert_apart(*tables(path))
        writer.close()


def _assert_apart(blocks, single):
    """No block overlaps another one, or has a single row within it."""
    ends = [end for _, first, last, _ in blocks for end in (first, last)]
    assert ends == sorted(ends)
    assert not any(first <= step <= last for _, first, last, _ in blocks for _, step in single)


def test_a_rewind_cuts_a_block(path):
    with closing(RunWriter(path)) as writer:
        for step in range(300):
            writer.record(step, [Row("q", np.array([step]))])
            if step == 99:
                mark = writer.mark()
    with closing(RunWriter(path, resume=True)) as writer:
        assert writer.rewind(99, mark)
        writer.record(100, [Row("q", np.array([-1]))])
    found = [int(array[0]) for array in arrays(path).values()]
    assert found == [*range(100), -1]


def test_values_of_a_step_in_a_block_are_replaced(path):
    with closing(RunWriter(path)) as writer:
        for step in range(300):
            writer.record(step, [Row("q", np.array([step]))])
        writer.record(7, [Row("q", np.array([-7]))])
    assert [int(a[0]) for a in arrays(path).values()] == [*range(7), -7, *range(8, 300)]


# --- files of version 1


@pytest.fixture
def old_file(path):
    with closing(RunWriter(path)) as writer:
        writer.record(0, [Row("q", np.arange(3)), Row("Loss", 0.5)])
    with closing(sqlite3.connect(path)) as connection:
        ((series,),) = connection.execute("SELECT id FROM series WHERE quantity = 'q'")
        blob = np.arange(3).tobytes()
        rows = [(series, step, "int64", "[3]", blob) for step in range(1, 700)]
        connection.executemany("INSERT INTO arrays VALUES(?, ?, ?, ?, ?)", rows)
        for table in ("blocks", "scalar_blocks", "findings"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("PRAGMA user_version = 1")
        connection.commit()
    return path


def test_files_without_blocks_and_findings_are_read(old_file):
    with RunFile(old_file) as file:
        assert file.findings() == []
        assert file.scalars()[2].tolist() == [0.5]
    assert_same(arrays(old_file), {("q", step): np.arange(3) for step in range(700)})
    assert len(arrays(old_file, start=10, stop=12)) == 2


def test_continuing_them_makes_them_new_ones(old_file):
    with RunFile(old_file) as reader:
        with closing(RunWriter(old_file, resume=True)) as writer:
            writer.record(700, [Row("q", np.arange(3))])
        assert len(list(reader.arrays())) == 701  # opened before
    assert_same(arrays(old_file), {("q", step): np.arange(3) for step in range(701)})
    blocks, single = tables(old_file)
    assert [count for *_, count in blocks] == [512, 189]
    assert single == []
    with closing(sqlite3.connect(old_file)) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    assert {table.partition("(")[0] for table in TABLES} <= names


# --- trouble


def test_kill_loses_no_array_that_is_older_than_a_second(path):
    code = """
        import sys, time
        import numpy as np
        from cockpit.log import Row, RunWriter
        writer = RunWriter(sys.argv[1])
        for step in range(10**6):
            writer.record(step, [Row("a", np.full(100, step)), Row("b", np.full(3, step))])
            print(step, time.time(), flush=True)
            time.sleep(0.001)
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    lines, begun = [process.stdout.readline()], time.time()
    while len(lines) < 2 * BLOCK_STEPS or time.time() < begun + 1.5:
        lines.append(process.stdout.readline())
    process.kill()
    killed = time.time()
    lines += process.communicate()[0].splitlines()
    written = {int(step): float(when) for step, when in map(str.split, filter(None, lines))}
    found = arrays(path)
    kept = max(step for _, step in found)
    assert kept >= max(step for step, when in written.items() if when < killed - 1.0)
    assert_same(
        found,
        {
            (name, step): np.full(size, step)
            for name, size in (("a", 100), ("b", 3))
            for step in range(kept + 1)
        },
    )
    assert len(tables(path)[0]) >= 2
    with closing(RunWriter(path, resume=True)) as writer:
        writer.record(10**7, [])
    assert len(arrays(path)) == 2 * (kept + 1)


def test_where_the_last_blocks_cannot_be_made_nothing_is_lost(path, monkeypatch):
    def fail(self):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(ArrayWriter, "finish", fail)
    writer = RunWriter(path)
    for step in range(300):
        writer.record(step, [Row("q", np.array([step]))])
    with pytest.warns(CockpitWarning, match=r"disk is full\)\. Nothing is lost"):
        writer.close()
    assert [int(array[0]) for array in arrays(path).values()] == list(range(300))
    with RunFile(path) as file:
        assert file.status == "closed"


@pytest.mark.parametrize(
    "damage",
    [
        "dtype = 'object'",
        "dtype = 'int32'",
        "shape = '[2, 3]'",
        "shape = 'x'",
        "shape = '[1000000, 1000000]'",
        "count = 9",
        "count = -1",
        "count = 'x'",
        "count = 1000000000",
        "steps = 'text'",
        "steps = zeroblob(80)",
        "steps = zeroblob(1000000)",
        "blob = 'text'",
        "blob = zeroblob(100)",
        "series = 77",
        "first = 1",
        "last = 'x'",
    ],
)
def test_damaged_blocks_are_reported_as_such(path, damage):
    with closing(RunWriter(path)) as writer:
        for step in range(10):
            writer.record(step, [Row("q", np.arange(4.0))])
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"UPDATE blocks SET {damage}")
    with RunFile(path) as file, pytest.raises(NotARunFile, match=r"is damaged: .* Take an older"):
        list(file.arrays())


def test_a_single_row_is_read_as_ever():
    array = np.arange(6.0).reshape(2, 3)
    packed = pack(array)
    np.testing.assert_array_equal(unpack(packed.dtype, "[2, 3]", packed.data), array)
