import math
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import closing

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cockpit.errors import CockpitWarning, NotARunFile
from cockpit.log import Row, RunFile, RunWriter
from cockpit.log.blocks import pack_steps
from cockpit.log.scalars import FEWEST, SCALARS_IN_BLOCK, ScalarWriter

NAN, INF = math.nan, math.inf


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


def tables(path):
    """The blocks' (series, first, last, count) and the single rows' (series, step)."""
    with closing(sqlite3.connect(path)) as connection:
        columns = "series, first, last, count"
        blocks = connection.execute(f"SELECT {columns} FROM scalar_blocks").fetchall()
        single = connection.execute("SELECT series, step FROM scalars").fetchall()
    return sorted(blocks), sorted(single)


def dtypes(path):
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT dtype FROM scalar_blocks")]


def numbers(path, *limits, **starts):
    """{(series, step): value} in the order of the file."""
    with RunFile(path) as file:
        found = file.scalars(*limits, **starts)
    assert [column.dtype for column in found] == [np.int64, np.int64, np.float64]
    pairs = zip(*(column.tolist() for column in found[:2]), strict=True)
    return dict(zip(pairs, found[2].tolist(), strict=True))


def assert_same(found, expected):
    assert list(found) == sorted(expected)
    np.testing.assert_array_equal(list(found.values()), [expected[key] for key in found])


def write(path, values, **kwargs):
    with closing(RunWriter(path, **kwargs)) as writer:
        for step, value in values:
            writer.record(step, [Row("q", value)])


def test_many_numbers_become_blocks_and_the_last_ones_are_single_until_the_end(path):
    steps = 2 * SCALARS_IN_BLOCK + FEWEST
    expected = {(one, step): step / one for one in (1, 2) for step in range(steps)}
    with closing(RunWriter(path)) as writer:
        for step in range(steps):
            writer.record(step, [Row("a", step), Row("b", step / 2)])
        writer.flush()
        blocks, single = tables(path)
        assert [count for *_, count in blocks] == [SCALARS_IN_BLOCK] * 4
        last = range(2 * SCALARS_IN_BLOCK, steps)
        assert single == [(one, step) for one in (1, 2) for step in last]
        assert_same(numbers(path), expected)
    blocks, single = tables(path)
    assert [count for *_, count in blocks] == [SCALARS_IN_BLOCK, SCALARS_IN_BLOCK, FEWEST] * 2
    assert single == []
    assert_same(numbers(path), expected)
    with closing(sqlite3.connect(path)) as connection:  # no room is left unused
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)


def test_the_few_numbers_of_a_short_run_stay_single(path):
    write(path, [(step, step) for step in range(FEWEST - 1)])
    assert tables(path) == ([], [(1, step) for step in range(FEWEST - 1)])


def test_many_series_that_fill_at_once_are_packed_one_after_the_other(path, monkeypatch):
    monkeypatch.setattr("cockpit.log.scalars.SCALARS_IN_BLOCK", 8)
    count = 70
    with closing(RunWriter(path)) as writer:
        rows = [Row(f"q{place}", place) for place in range(count)]
        for step in range(8):
            writer.record(step, rows)
        writer.flush()
        assert len(tables(path)[0]) == 2
        for step in range(8, 8 + count):
            writer.record(step, [])
        writer.flush()
        blocks, single = tables(path)
        assert (len(blocks), single) == (count, [])
    assert len(numbers(path)) == 8 * count


def noise(dtype):
    return np.random.default_rng(0).normal(size=300).astype(dtype).astype(np.float64)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (noise(np.float64), "float64"),
        (noise(np.float32), "float32"),
        (noise(np.float16), "float32"),
        (np.array([NAN, INF, -INF, 0.0] * 50), "float32"),
        (np.array([1e300, -1e-300, 5e-324, NAN] * 50), "float64"),
        (2.0 ** np.arange(-150, 128), "float64"),
        (2.0 ** np.arange(-149, 128), "float32"),
        (np.arange(100.0) + 2**53 - 100, "float64"),
        (np.full(100, 0.1), "float64"),
    ],
    ids=lambda one: one if isinstance(one, str) else f"{one[0]:.3g}",
)
def test_numbers_come_back_bit_by_bit_from_as_few_bytes_as_hold_them(path, values, dtype):
    write(path, enumerate(values.tolist()))
    assert dtypes(path) == [dtype]
    found = np.array(list(numbers(path).values()))
    assert found.tobytes() == values.tobytes()


