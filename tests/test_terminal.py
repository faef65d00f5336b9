"""The run in the terminal: curves in a line, what fits on a screen, and a real session under a pty."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from cockpit.cli import main
from cockpit.comparison import compare
from cockpit.findings import Finding
from cockpit.log import ParameterInfo, Row, RunWriter
from cockpit.run import open_run
from cockpit.terminal import comparison_page, sparkline, watch
from cockpit.terminal.keyboard import _meanings
from cockpit.terminal.snapshot import Snapshot, growing, snapshot
from cockpit.terminal.sparkline import BLOCKS, PLAIN
from cockpit.terminal.trends import trend_of
from cockpit.terminal.view import screen

PATIENCE = 60.0
"""Seconds until a session must have shown what is waited for."""

FINDING = Finding(
    code="CP101",
    name="learning-rate-too-high",
    severity="error",
    step=3,
    title="The learning rate is [too] high",
    subjects=("fc.weight",),
    why="Steps overshoot.",
    action="Divide it by 3.",
    source="a paper",
)


def write(path: Path, quantities: int = 30, steps: int = 40, findings: int = 1) -> RunWriter:
    """Write a run that is not closed yet."""
    writer = RunWriter(
        path,
        settings={"model": "Net", "optimizers": [{"class": "SGD", "lr": 0.1}]},
        parameters=[ParameterInfo("fc.weight", (3, 4), "float32")],
    )
    for step in range(steps):
        rows = [Row(f"Metric{n}", float(np.sin(step + n))) for n in range(quantities)]
        writer.record(step, [Row("Loss", 1 / (1 + step)), *rows])
    for _ in range(findings):
        writer.finding(FINDING)
    writer.flush()
    return writer


# -- curves ---------------------------------------------------------------------------------------


def test_a_sparkline_goes_from_the_lowest_to_the_highest() -> None:
    assert sparkline(np.arange(8.0), 8) == BLOCKS
    assert sparkline(-np.arange(8.0), 8) == BLOCKS[::-1]
    assert sparkline(np.arange(8.0), 8, PLAIN) == PLAIN
    assert sparkline(np.array([3.0]), 8) == BLOCKS[0]
    assert sparkline(np.zeros(0), 8) == ""


@pytest.mark.parametrize("place", [0, 137, 4321, 9999])
@pytest.mark.parametrize("spike", [7.0, -7.0])
def test_no_spike_disappears(place: int, spike: float) -> None:
    values = np.sin(np.arange(10_000.0))
    values[place] = spike
    line = sparkline(values, 20)
    assert len(line) == 20
    assert line[place * 20 // 10_000] == (BLOCKS[-1] if spike > 0 else BLOCKS[0])
    assert line.count(line[place * 20 // 10_000]) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_marked(bad: float) -> None:
    values = np.ones(100)
    values[50] = bad
    assert sparkline(values, 10) == f"{BLOCKS[0] * 5}!{BLOCKS[0] * 4}"
    assert sparkline(np.full(30, bad), 10) == "!" * 10


def test_decades_are_shown_by_their_logarithms() -> None:
    line = sparkline(10.0 ** -np.arange(0, 16, 2.0), 8)
    assert line == BLOCKS[::-1]


def test_values_at_the_end_of_what_floats_hold() -> None:
    assert set(sparkline(np.array([-1.7e308, 0, 1.7e308]), 3)) <= set(BLOCKS)


def test_which_curve_stands_for_a_quantity(tmp_path: Path) -> None:
    names = ("a", "b")
    writer = RunWriter(
        tmp_path / "run.db", parameters=[ParameterInfo(name, (2,), "float32") for name in names]
    )
    for step in range(4):
        norms = [Row("GradNorm", value, parameter=name) for value, name in enumerate(names, 3)]
        noise = Row("GradientNoiseScale", float(step), key="noise_scale")
        array = Row("GradHist1d", np.arange(3), key="hist")
        writer.record(step, [*norms, noise, array, Row("Time", 2.0 * step)])
    writer.close()
    run = open_run(tmp_path / "run.db")
    assert trend_of(run, "GradNorm").tolist() == [5.0] * 4
    assert trend_of(run, "GradientNoiseScale").tolist() == [0, 1, 2, 3]
    assert trend_of(run, "Time").tolist() == [2.0] * 3
    assert not len(trend_of(run, "GradHist1d"))


# -- the screen -----------------------------------------------------------------------------------


@pytest.fixture
def shown(tmp_path: Path) -> Snapshot:
    write(tmp_path / "run.db", findings=8).close()
    return snapshot(open_run(tmp_path / "run.db"))


def drawn(
    shown: Snapshot, width: int, height: int, top: int = 0, *, full: bool = False
) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width, height=height, force_terminal=True)
    console.print(screen(shown, console, top, full=full).picture)
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()


@pytest.mark.parametrize("width", [40, 80, 120, 250])
@pytest.mark.parametrize("height", [24, 60])
def test_a_screen_is_not_left(shown: Snapshot, width: int, height: int) -> None:
    lines = drawn(shown, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "CP101" in text
    assert "and 3 more" in text
    assert "q quit" in lines[-1]


def test_it_scrolls_to_the_end_and_no_further(shown: Snapshot) -> None:
    first, last = drawn(shown, 80, 24), drawn(shown, 80, 24, top=10_000)
    assert "Loss" in "\n".join(first)
    assert "Metric29" not in "\n".join(first)
    assert "Loss" not in "\n".join(last)
    assert "Metric29" in last[-2]
    assert "31 of 31" in last[-1]
    assert len(first) == len(last) == 24


def test_without_colours_there_are_none(shown: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.StringIO()
    console = Console(file=stream, width=80, height=24, force_terminal=True)
    console.print(screen(shown, console, 0).picture)
    codes = set(";".join(re.findall(r"\x1b\[([0-9;]*)m", stream.getvalue())).split(";"))
    assert codes <= {"", "0", "1", "2", "22", "39", "49"}  # bold and dim only
    assert "E CP101" in re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())


def test_without_blocks_there_are_letters(shown: Snapshot) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    console = Console(file=stream, width=80, height=24)
    console.print(screen(shown, console, 0).picture)
    stream.flush()
    line = next(
        line for line in stream.buffer.getvalue().decode().splitlines() if "Metric1 " in line
    )
    assert set(line.split()[2]) <= set(PLAIN)


def test_it_grows_by_one_quantity_at_a_time(shown: Snapshot, tmp_path: Path) -> None:
    counts = [len(one.lines) for one in growing(open_run(tmp_path / "run.db"))]
    assert counts == list(range(32))


def test_an_empty_run_has_a_screen(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run.db")
    writer.flush()
    lines = drawn(snapshot(open_run(tmp_path / "run.db")), 80, 24)
    writer.close()
    assert "running" in lines[0]
    assert "0 steps tracked" in lines[1]


@pytest.fixture
def wordy(tmp_path: Path) -> Snapshot:
    """Return a run whose meanings are longer than a line of 80 columns."""
    names = [f"a_long_name_of_a_layer.{n}.weight" for n in range(20)]
    writer = RunWriter(
        tmp_path / "run.db", parameters=[ParameterInfo(name, (2,), "float32") for name in names]
    )
    kinds = [f"GradNorm-{n}" for n in range(2, 14)]
    for step in range(3):
        rows = [Row(k, 1.0 + n, parameter=name) for k in kinds for n, name in enumerate(names)]
        writer.record(step, rows)
    writer.close()
    return snapshot(open_run(tmp_path / "run.db"))


def rows_of(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines if line.startswith("GradNorm")]


def test_where_there_is_room_nothing_is_cut(wordy: Snapshot) -> None:
    text = " ".join("\n".join(drawn(wordy, 80, 60)).split())
    assert "…" not in text
    assert text.count("layer.19.weight") == len(wordy.lines)
    assert "whole texts" not in text


def test_where_there_is_none_a_key_shows_the_rest(wordy: Snapshot) -> None:
    cut = drawn(wordy, 80, 22)
    assert len(rows_of(cut)) == 12
    assert "…" in "\n".join(cut)
    assert "w whole texts" in cut[-1]
    seen = []
    for top in range(len(wordy.lines)):
        whole = drawn(wordy, 80, 22, top, full=True)
        assert len(whole) <= 22
        assert "…" not in "\n".join(whole)
        assert "w one line each" in whole[-1]
        seen += rows_of(whole)
    assert set(seen) == {line.quantity for line in wordy.lines}
    assert rows_of(drawn(wordy, 80, 22, 99, full=True))[-1] == "GradNorm-13"


@pytest.mark.parametrize("width", [30, 80, 250])
@pytest.mark.parametrize("height", [5, 12, 24])
def test_whole_texts_do_not_leave_the_screen(wordy: Snapshot, width: int, height: int) -> None:
    lines = drawn(wordy, width, height, 4, full=True)
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 10)  # at least a row is shown
    assert rows_of(lines)


def test_an_empty_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunWriter(tmp_path / "run.db").close()
    for command in ("show", "watch"):
        assert main([command, str(tmp_path / "run.db")]) == 0
        out = capsys.readouterr().out
        assert "Nothing has been recorded yet." in out
        assert "what it means" not in out
        assert "due" not in out
    assert any("Nothing" in line for line in drawn(snapshot(open_run(tmp_path / "run.db")), 80, 24))


# -- names that are instructions ------------------------------------------------------------------

EVIL = "\x1b]0;owned\x07\x1b[31mred\u202eevil\x9b2J\nE CP999  step 0\r"


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    writer = RunWriter(
        tmp_path / "run.db",
        settings={"model": EVIL, "optimizers": [{"class": EVIL}], EVIL: EVIL},
        parameters=[ParameterInfo(EVIL, (2,), "float32")],
    )
    writer.record(0, [Row("GradNorm", 1.0, parameter=EVIL), Row(EVIL, 2.0)])
    for kind in ("not-checked", "basis", "budget", EVIL):
        writer.note(0, kind, EVIL, EVIL)
    changes = {"why": EVIL, "action": EVIL, "source": EVIL, "subjects": (EVIL,)}
    writer.finding(replace(FINDING, title=EVIL.replace("\n", "").replace("\r", ""), **changes))
    writer.close()
    return tmp_path / "run.db"


@pytest.mark.parametrize(
    "arguments", [["show"], ["watch"], ["compare"], ["report", "--format", "markdown", "-o", "-"]]
)
def test_names_do_nothing_to_a_terminal(
    arguments: list[str], evil: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command, *options = arguments
    assert main([command, *[str(evil)] * (1 + (command == "compare")), *options]) == 0
    out = capfd.readouterr().out
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", out)
    assert not re.search("^E CP999", out, flags=re.M)
    assert "x1b" in out


def test_names_do_nothing_to_the_screen(evil: Path) -> None:
    text = "\n".join(drawn(snapshot(open_run(evil)), 80, 24))
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "\\x1b[31mred\\u202eevil" in text


def test_an_error_does_nothing_to_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(tmp_path / "\x1b[31mno.db")]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_keys() -> None:
    assert _meanings(b"q") == ["quit"]
    assert _meanings(b"w") == ["wrap"]
    assert _meanings(b"\x1b[Bx\x1b[6~k") == ["down", "page down", "up"]
    assert _meanings(b"\x1b") == []


# -- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["--once"]])
def test_output_that_is_no_terminal_gets_one_table(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    write(tmp_path / "run.db").close()
    assert main(["watch", str(tmp_path / "run.db"), *arguments]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "E CP101  step 3  The learning rate is [too] high  fc.weight" in out
    assert "Divide it by 3." in out
    assert all(f"Metric{n}" in out for n in range(30))
    assert BLOCKS[0] in out


def test_a_run_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path / "no.db")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


class Session:
    """A command in a terminal of its own."""

    def __init__(self, arguments: list[str], **environment: str) -> None:
        import fcntl
        import pty
        import struct
        import termios

        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._modes = termios.tcgetattr
        self.before = termios.tcgetattr(self.master)

        def own_terminal() -> None:  # so that Ctrl-C is a signal
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        removed = {"COLUMNS", "LINES", "NO_COLOR", "CI", "FORCE_COLOR"}
        kept = {name: value for name, value in os.environ.items() if name not in removed}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cockpit", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            preexec_fn=own_terminal,
            env={**kept, "TERM": "xterm-256color", "PYTHONUTF8": "1", **environment},
        )
        os.close(slave)
        os.set_blocking(self.master, False)
        self.seen = ""

    def wait_for(self, text: str) -> None:
        end = time.monotonic() + PATIENCE
        while text not in self.seen:
            assert time.monotonic() < end, f"never saw {text!r} in {self.seen[-2000:]!r}"
            self._read()
            time.sleep(0.02)

    def send(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def ends(self) -> int:
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < end, "it goes on"
            self._read()
            time.sleep(0.02)
        self._read()
        return self.process.returncode

    @property
    def is_restored(self) -> bool:
        left = self.seen.rpartition("\x1b[?1049h")[2]  # after the other screen was entered
        modes = self._modes(self.master) == self.before
        return modes and "\x1b[?1049l" in left and "\x1b[?25h" in left

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)

    def _read(self) -> None:
        with suppress(BlockingIOError, OSError):  # the other end may be closed
            self.seen += os.read(self.master, 1 << 16).decode(errors="replace")


@pytest.fixture
def sessions() -> Iterator[list[Session]]:
    started: list[Session] = []
    yield started
    for session in started:
        session.close()


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_a_session_follows_a_training_and_quits(tmp_path: Path, sessions: list[Session]) -> None:
    writer = write(tmp_path / "run.db", quantities=3, steps=5, findings=0)
    session = Session(["watch", str(tmp_path / "run.db"), "--interval", "0.1"])
    sessions.append(session)
    session.wait_for("5 steps tracked")
    session.wait_for("q quit")
    writer.record(77, [Row("Loss", 0.5)])
    writer.finding(FINDING)
    writer.flush()
    session.wait_for("6 steps tracked, the last one 77")
    session.wait_for("CP101")
    writer.close()
    session.wait_for("closed")
    assert session.process.poll() is None
    session.send(b"q")
    assert session.ends() == 0
    assert session.is_restored
    assert "Traceback" not in session.seen


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("way", "code"), [("Ctrl-C", 130), ("SIGTERM", 128 + signal.SIGTERM)])
def test_the_terminal_is_restored(
    way: str, code: int, tmp_path: Path, sessions: list[Session]
) -> None:
    write(tmp_path / "run.db", quantities=3, steps=5).close()
    session = Session(["watch", str(tmp_path / "run.db"), "--interval", "0.1"])
    sessions.append(session)
    session.wait_for("q quit")
    if way == "Ctrl-C":
        (tmp_path / "run.db").unlink()  # which is said, and ends nothing
        session.wait_for("There is no file")
        session.send(b"\x03")
    else:
        session.process.send_signal(signal.SIGTERM)
    assert session.ends() == code
    assert session.is_restored
    assert "Traceback" not in session.seen


def test_a_terminal_that_cannot_move_its_cursor_gets_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    write(tmp_path / "run.db", quantities=3, steps=5).close()
    stream = io.StringIO()
    watch(tmp_path / "run.db", console=Console(file=stream, width=80, force_terminal=True))
    assert "Metric2" in stream.getvalue()
    assert "\x1b[?" not in stream.getvalue()


# -- several runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 200])
def test_runs_side_by_side_fit(width: int, tmp_path: Path) -> None:
    runs = []
    for n in range(6):
        write(tmp_path / f"run{n}.db", quantities=3, findings=n % 2).close()
        runs.append(open_run(tmp_path / f"run{n}.db"))
    stream = io.StringIO()
    Console(file=stream, width=width).print(comparison_page(compare(runs), width))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert all(f"run{n}" in stream.getvalue() for n in range(6))
    assert "CP101 learning-rate-too-high" in stream.getvalue()
