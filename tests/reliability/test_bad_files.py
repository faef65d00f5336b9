"""Files that are cut short, damaged, hostile, or no run files at all: refused by name, within bounds."""

import os
import resource
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from reliability import hostile
from reliability.reading import read_run

from cockpit import run as run_module
from cockpit.cli import main
from cockpit.errors import CockpitError, NotARunFile
from cockpit.log import RunFile, RunWriter, json_v1, scalars
from cockpit.run import open_run

COMMANDS = (
    ("show", "{run}"),
    ("watch", "{run}", "--once"),
    ("doctor", "{run}"),
    ("compare", "{run}", "{good}"),
    ("export", "{run}", "-o", "{folder}/out.csv"),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a short and a long run, which tests copy."""
    folder = tmp_path_factory.mktemp("runs")
    hostile.write_run(folder / "short.db")
    hostile.write_long_run(folder / "long.db")
    return folder


@pytest.fixture
def path(tmp_path: Path, runs: Path) -> Path:
    """Return a short run that may be spoilt."""
    return Path(shutil.copy(runs / "short.db", tmp_path / "run.db"))


def contents(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}


def refusal_of(path: Path) -> str:
    """Return why a file is refused, "" if it is read; anything but a `CockpitError` fails the test."""
    try:
        read_run(path)
    except CockpitError as error:
        refusal = str(error)
    else:
        refusal = ""
    assert len(refusal) < 1000
    return refusal


def within(code: str, *arguments: object, megabytes: int = 3000, seconds: int = 60) -> str:
    """Run code in a process with so much memory and time, and return what it prints."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes * 2**20,) * 2)

    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        preexec_fn=limit,
        timeout=seconds,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


# -- hostile databases ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", hostile.SCHEMAS)
def test_what_sqlite_would_run_is_refused_before_it_is_touched(path: Path, name: str) -> None:
    hostile.SCHEMAS[name](path)
    before = contents(path.parent)
    for opening in (open_run, RunFile, lambda path: RunWriter(path, resume=True)):
        with pytest.raises(NotARunFile, match=r"run\.db is damaged: it(s| has an?) .* run file"):
            opening(path)
    assert contents(path.parent) == before


def test_if_the_schema_were_not_looked_at_the_authorizer_would_refuse_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile.SCHEMAS["an endless view"](path)
    hostile.SCHEMAS["a view that loads code"](path)
    monkeypatch.setattr("cockpit.log.reader.check_schema", lambda connection: None)
    with RunFile(path) as file:
        for read in (file.steps, file.extent, file.scalars):
            with pytest.raises(NotARunFile, match=r"prohibited|not authorized|unsafe use"):
                read()


def test_tables_and_indexes_of_their_own_do_no_harm(path: Path) -> None:
    hostile.alter(path, "CREATE TABLE my_notes(text)", "CREATE INDEX mine ON my_notes(text)")
    assert len(read_run(path).steps) == 6


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM scalars",
        "CREATE TABLE x(y)",
        "CREATE TEMP TABLE x(y)",
        "ATTACH 'elsewhere.db' AS x",
        "PRAGMA query_only = OFF",
        "PRAGMA writable_schema = ON",
        "PRAGMA temp_store_directory = '/tmp'",
        "SELECT load_extension('x')",
        "SELECT writefile('x', 'y')",
        "SELECT randomblob(900000000)",
        "SELECT * FROM pragma_database_list",
        "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT count(*) FROM t",
        "VACUUM INTO 'elsewhere.db'",
        "REINDEX",
        "ANALYZE",
    ],
)
def test_a_reader_can_do_nothing_but_read_a_run(path: Path, statement: str) -> None:
    with RunFile(path) as file, pytest.raises(sqlite3.Error):
        file._connection.execute(statement).fetchall()