@pytest.mark.parametrize(("values", "most"), [(noise("f8"), 8), (noise("f4"), 4), ([0.1] * 300, 1)])
def test_what_a_number_takes(path, values, most):
    write(path, enumerate(list(values)))
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT sum(length(blob)), sum(length(steps)) FROM scalar_blocks"
        ((content, of_steps),) = connection.execute(query)
    assert content <= most * len(values)
    assert of_steps == 0


@pytest.fixture
def spread(path):
    """A file with blocks, late numbers within them, and single rows at the end."""
    writer = RunWriter(path)
    expected = {}

    def record(step, value):
        expected[1, step] = value
        writer.record(step, [Row("a", value), Row("b", -1.0)])

    for step in range(0, 10 * SCALARS_IN_BLOCK, 4):
        record(step, float(step))
    for step in (-5, 0, 2, 16, 17, 4 * SCALARS_IN_BLOCK, 10**9):
        record(step, 0.5)
    writer.flush()
    yield path, expected
    writer.close()


@pytest.mark.parametrize("start", [-(10**12), -5, -4, 0, 1, 17, 8192, 8193, 20479, 10**9, 10**12])
def test_the_numbers_from_a_step_on(spread, start):
    path, expected = spread
    assert_same(numbers(path), numbers(path, 1) | numbers(path, 2))
    assert_same(numbers(path, 1), expected)
    assert_same(
        numbers(path, 1, start=start), {key: expected[key] for key in expected if key[1] >= start}
    )


@pytest.mark.parametrize(
    "wanted",
    [[], [-5], [17, 16, 16, 3], [0, 8188, 8192], [10**9], [-(10**12), 10**12], range(-9, 40000, 7)],
    ids=str,
)
def test_the_numbers_at_some_steps(spread, wanted):
    path, expected = spread
    with RunFile(path) as file:
        steps, values = file.scalars_at(1, wanted)
        assert [column.size for column in file.scalars_at(77, wanted)] == [0, 0]
    assert steps.tolist() == sorted({step for step in wanted if (1, step) in expected})
    assert values.tolist() == [expected[1, step] for step in steps.tolist()]


operations = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.integers(-3, 40)),
        st.tuples(st.just("next"), st.integers(1, 12)),
        st.tuples(st.just("again"), st.integers(0, 20)),
        st.tuples(st.just("rewind"), st.integers(0, 40)),
        st.tuples(st.sampled_from(["flush", "reopen"]), st.just(0)),
    ),
    max_size=25,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operations)
def test_whatever_is_done_in_whatever_order_the_file_holds_the_last_of_each_step(
    tmp_path_factory, monkeypatch, operations
):
    monkeypatch.setattr("cockpit.log.scalars.SCALARS_IN_BLOCK", 4)
    monkeypatch.setattr("cockpit.log.scalars.FEWEST", 2)
    path = tmp_path_factory.mktemp("model") / "run.db"
    writer, expected, count = RunWriter(path), {}, 0

    def record(step):
        nonlocal count
        count += 1
        for one, value in ((1, NAN if count % 5 == 0 else count / 3), (2, -count)):
            expected[one, step] = value
        writer.record(step, [Row("a", expected[1, step]), Row("b", expected[2, step])])

    for name, value in operations:
        if name == "record":
            record(value)
        elif name == "next":
            for step in range(value):
                record(max((s for _, s in expected), default=0) + step % 3)
        elif name == "again":
            for step in range(value):
                record(step)
        elif name == "rewind":
            writer.rewind(value, writer.mark())
            expected = {key: number for key, number in expected.items() if key[1] <= value}
        elif name == "flush":
            writer.flush()
            _assert_readable(path, expected)
        else:
            writer.close()
            writer = RunWriter(path, resume=True)
    writer.flush()
    _assert_readable(path, expected)
    writer.close()
    _assert_readable(path, expected)
    assert all([series for series, _ in tables(path)[1]].count(one) < 2 for one in (1, 2))


