"""The loop that keeps the terminal up to date."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from cockpit.errors import NotARunFile
from cockpit.run import Run, open_run
from cockpit.summary import about
from cockpit.terminal.keyboard import Keyboard
from cockpit.terminal.snapshot import Snapshot, growing, snapshot, version_of
from cockpit.terminal.view import Screen, page, screen

__all__ = ["watch"]

TICK = 0.2
"""Seconds between two looks at keyboard and window."""

REST = 4.0
"""Reading gets one part of the time in so many more: a long run must not cost a core."""


def watch(
    path: str | os.PathLike[str],
    *,
    once: bool = False,
    interval: float = 1.0,
    console: Console | None = None,
) -> None:
    """Show a run in the terminal and follow it until q is pressed.

    Where nothing can be followed, because the output is no terminal or one that cannot move its
    cursor, the run is printed once.

    Args:
        path: The run file.
        once: Print it once, whatever the output is.
        interval: Seconds between two updates.
        console: Where to print to; standard output by default.

    Raises:
        NotARunFile: There is no run at that path.
        KeyboardInterrupt: Ctrl-C was pressed; the terminal has been restored by then.
    """
    console = console or Console()
    run = open_run(path)
    if once or not console.is_terminal or console.is_dumb_terminal:
        console.print(page(snapshot(run), console))
        return
    live = Live(console=console, screen=True, auto_refresh=False)
    with _terminated_by_exit(), Keyboard() as keyboard, live:
        reader = _Reader(run, interval)
        reader.start()
        try:
            _follow(reader, keyboard, console, live)
        finally:
            reader.end()
            console.clear()  # else tmux keeps lines of it after a change of size


class _Reader(threading.Thread):
    """Reads the run again and again, beside the loop that draws it and listens to the keyboard.

    Attributes:
        shown: What was read last; while a long run is read for the first time, what is known of it.
        problem: Why that may not be the latest, or "".
        error: What ended the reading.
        is_reading: Whether a run is being read for the first time.
    """

    def __init__(self, run: Run, interval: float) -> None:
        super().__init__(name="cockpit-watch", daemon=True)
        self._run, self._interval = run, interval
        self._ended = threading.Event()
        self.shown: Snapshot | None = None
        self.problem = ""
        self.error: BaseException | None = None
        self.is_reading = True

    def run(self) -> None:
        """Read until `end` is called."""
        try:
            version = version_of(self._run.path)
            for shown in growing(self._run):
                self.shown = shown
                if self._ended.is_set():
                    return
            self.is_reading, taken = False, 0.0
            while not self._ended.wait(max(self._interval, REST * taken)):
                start = time.monotonic()
                version = self._read(version)
                taken = time.monotonic() - start
        except BaseException as error:
            self.error = error

    def _read(self, before: tuple[object, ...]) -> tuple[object, ...]:
        """Read what is new; a file that cannot be read just now is tried again."""
        version = version_of(self._run.path)
        try:
            if version != before:
                self._run.refresh()
                self.shown = snapshot(self._run)
            elif self.shown is not None and self.shown.about.status == "running":
                # The process may have ended without a word.
                self.shown = replace(self.shown, about=about(self._run))
            self.problem = ""
        except NotARunFile as error:
            self.problem = str(error)
            return before
        return version

    def end(self) -> None:
        """Let go of the run soon."""
        self._ended.set()


def _follow(reader: _Reader, keyboard: Keyboard, console: Console, live: Live) -> None:
    """Draw what the reader has until somebody quits."""
    top, lines, full = 0, 1, False
    drawn: tuple[object, ...] = ()
    while reader.error is None:
        second = int(time.monotonic())  # "3 s ago" has to go on
        now = (reader.shown, reader.problem, reader.is_reading, console.size, second)
        if (*now, top, full) != drawn:
            seen = _picture(reader, console, top, full)
            live.update(seen.picture, refresh=True)
            top, lines = seen.top, seen.lines
            drawn = (*now, top, full)
        for key in keyboard.pressed(TICK):
            if key == "quit":
                return
            if key == "wrap":
                full = not full
            top += {"up": -1, "down": 1, "page up": -lines, "page down": lines}.get(key, 0)
    raise reader.error


def _picture(reader: _Reader, console: Console, top: int, full: bool) -> Screen:
    shown = reader.shown
    if shown is None:
        return Screen(Text("Reading the run ..."), 0, 1)
    problem = reader.problem or ("Reading the run ..." if reader.is_reading else "")
    return screen(shown, console, top, problem, full=full)


@contextmanager
def _terminated_by_exit() -> Iterator[None]:
    """Let a request to end (SIGTERM) unwind, so that the terminal is restored on the way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
