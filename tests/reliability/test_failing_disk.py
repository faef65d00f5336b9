"""Whatever happens to the run file, the training goes on, one warning says so, and the log continues when it can."""

import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
from contextlib import closing, contextmanager

import numpy as np
import pytest
import torch
from torch import nn

from cockpit import Cockpit, CockpitWarning
from cockpit.errors import InvalidArgument
from cockpit.log import Row, RunFile, RunWriter
from cockpit.log.tables import Tables
from cockpit.quantities import GradHist1d, GradNorm


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "first.db"


def rows(step):
    return [Row("a", float(step)), Row("b", -float(step)), Row("h", np.full(7, step))]


def record(writer, steps):
    for step in steps:
        writer.record(step, rows(step))


def whole_steps(path):
    """The tracked steps, after checking that each of them has all its rows."""
    with RunFile(path) as file:
        steps = file.steps()[0].tolist()
        _, at, values = file.scalars()
        arrays = [(step, array[0]) for _, step, array in file.arrays()]
    assert at.tolist() == steps * 2
    assert values.tolist() == [float(s) for s in steps] + [-float(s) for s in steps]
    assert arrays == [(step, step) for step in steps]
    return steps


def interruptions(path):
    with RunFile(path) as file:
        return [event.message for event in file.events() if event.kind == "log-interrupted"]


@contextmanager
def one_warning(pattern):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    ours = [one for one in caught if issubclass(one.category, CockpitWarning)]
    assert len(ours) == 1, [str(one.message) for one in ours]
    assert pattern in str(ours[0].message)


def run(code, *arguments):
    """What a Python process prints that runs `code`; warnings are counted, not shown."""
    header = """
        import os, sys, time, warnings
        import numpy as np
        from cockpit.log import Row, RunFile, RunWriter
        def rows(step):
            return [Row("a", float(step)), Row("b", -float(step)), Row("h", np.full(7, step))]
    """
    program = textwrap.dedent(header) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# -- the disk is full -----------------------------------------------------------------------------

FULL = """
    import resource
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limit[1]))  # for every file of this process
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        writer = RunWriter(sys.argv[1])
        for step in range(400):
            writer.record(step, [*rows(step), Row("noise", np.random.rand(500))])
            if step % 40 == 39:
                writer.flush()
        if sys.argv[2] == "mended":
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        writer.record(400, [*rows(400), Row("noise", np.random.rand(500))])
        writer.flush()
        writer.close()
    print(len(caught))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit of the file size")
def test_a_full_disk_loses_nothing_if_there_is_room_again(path):
    assert run(FULL, path, "mended") == ["1"]
    with RunFile(path) as file:
        assert file.steps()[0].tolist() == list(range(401))
        assert {one.quantity: len(list(file.arrays(one.id))) for one in file.series()} == {
            "a": 0,
            "b": 0,
            "h": 401,
            "noise": 401,
        }
        assert file.status == "closed"
    (message,) = interruptions(path)
    assert "nothing is lost" in message
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit of the file size")
def test_a_disk_that_stays_full_costs_what_came_after(path):
    assert run(FULL, path, "full") == ["1"]
    with RunFile(path) as file:
        steps = file.steps()[0].tolist()
        assert 20 < len(steps) < 400
        assert steps == list(range(len(steps)))
        assert file.scalars()[1].tolist() == steps * 2
        assert len(list(file.arrays())) == 2 * len(steps)


def test_a_database_that_may_not_grow(path):
    with closing(RunWriter(path)) as writer, one_warning("database or disk is full"):
        record(writer, range(10))
        writer.flush()
        connection = writer._worker._tables.connection  # idle, since all is committed
        ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
        connection.execute(f"PRAGMA max_page_count = {pages + 2}").fetchall()
        record(writer, range(10, 400))
        writer.flush()  # fails
        record(writer, range(400, 500))
        writer.flush()  # opened anew, with room
    assert whole_steps(path) == list(range(500))
    (message,) = interruptions(path)
    assert "from step 10 on" in message
    assert "nothing is lost" in message


# -- the folder is read-only, in the way, gone -----------------------------------------------------

READ_ONLY = """
    import torch.utils.data
    folder = sys.argv[1]
    if os.getuid() == 0:  # whom permissions do not bind
        os.chown(folder, 65534, 65534)
        os.setgid(65534)
        os.setuid(65534)
    os.chmod(folder, 0o555)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        writer = RunWriter(folder + "/runs/first.db")
        for step in range(50):
            writer.record(step, rows(step))
        writer.flush()
        print(os.path.exists(folder + "/runs"))
        os.chmod(folder, 0o755)
        writer.flush()
        writer.record(50, rows(50))
        writer.close()
    print(len(caught), "Permission" in str(caught[0].message))