def _assert_readable(path, expected):
    assert_same(numbers(path), expected)
    for one in (1, 2):
        for start in (-1, 7, 20):
            later = {key: expected[key] for key in expected if key[0] == one and key[1] >= start}
            assert_same(numbers(path, one, start=start), later)
    with RunFile(path) as file:
        steps, values = file.scalars_at(2, range(0, 40, 3))
    assert_same(
        {(2, step): value for step, value in zip(steps.tolist(), values.tolist(), strict=True)},
        {key: expected[key] for key in expected if key[0] == 2 and key[1] in range(0, 40, 3)},
    )
    blocks, _ = tables(path)
    ends = [
        (series, end) for series, first, last, _ in blocks for end in dict.fromkeys((first, last))
    ]
    assert ends == sorted(set(ends))
    assert all(1 <= count <= 4 for *_, count in blocks)


def test_recording_all_steps_again_makes_no_more_blocks(path, monkeypatch):
    monkeypatch.setattr("cockpit.log.scalars.SCALARS_IN_BLOCK", 64)
    with closing(RunWriter(path)) as writer:
        for value in range(3):
            for step in range(320):
                writer.record(step, [Row("q", value)])
    assert [count for *_, count in tables(path)[0]] == [64] * 5
    assert set(numbers(path).values()) == {2.0}


def test_the_last_block_of_a_run_that_is_continued_is_filled(path):
    for begin in range(0, 1000, 100):
        write(path, [(step, step) for step in range(begin, begin + 100)], resume=True)
    assert tables(path) == ([(1, 0, 999, 1000)], [])


def test_a_rewind_cuts_a_block(path):
    with closing(RunWriter(path)) as writer:
        for step in range(300):
            writer.record(step, [Row("q", step)])
            if step == 99:
                mark = writer.mark()
    with closing(RunWriter(path, resume=True)) as writer:
        assert writer.rewind(99, mark)
        writer.record(100, [Row("q", -1)])
    assert list(numbers(path).values()) == [*range(100), -1]


# --- files of older versions


@pytest.mark.parametrize("version", [1, 2])
def test_files_without_blocks_of_numbers_are_read_and_become_new_ones(path, version):
    write(path, [(0, 0.0)])
    rows, since_2 = 5000, ["scalar_blocks", "blocks", "findings"]
    with closing(sqlite3.connect(path)) as connection:
        old = [(1, step, step / 3) for step in range(1, rows)]
        connection.executemany("INSERT INTO scalars VALUES(?, ?, ?)", old)
        for table in since_2 if version == 1 else since_2[:1]:
            connection.execute(f"DROP TABLE {table}")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.commit()
    expected = {(1, step): step / 3 for step in range(rows)}
    assert_same(numbers(path), expected)
    assert len(numbers(path, 1, start=10)) == rows - 10
    with RunFile(path) as reader:
        assert reader.scalars_at(1, [3, 9, -1])[1].tolist() == [1.0, 3.0]
        write(path, [(rows, 7.0)], resume=True)
        assert reader.scalars_at(1, [3, 9, rows])[1].tolist() == [1.0, 3.0, 7.0]  # opened before
    assert_same(numbers(path), expected | {(1, rows): 7.0})
    blocks, single = tables(path)
    assert (sum(count for *_, count in blocks), single) == (rows + 1, [])


# --- trouble