def test_endless_work_within_the_tables_ends(path: Path) -> None:
    query = f"SELECT count(s0.value) FROM {', '.join(f'scalars s{n}' for n in range(12))}"
    with RunFile(path) as file, pytest.raises(sqlite3.OperationalError, match="interrupted"):
        file._connection.execute(query)


@pytest.mark.parametrize("table", ["steps", "events", "findings", "series", "parameters"])
def test_pages_in_a_circle_do_not_make_a_file_endless(path: Path, table: str) -> None:
    hostile.endless_table(path, table)
    code = """if True:
        import sys
        from pathlib import Path
        from reliability.reading import read_run
        from cockpit.errors import NotARunFile
        try:
            read_run(Path(sys.argv[1]))
        except NotARunFile as error:
            print(error)
    """
    code = f"import sys; sys.path[:0] = {sys.path!r}\n{code}"
    said = within(code, path)
    assert "takes more work than" in said or "more can be read from it than it has" in said


@pytest.mark.parametrize(
    ("source", "table"),
    [
        *(("short", table) for table in hostile.COLUMNS),
        ("long", "scalar_blocks"),
        ("long", "blocks"),
    ],
)
def test_whatever_a_column_holds_the_error_is_ours(
    tmp_path: Path, runs: Path, table: str, source: str
) -> None:
    good = runs / f"{source}.db"
    read = 0
    for column in hostile.COLUMNS[table]:
        for number, value in list(enumerate(hostile.VALUES))[len(column) % 3 :: 3]:
            path = Path(shutil.copy(good, tmp_path / f"{column}-{number}.db"))
            try:
                hostile.alter(path, f"UPDATE OR IGNORE {table} SET {column} = ?", values=(value,))
            except sqlite3.IntegrityError:
                continue
            refusal = refusal_of(path)
            assert not refusal or path.name in refusal or "run.arrays" in refusal
            read += 1
            path.unlink()
    assert read


def test_many_equal_numbers_in_few_bytes_are_not_all_unpacked(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scalars, "MAX_NUMBERS", 10**6)
    hostile.number_bomb(path, blocks=100)
    run = open_run(path)
    assert path.stat().st_size < 200_000
    with pytest.raises(NotARunFile, match="claims more than 1000000 numbers"):
        run.scalars()
    assert run.curve("Alpha")[1].tolist() == [0.1 * step for step in range(6)]  # others are read


def test_many_large_arrays_in_few_bytes_are_not_all_unpacked(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "MAX_ARRAY_BYTES", 2**24)
    hostile.array_bomb(path, arrays=6, size=2**22)
    run = open_run(path)
    assert path.stat().st_size < 200_000
    for read in (run.arrays, lambda: run.arrays("GradHist1d"), lambda: run.series("GradHist1d")):
        with pytest.raises(NotARunFile, match=r"take more than \d+ bytes .* run.arrays\(quantity"):
            read()


def test_a_text_of_many_megabytes_is_not_read(path: Path) -> None:
    hostile.alter(path, "UPDATE meta SET value = ? WHERE key = 'settings'", values=("[" * 2**25,))
    with pytest.raises(NotARunFile, match="too big"):
        open_run(path)


def test_nor_is_what_is_nested_deeper_than_anything_we_write(path: Path) -> None:
    deep = '{"a": ' * 100 + "1" + "}" * 100
    hostile.alter(path, "UPDATE meta SET value = ? WHERE key = 'settings'", values=(deep,))
    with pytest.raises(NotARunFile, match="nested deeper than 64 levels"):
        open_run(path)


