import sqlite3
from contextlib import closing
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cockpit import Cockpit
from cockpit.errors import InvalidArgument, InvalidType
from cockpit.log import Row, RunFile, RunWriter
from cockpit.log.retention import superfluous
from cockpit.quantities import GradHist1d


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


def kept(path, quantity="h"):
    with RunFile(path) as file:
        (series,) = [one.id for one in file.series() if one.quantity == quantity]
        found = [(step, array) for _, step, array in file.arrays(series)]
    assert all((array == step).all() for step, array in found)
    return [step for step, _ in found]


def write(path, steps, size=50, *, resume=False, retention=20):
    with closing(RunWriter(path, resume=resume, retention=retention)) as writer:
        for step in steps:
            writer.record(step, [Row("h", np.full(size, step)), Row("x", float(step))])
            if step % 100 == 0:  # no training records as fast as this
                writer.flush()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=300), st.integers(1, 50))
def test_the_rule(steps, keep):
    steps = sorted(set(steps))
    gone = set(superfluous(steps, keep))
    left = [step for step in steps if step not in gone]
    assert left[-keep:] == steps[-keep:]
    assert left[0] == steps[0]
    for before, after in pairwise(left):
        if gone & set(range(before + 1, after)):
            assert (after - before) * keep <= 2 * (steps[-1] - after)


def test_evenly_spaced_ones_are_halved_and_halved_again():
    steps, keep, now = list(range(0, 10 * 2048, 10)), 64, []
    for step in steps:  # asked after every step
        now.append(step)
        gone = set(superfluous(now, keep))
        now = [step for step in now if step not in gone]
    gaps = np.diff(now)[::-1] // 10
    ages = (steps[-1] - np.array(now[1:])[::-1]) // 10
    assert (gaps[ages < keep] == 1).all()
    assert (gaps * keep <= 2 * np.maximum(ages, keep)).all()
    assert keep < len(now) <= keep * (1 + np.log2(2048 / keep))


@pytest.mark.parametrize(
    "size", [5, 50, 5000, 50_000], ids=["tiny", "small", "in short blocks", "single"]
)
def test_a_file_keeps_the_last_ones_and_ever_fewer_of_older_ones(path, size):
    steps, keep = range(700 if size > 5000 else 3000), 20
    write(path, steps, size, retention=keep)
    left = kept(path)
    assert left[-keep:] == list(steps[-keep:])
    assert left[0] == 0
    assert keep * 1.5 < len(left) < keep * (2 + 2 * np.log2(len(steps) / keep))
    gaps, ages = np.diff(left), len(steps) - 1 - np.array(left[1:])
    assert (gaps * keep <= 2 * np.maximum(ages, keep)).all()
    with RunFile(path) as file:
        assert file.scalars()[1].tolist() == list(steps)
        assert file.steps()[0].tolist() == list(steps)


def test_the_room_is_given_back(path):
    sizes = {}
    generator = np.random.default_rng(0)
    for retention in (None, 10):
        with closing(RunWriter(path, retention=retention)) as writer:
            for step in range(1000):
                writer.record(step, [Row("h", generator.normal(size=200))])
        sizes[retention] = path.stat().st_size
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert sizes[10] < sizes[None] / 8


def test_series_are_thinned_each_by_itself(path):
    with closing(RunWriter(path, retention=10)) as writer:
        for step in range(2000):
            rows = [Row("often", np.full(3, step))]
            if step % 100 == 7:
                rows.append(Row("seldom", np.full(3, step)))
            writer.record(step, rows)
    assert len(kept(path, "often")) < 150
    assert kept(path, "seldom")[-10:] == list(range(1007, 2000, 100))


def test_a_run_that_had_no_retention_is_thinned_when_it_is_continued(path):
    write(path, range(1500), retention=None)
    assert len(kept(path)) == 1500
    write(path, range(1500, 1520), resume=True)
    left = kept(path)
    assert left[-20:] == list(range(1500, 1520))
    assert len(left) < 200
    write(path, range(1520, 1530), resume=True, retention=None)
    assert kept(path) == [*left, *range(1520, 1530)]


def test_steps_that_come_late_or_once_more(path):
    with closing(RunWriter(path, retention=20)) as writer:
        for step in [*range(1000), *range(500, 600), *range(1000, 1500)]:
            writer.record(step, [Row("h", np.full(50, step))])
    left = kept(path)
    assert left == sorted(set(left))
    assert left[-20:] == list(range(1480, 1500))
    with closing(RunWriter(path, resume=True, retention=20)) as writer:
        mark = writer.mark()
        writer.rewind(1000, mark)
        for step in range(1001, 1100):
            writer.record(step, [Row("h", np.full(50, step))])
    assert kept(path)[-20:] == list(range(1080, 1100))
    assert max(kept(path)) == 1099


def test_what_is_damaged_keeps_nothing_else_from_being_written(path):
    write(path, range(600), retention=None)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE blocks SET blob = x'00'")
        connection.execute("UPDATE scalar_blocks SET blob = x'00'")
    write(path, range(600, 4000), resume=True)
    with RunFile(path) as file:
        assert file.steps()[0].tolist() == list(range(4000))
        assert file.status == "closed"


def test_the_cockpit_takes_it(path):
    model = nn.Linear(3, 2)
    with Cockpit(model, [GradHist1d()], log=path, retention=5) as watch:
        for step in range(150):
            loss = model(torch.randn(4, 3)).square().mean()
            with watch(step, loss=loss, batch_size=4):
                loss.backward()
    with RunFile(path) as file:
        assert file.settings["retention"] == 5
        arrays = [one for one in file.series() if one.kind == "array"]
        assert arrays
        for one in arrays:
            steps = [step for _, step, _ in file.arrays(one.id)]
            assert len(steps) < 40
            assert steps[-5:] == list(range(145, 150))


def test_what_is_no_number_of_arrays_is_refused():
    model = nn.Linear(3, 2)
    with pytest.raises(InvalidArgument, match="retention must be at least 1, got 0"):
        Cockpit(model, retention=0)
    with pytest.raises(InvalidType, match="retention must be a whole number"):
        Cockpit(model, retention=2.5)