def test_readers_see_whole_steps_while_blocks_are_made(path, monkeypatch):
    monkeypatch.setattr("cockpit.log.scalars.SCALARS_IN_BLOCK", 16)
    monkeypatch.setattr("cockpit.log.worker.COMMIT_SECONDS", 0.0)
    done, seen = threading.Event(), []

    def read():
        while not done.is_set():
            ids, steps, values = (column.reshape(-1) for column in _scalars(path))
            halves = [(steps[ids == one], values[ids == one]) for one in (1, 2)]
            assert (halves[0][0] == np.arange(len(halves[0][0]))).all()
            assert (halves[0][0] == halves[1][0]).all()
            assert (halves[0][1] == -halves[1][1]).all()
            seen.append(len(steps))

    failures = []

    def guarded():
        try:
            read()
        except AssertionError as error:
            failures.append(error)

    with closing(RunWriter(path)) as writer:
        thread = threading.Thread(target=guarded)
        thread.start()
        for step in range(600):
            writer.record(step, [Row("a", step), Row("b", -step)])
            time.sleep(0.001)
        writer.flush()
        done.set()
        thread.join()
    assert not failures
    assert len(set(seen)) > 10


def _scalars(path):
    with RunFile(path) as file:
        return file.scalars()


def test_kill_loses_no_number_that_is_older_than_a_second(path):
    code = """
        import sys, time
        from cockpit.log import Row, RunWriter
        writer = RunWriter(sys.argv[1])
        for step in range(10**7):
            writer.record(step, [Row("a", step), Row("b", -step)])
            if step % 10 == 0:
                print(step, time.time(), flush=True)
                time.sleep(0.001)
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    lines, begun = [process.stdout.readline()], time.time()
    while len(lines) < SCALARS_IN_BLOCK // 5 or time.time() < begun + 1.5:
        lines.append(process.stdout.readline())
    process.kill()
    killed = time.time()
    lines += process.communicate()[0].splitlines()
    written = {int(step): float(when) for step, when in map(str.split, filter(None, lines))}
    found = numbers(path)
    kept = max(step for _, step in found)
    assert kept >= max(step for step, when in written.items() if when < killed - 1.0)
    assert_same(found, {(one, s): s if one == 1 else -s for one in (1, 2) for s in range(kept + 1)})
    assert len(tables(path)[0]) >= 2
    with closing(RunWriter(path, resume=True)) as writer:
        writer.record(10**7, [])
    assert len(numbers(path)) == 2 * (kept + 1)


def test_where_the_last_blocks_cannot_be_made_nothing_is_lost(path, monkeypatch):
    def fail(self):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(ScalarWriter, "finish", fail)
    with pytest.warns(CockpitWarning, match=r"disk is full\)\. Nothing is lost"):
        write(path, [(step, step) for step in range(300)])
    assert list(numbers(path).values()) == list(range(300))


@pytest.mark.parametrize(
    "damage",
    [
        "dtype = 'object'",
        "dtype = 'complex64'",
        "dtype = 'int64'",
        "count = 9",
        "count = -1",
        "count = 'x'",
        "count = 1000000000",
        "steps = 'text'",
        "steps = zeroblob(80)",
        "blob = 'text'",
        "blob = zeroblob(100)",
        "blob = x''",
        "first = 1",
        "first = 'x'",
        "first = 0.5",
        "first = -9223372036854775808, last = 9223372036854775807",
        "last = 'x'",
        "last = -1",
        "last = first",
    ],
)
def test_damaged_blocks_are_reported_as_such(path, damage):
    write(path, [(step, step / 3) for step in range(100)])
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"UPDATE scalar_blocks SET {damage}")
    with RunFile(path) as file:
        for read in (file.scalars, lambda: file.scalars(1), lambda: file.scalars(1, start=1)):
            with pytest.raises(NotARunFile, match=r"is damaged: .* Take an older"):
                read()


def test_steps_of_blocks_are_evenly_spaced_or_listed():
    assert pack_steps([7]) == pack_steps([1, 2, 3]) == pack_steps(range(0, 90, 20)) == b""
    assert pack_steps([-(2**63), 0]) != b""  # too far apart for an int64
    assert len(pack_steps([1, 2, 4])) > 0