"""


@pytest.mark.skipif(not hasattr(os, "setuid"), reason="needs permissions of POSIX")
def test_a_read_only_folder():
    folder = tempfile.mkdtemp()  # not within that of pytest, which others may not enter
    try:
        assert run(READ_ONLY, folder) == ["False", "1", "True"]
        assert whole_steps(f"{folder}/runs/first.db") == list(range(51))
    finally:
        shutil.rmtree(folder)


def test_what_can_never_be_a_run_file_is_refused_at_once(path):
    path.parent.write_text("a file where the folder should be")
    with pytest.raises(InvalidArgument, match="no run file can be written at"):
        RunWriter(path)


def test_a_folder_that_is_deleted_is_written_anew_with_all_that_was_in_it(path):
    with closing(RunWriter(path)) as writer, one_warning("deleted or moved away; nothing is lost"):
        record(writer, range(100))
        writer.flush()
        shutil.rmtree(path.parent)
        record(writer, range(100, 200))
        writer.flush()
        assert whole_steps(path) == list(range(200))
        record(writer, range(200, 300))
    assert whole_steps(path) == list(range(300))
    assert len(interruptions(path)) == 1
    assert list(path.parent.iterdir()) == [path]


def test_a_file_in_the_place_of_the_folder(path):
    with closing(RunWriter(path)) as writer, one_warning("cannot be written"):
        record(writer, range(10))
        writer.flush()
        shutil.rmtree(path.parent)
        path.parent.write_text("in the way")
        record(writer, range(10, 20))
        writer.flush()
        path.parent.unlink()
        writer.flush()
        record(writer, range(20, 30))
    assert whole_steps(path) == list(range(30))


def test_only_the_database_is_deleted_and_its_helper_files_stay(path):
    with closing(RunWriter(path)) as writer, one_warning("deleted or moved away"):
        record(writer, range(10))
        writer.flush()
        path.unlink()
        record(writer, range(10, 20))
        writer.flush()
    assert whole_steps(path) == list(range(20))


def test_helper_files_of_a_run_that_was_deleted_do_not_get_into_the_next_one(path):
    code = """
        writer = RunWriter(sys.argv[1])
        for step in range(100):
            writer.record(step, rows(step))
        writer.flush()
        os._exit(0)
    """
    run(code, path)
    path.unlink()
    assert sorted(one.name for one in path.parent.iterdir()) == ["first.db-shm", "first.db-wal"]
    with closing(RunWriter(path)) as writer:
        record(writer, [7])
    assert whole_steps(path) == [7]


def test_a_file_that_was_moved_stays_whole_where_it_is(path):
    elsewhere = path.parent.with_name("elsewhere")
    with closing(RunWriter(path)) as writer, one_warning("deleted or moved away"):
        record(writer, range(10))
        writer.flush()
        path.parent.rename(elsewhere)
        record(writer, range(10, 20))
        writer.flush()
    assert whole_steps(path) == list(range(20))
    assert whole_steps(elsewhere / path.name) == list(range(10))


def test_another_run_in_the_place_of_a_file_is_left_alone(path):
    with closing(RunWriter(path)) as writer, one_warning("it goes on in first-1.db"):
        record(writer, range(10))
        writer.flush()
        shutil.rmtree(path.parent)
        with closing(RunWriter(path)) as other:
            record(other, [77])
            other.flush()
            record(writer, range(10, 20))
            writer.flush()
            assert writer.path == path.with_name("first-1.db")
            record(other, [78])
    assert whole_steps(path) == [77, 78]
    assert whole_steps(writer.path) == list(range(20))


@pytest.mark.parametrize("how", ["overwritten", "emptied"])
def test_a_file_that_is_spoilt_is_kept_and_a_new_one_begun(path, how):
    with closing(RunWriter(path)) as writer, one_warning("not in this file"):
        record(writer, range(1000))
        writer.flush()
        for pragma in ("wal_checkpoint(TRUNCATE)", "shrink_memory"):
            writer._worker._tables.connection.execute(f"PRAGMA {pragma}").fetchall()
        record(writer, [1000])
        writer.flush()
        with path.open("r+b") as file:
            size = file.seek(0, 2)
            file.seek(0)
            if how == "overwritten":
                file.write(b"\xff" * size)
            else:
                file.truncate()
        writer._worker._tables.connection.execute("PRAGMA shrink_memory").fetchall()
        for step in range(1001, 1010):
            record(writer, [step])
            writer.flush()
    assert whole_steps(path) == list(range(1001, 1010))
    assert path.with_name("first-1.db").exists()


# -- somebody else ---------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_file_that_is_locked(path, begin, monkeypatch):
    monkeypatch.setattr("cockpit.log.opening.BUSY_SECONDS", 0.1)
    monkeypatch.setattr("cockpit.log.opening.BUSY_AGAIN_SECONDS", 0.1)
    with closing(RunWriter(path)) as writer, one_warning("database is locked"):
        record(writer, range(10))
        writer.flush()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute(begin)
            record(writer, range(10, 20))
            writer.flush()
            assert whole_steps(path) == list(range(10))
            other.execute("ROLLBACK")
        record(writer, range(20, 30))
        writer.flush()
    assert whole_steps(path) == list(range(30))
    (message,) = interruptions(path)
    assert "nothing is lost" in message


def test_a_file_that_is_locked_from_the_start(path, monkeypatch):
    monkeypatch.setattr("cockpit.log.opening.BUSY_SECONDS", 0.1)
    with closing(RunWriter(path)) as writer:
        record(writer, range(10))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with one_warning("database is locked"):
            writer = RunWriter(path, resume=True)
            record(writer, range(10, 20))
            other.execute("ROLLBACK")
            writer.flush()
            writer.close()
    assert whole_steps(path) == list(range(20))


@pytest.mark.filterwarnings("ignore::cockpit.CockpitWarning")
def test_the_file_is_tried_again_without_being_asked(path, monkeypatch):
    monkeypatch.setattr("cockpit.log.opening.BUSY_SECONDS", 0.1)
    with closing(RunWriter(path)) as writer:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            record(writer, range(10))
            writer.flush()
            other.execute("ROLLBACK")
        until = time.monotonic() + 20
        while not whole_steps(path) and time.monotonic() < until:
            time.sleep(0.05)
        assert whole_steps(path) == list(range(10))


# -- memory ----------------------------------------------------------------------------------------


@contextmanager
def blocked(path):
    """Keep the file from being written, with a folder where it was."""
    for name in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        name.unlink(missing_ok=True)
    path.mkdir()
    yield
    path.rmdir()


def test_what_waits_is_bounded_and_thinned_evenly_and_what_went_is_counted(path, monkeypatch):
    monkeypatch.setattr("cockpit.log.worker.WAITING_BYTES", 200_000)
    most = 0
    with closing(RunWriter(path)) as writer, one_warning("cannot be written"):
        record(writer, range(10))
        writer.flush()
        with blocked(path):
            for step in range(10, 5000):
                record(writer, [step])
                most = max(most, writer._worker._bytes_waiting)
                if step % 50 == 0:
                    writer.flush()
            writer.note(5000, "told", "x", "still there")
        writer.flush()
    steps = whole_steps(path)
    assert most <= 200_000 + 2000
    assert steps[:10] == list(range(10))
    assert 50 < len(steps) < 500
    gaps = np.diff(steps[9:])
    assert gaps.max() <= 5000 / 4  # some of every time
    (message,) = interruptions(path)
    missing = 5000 - len(steps)
    assert f"{3 * missing:,} values of {missing:,} steps from " in message
    with RunFile(path) as file:
        assert "told" in [event.kind for event in file.events()]


@pytest.mark.parametrize("refuge", [True, False])
def test_where_nothing_can_be_written_until_the_end(path, refuge, caplog, monkeypatch):
    temporary = path.parents[1] / "temporary"
    if refuge:
        temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with one_warning("from step 3 on"):
        writer = RunWriter(path)
        record(writer, range(3))
        writer.flush()
        for name in path.parent.iterdir():
            name.unlink()
        path.mkdir()
        record(writer, [3, 4])
        writer.flush()
        writer.close()
    if refuge:
        (saved,) = temporary.glob("*/first.db")
        assert f"what it lacks is in {saved}" in caplog.text
        assert writer.path == saved
        assert whole_steps(saved) == list(range(5))
    else:
        assert f"{path} lacks 6 values of 2 steps from 3 to 4, and what had been" in caplog.text


def test_a_slow_disk_loses_nothing(path, monkeypatch):
    monkeypatch.setattr("cockpit.log.worker.WAITING_BYTES", 20_000)
    write = Tables.write

    def slow(self, batch):
        time.sleep(0.001)
        write(self, batch)

    monkeypatch.setattr(Tables, "write", slow)
    with closing(RunWriter(path)) as writer, one_warning("and the training waits for it"):
        for step in range(300):
            record(writer, [step])
            assert writer._worker._bytes_waiting < 20_000
        writer.flush()
    assert whole_steps(path) == list(range(300))


@pytest.mark.filterwarnings("ignore::cockpit.CockpitWarning")
def test_a_disk_that_does_not_answer_stops_nobody(path, monkeypatch):
    monkeypatch.setattr("cockpit.log.worker.WAITING_BYTES", 20_000)
    monkeypatch.setattr("cockpit.log.worker.STALL_SECONDS", 0.2)
    write, hung = Tables.write, [True]

    def hang(self, batch):
        while hung:
            time.sleep(0.01)
        write(self, batch)

    monkeypatch.setattr(Tables, "write", hang)
    with closing(RunWriter(path)) as writer:
        begun = time.monotonic()
        record(writer, range(300))
        writer.flush()
        assert time.monotonic() - begun < 20
        hung.clear()
        writer.flush()
        record(writer, [300])
    steps = whole_steps(path)
    assert steps[-1] == 300
    (message,) = interruptions(path)
    assert f"{3 * (301 - len(steps)):,} values of {301 - len(steps):,} steps from " in message


def test_what_cannot_be_stored_takes_nothing_else_with_it(path):
    with closing(RunWriter(path)) as writer, one_warning("cannot be stored (OverflowError"):
        record(writer, range(10))
        writer.record(2**70, [Row("a", 1.0)])
        record(writer, range(10, 20))
        writer.note(5, "kind", "\ud800", "no text that can be encoded")
        record(writer, range(20, 30))
        writer.flush()
    assert whole_steps(path) == list(range(30))
    assert "1 values of step " in interruptions(path)[0]


# -- the clock and the training --------------------------------------------------------------------


def test_a_clock_that_is_set_back_changes_no_order_and_makes_no_age_negative(path, monkeypatch):
    now = [2.0e9]
    monkeypatch.setattr(time, "time", lambda: now[0])
    with closing(RunWriter(path)) as writer:
        for step in range(20):
            now[0] -= 86_400
            record(writer, [step])
            writer.note(step, "kind", str(step), "")
        writer.flush()
        assert whole_steps(path) == list(range(20))
        with RunFile(path) as file:
            assert [event.subject for event in file.events()] == [str(step) for step in range(20)]
            assert (np.diff(file.steps()[2]) >= 0).all()
            assert file.is_live
        from cockpit.terminal.snapshot import age

        assert age(now[0] + 86_400 * 20) == "0 s ago"
        with closing(RunWriter(path.with_name("second.db"))) as second:
            record(second, [0])
    assert whole_steps(path) == list(range(20))


def trained(log, trouble=lambda step: None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Cockpit(model, [GradNorm(), GradHist1d()], optimizer=optimizer, log=log) as watch:
        for step in range(30):
            inputs, targets = torch.randn(16, 4), torch.randint(2, (16,))
            optimizer.zero_grad()
            losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
            loss = losses.mean()
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            optimizer.step()
            watch.state_dict()  # a checkpoint at every step, after which the log's thread rests
            trouble(step)
    return [p.detach().clone() for p in model.parameters()]


def test_a_training_whose_log_fails_is_the_same_training(path):
    undisturbed = trained(path)

    def trouble(step):
        if step == 10:
            shutil.rmtree(path.parent)
            path.parent.write_text("in the way")
        if step == 20:
            path.parent.unlink()

    with one_warning("cannot be written"):
        disturbed = trained(path, trouble)
    assert all(torch.equal(a, b) for a, b in zip(undisturbed, disturbed, strict=True))
    with RunFile(path) as file:
        assert file.steps()[0].tolist() == list(range(30))


# -- processes that come of one that writes ---------------------------------------------------------

FORKS = """
    import gc, random, threading
    warnings.simplefilter("ignore")
    writer = RunWriter(sys.argv[1])
    rng, done = random.Random(int(sys.argv[2])), threading.Event()
    steps = 0
    def train():
        global steps
        while not done.is_set():
            writer.record(steps, rows(steps))
            steps += 1
            if not steps % 50:
                time.sleep(0.001)
    thread = threading.Thread(target=train)
    thread.start()
    children = []
    for _ in range(int(sys.argv[3])):
        time.sleep(rng.random() * 0.05)  # at any moment, also amid a transaction
        pid = os.fork()
        if pid == 0:  # to the end of the interpreter, with all that it cleans up
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for step in range(3):
                    writer.record(step, [])
                    writer.flush()
                    writer.mark()
            del writer
            gc.collect()
            if not (len(caught) == 1 and "forked" in str(caught[0].message)):
                os._exit(3)
            sys.exit(0)
        children.append(pid)
    codes = {os.waitpid(pid, 0)[1] for pid in children}
    done.set()
    thread.join()
    writer.close()
    print(codes == {0}, steps)
"""


def check_forks(path, seed, count):
    fine, steps = run(FORKS, path, seed, count)
    assert fine == "True"
    assert whole_steps(path) == list(range(int(steps)))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forks_at_any_moment_do_the_file_no_harm(path):
    check_forks(path, 0, 10)


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((4,), float(index)), index % 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_workers_of_a_data_loader_do_the_file_no_harm(path, method):
    if method not in torch.multiprocessing.get_all_start_methods():
        pytest.skip("not on this system")
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    with Cockpit(model, [GradNorm()], optimizer=optimizer, log=path) as watch:
        loader = torch.utils.data.DataLoader(
            Squares(), 16, num_workers=1, multiprocessing_context=method
        )
        for step, (inputs, targets) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            with watch(step, loss=loss):
                loss.backward()
            optimizer.step()
    with RunFile(path) as file:
        assert file.steps()[0].tolist() == list(range(4))
        assert file.status == "closed"
    assert list(path.parent.iterdir()) == [path]


def test_a_writer_is_not_sent_to_another_process(path):
    with closing(RunWriter(path)) as writer, pytest.raises(TypeError, match="Open another"):
        pickle.dumps(writer)