# -- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["short", "long"])
def test_a_file_that_ends_anywhere_is_read_or_refused(
    tmp_path: Path, runs: Path, source: str
) -> None:
    whole = (runs / f"{source}.db").read_bytes()
    ends = [*range(0, 130, 13), *range(130, len(whole), len(whole) // 60)]
    refused = []
    for end in ends:
        path = tmp_path / f"{end}.db"
        path.write_bytes(whole[:end])
        refused.append(refusal_of(path))
    assert sum(map(bool, refused)) > len(ends) // 2
    assert all(
        "run.db" in one or f"{end}.db" in one for one, end in zip(refused, ends, strict=True) if one
    )


def test_a_file_with_any_bytes_changed_is_read_or_refused(tmp_path: Path, runs: Path) -> None:
    rng = np.random.default_rng(0)
    whole = np.frombuffer((runs / "short.db").read_bytes(), np.uint8)
    for number in range(60):
        data = whole.copy()
        places = rng.integers(0, [200, len(data)][number % 2], size=rng.integers(1, 9))
        data[places] = rng.integers(0, 256, size=len(places))
        path = tmp_path / f"{number}.db"
        path.write_bytes(data.tobytes())
        refusal = refusal_of(path)
        assert not refusal or path.name in refusal


def test_a_file_that_shrinks_while_it_is_read(path: Path, runs: Path) -> None:
    shutil.copy(runs / "long.db", path)
    with RunFile(path) as file:
        os.truncate(path, 8192)  # the first pages are there, and known; the others are gone
        for read in (file.scalars, lambda: list(file.arrays()), file.output):
            with pytest.raises(NotARunFile, match=r"run\.db is damaged"):
                read()


# -- what is beside a file ------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["-wal", "-shm", "-journal"])
def test_helper_files_that_are_none_are_not_followed(path: Path, ending: str) -> None:
    beside = Path(f"{path}{ending}")
    elsewhere = path.parent / "elsewhere"
    for make in (
        lambda: beside.symlink_to(elsewhere),
        lambda: os.mkfifo(beside),
        lambda: beside.mkdir(),
    ):
        make()
        with pytest.raises(NotARunFile, match=f"run.db{ending} beside it is not a regular file"):
            open_run(path)
        assert not elsewhere.exists()
        beside.rmdir() if beside.is_dir() else beside.unlink()
    assert len(read_run(path).steps) == 6


@pytest.mark.parametrize("ending", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("content", [b"", b"\0" * 4096, b"\xff" * 40_000], ids=["", "0", "1"])
def test_foreign_helper_files_change_nothing(path: Path, ending: str, content: bytes) -> None:
    before = path.read_bytes()
    Path(f"{path}{ending}").write_bytes(content)
    if ending == "-journal" and content[:1] > b"\0":  # one whose changes would have to be undone
        with pytest.raises(
            NotARunFile, match="has beside it the -journal of a change that was int"
        ):
            open_run(path)
    else:
        assert len(read_run(path).steps) == 6
    assert path.read_bytes() == before


def killed(tmp_path: Path) -> Path:
    """Return a run that was killed: what was committed last is in its log only."""
    path = tmp_path / "killed.db"
    code = (
        f"import sys, os, signal; sys.path[:0] = {sys.path!r}\n"
        "from cockpit.log import Row, RunWriter\n"
        "w = RunWriter(sys.argv[1])\n"
        "for k in range(5): w.record(k, [Row('Loss', 1.0)])\n"
        "w.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], timeout=60)
    assert Path(f"{path}-wal").stat().st_size > 0
    return path


def test_the_log_of_a_killed_run_is_read_and_a_foreign_one_is_not(
    tmp_path: Path, runs: Path
) -> None:
    path = killed(tmp_path)
    before = path.read_bytes()
    assert read_run(path).steps.tolist() == [0, 1, 2, 3, 4]
    assert path.read_bytes() == before
    for ending in ("-wal", "-shm"):
        Path(f"{path}{ending}").unlink(missing_ok=True)
    Path(f"{path}-wal").write_bytes(np.random.default_rng(0).bytes(50_000))
    assert read_run(path).steps.tolist() == []
    assert path.read_bytes() == before


def test_reading_a_closed_run_writes_nothing(path: Path) -> None:
    before = contents(path.parent)
    status = path.stat()
    with RunFile(path) as file:
        file.output()
        assert contents(path.parent) == before
    read_run(path)
    assert contents(path.parent) == before
    assert path.stat().st_mtime_ns == status.st_mtime_ns


def test_a_run_on_something_that_cannot_be_written_to(tmp_path: Path) -> None:
    # Permissions do not bind root, so that a process of nobody reads.
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "runs")
        folder.mkdir()
        path = killed(tmp_path)
        shutil.copy(path, folder / "alone.db")  # as after `cp killed.db elsewhere`
        for ending in ("", "-wal"):
            shutil.copy(f"{path}{ending}", f"{folder / 'killed.db'}{ending}")
        shutil.copy(hostile.write_run(tmp_path / "closed.db"), folder / "closed.db")
        os.chmod(place, 0o755)
        for one in folder.iterdir():
            one.chmod(0o444)
        folder.chmod(0o555)
        names = sorted(one.name for one in folder.iterdir())
        code = f"""if True:
            import os, sys; sys.path[:0] = {sys.path!r}
            import pandas
            from cockpit.log import RunFile
            if os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)
            for name in ("alone", "closed", "killed"):
                try:
                    print(name, RunFile(f"{{sys.argv[1]}}/{{name}}.db").extent())
                except Exception as error:
                    print(name, type(error).__name__, error)
        """
        said = within(code, folder).splitlines()
        assert sorted(one.name for one in folder.iterdir()) == names
        folder.chmod(0o755)
    assert said[0] == "alone (0, None, None)"
    assert said[1] == "closed (6, 0, 5)"
    assert "NotARunFile" in said[2]
    assert "needs its -wal file, and a folder that may be written to" in said[2]


# -- no files -------------------------------------------------------------------------------------


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


@pytest.mark.parametrize("name", ["x.db", "x.json", "x"])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (os.mkfifo, "is a pipe, a device or a socket"),
        (make_socket, "is a pipe, a device or a socket"),
        (lambda path: path.symlink_to("/dev/zero"), "is a pipe, a device or a socket"),
        (lambda path: path.symlink_to(path), "cannot be read: .*Too many levels"),
        (lambda path: path.symlink_to("nowhere"), "There is no file"),
        (Path.mkdir, "is a folder"),
        (Path.touch, "is empty"),
    ],
    ids=["pipe", "socket", "device", "loop", "dangling", "folder", "empty"],
)
def test_what_is_no_file_is_neither_waited_for_nor_read(
    tmp_path: Path, name: str, make, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / name)
    with pytest.raises(NotARunFile, match=message):
        open_run(name)
    with pytest.raises(NotARunFile, match=message):
        open_run(tmp_path / name)


@pytest.mark.parametrize("name", ["a\0b.db", "x" * 300 + ".db", "/proc/self/mem", "a.db/b.db"])
def test_paths_that_there_cannot_be(path: Path, name: str, monkeypatch) -> None:
    monkeypatch.chdir(path.parent)
    (path.parent / "a.db").touch()
    with pytest.raises(NotARunFile):
        open_run(name)


# -- JSON -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        '{"0": {"Loss": ' + "[" * 10**6,
        '{"0": ' * 10**6,
        '{"0": {"Loss": 1' + "0" * 10**6 + "}}",
        '{"0": {"Loss": "' + "\\u0000" * 10**5,
        '{"0": {"' + "x" * 10**6 + '": [[1], [1, 2], {}]}',
        '{"0": {"GradNorm": [[[]], {}, "a", null, NaN, -Infinity, 1e999]}}',
        '{"0": {"Loss": 1}, "0": {"Loss": {"Loss": {"": {"": []}}}}}',
        '{"9223372036854775808": {"Loss": 1}}',
        '{"0": {"<script>alert(1)</script>\\u001b[2J": 1}}',
        "\ufeff{}",
        "{}",
    ],
    ids=lambda text: text[:24],
)
def test_json_is_read_or_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(content, encoding="utf-8")
    refusal = refusal_of(path)
    assert not refusal or path.name in refusal
    assert list(tmp_path.iterdir()) == [path]


def test_json_that_would_swell_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"0": {"Loss": [' + "[]," * 2_000_000 + "[]]}}")
    monkeypatch.setattr(json_v1, "MAX_MEMORY", 2**27)
    monkeypatch.setattr(json_v1.json, "loads", lambda *text, **hook: pytest.fail("it was parsed"))
    with pytest.raises(NotARunFile, match="more memory than there is"):
        open_run(path)


@pytest.mark.parametrize(
    "unit", ["[],", "0.1,", "12345,", "0,", "{},", '"ab",', "NaN,", '{"a":1},']
)
def test_what_parsing_takes_is_known_before(unit: str) -> None:
    text = '{"0":{"a":[' + unit * 100_000 + "0]}}"
    code = (
        "import sys, json, tracemalloc; text = sys.stdin.read(); tracemalloc.start()\n"
        "json.loads(text); print(tracemalloc.get_traced_memory()[1])"
    )
    done = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, text=True)
    assert int(done.stdout) <= 1.02 * json_v1._memory_of(text.encode())


# -- commands -------------------------------------------------------------------------------------


def spoilt(folder: Path, runs: Path, command: str) -> dict[str, Path]:
    """Return files of all these kinds; one that takes its time for a single command."""
    made = {}
    for name in ("an endless view", "a trigger", "a generated column"):
        made[name] = Path(shutil.copy(runs / "short.db", folder / f"{len(made)}.db"))
        hostile.SCHEMAS[name](made[name])
    if command == "show":
        made["endless"] = Path(shutil.copy(runs / "short.db", folder / "endless.db"))
        hostile.endless_table(made["endless"], "steps")
    for name, content in {
        "cut": (runs / "short.db").read_bytes()[:9000],
        "deep": b'{"0": {"Loss": ' + b"[" * 10**5,
        "foreign": b"\x89PNG\r\n" + bytes(1000),
        "empty": b"",
    }.items():
        made[name] = folder / f"{name}.db"
        made[name].write_bytes(content)
    made["pipe"] = folder / "pipe.db"
    os.mkfifo(made["pipe"])
    return made


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_commands_say_what_is_wrong_in_one_line(
    tmp_path: Path, runs: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for name, path in spoilt(tmp_path, runs, command[0]).items():
        words = [w.format(run=path, good=runs / "short.db", folder=tmp_path) for w in command]
        assert main(words) == 2, name
        printed = capsys.readouterr()
        assert printed.err.startswith("cockpit: "), name
        assert printed.err.count("\n") == 1
        assert path.name in printed.err
        assert "Traceback" not in printed.err
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("command", COMMANDS[:4], ids=lambda words: words[0])
def test_names_do_nothing_to_a_terminal(
    path: Path, runs: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    name = "\x1b[2J\x1b]0;gone\x07\u202e\r<b>&amp;/../../x\n"
    hostile.alter(path, "UPDATE parameters SET name = name || ?", values=(name,))
    hostile.alter(path, "UPDATE series SET quantity = quantity || ? WHERE id > 2", values=(name,))
    hostile.alter(path, "UPDATE events SET subject = ?, message = ?", values=(name, name))
    hostile.alter(path, "UPDATE meta SET value = ? WHERE key = 'settings'",
                  values=('{"model": "\\u001b[2J\\u0007", "lr": "\\u001b[31m"}',))  # fmt: skip
    hostile.alter(
        path, "UPDATE findings SET record = replace(record, 'too high', 'too \\u001b[2J')"
    )
    words = [w.format(run=path, good=runs / "short.db", folder=path.parent) for w in command]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fonts without a sign are another matter
        assert main(words) in (0, 1)
    printed = capsys.readouterr()
    for sign in ("\x1b", "\x07", "\u202e", "\r"):
        assert sign not in printed.out + printed.err
