"""Keys as they are pressed, without Enter, and the terminal as it was afterwards."""

from __future__ import annotations

import os
import select
import sys
import time
from types import TracebackType
from typing import Any

__all__ = ["Keyboard"]

KEYS = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"k": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"j": "down",
    b"\x1b[5~": "page up",
    b"b": "page up",
    b"\x1b[6~": "page down",
    b" ": "page down",
    b"w": "wrap",
    b"q": "quit",
    b"Q": "quit",
    b"\x04": "quit",  # Ctrl-D
}
"""What the keys mean; Ctrl-C stays an interrupt."""


class Keyboard:
    """The keyboard of the terminal that is standard input; without one, no key is ever pressed.

    As a context manager it has the keys sent one by one and not shown.
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._file = -1

    def __enter__(self) -> Keyboard:
        try:
            import termios
            import tty

            self._file = sys.stdin.fileno()
            self._before = termios.tcgetattr(self._file)
            tty.setcbreak(self._file)
        except (ImportError, OSError, ValueError, AttributeError):
            self._before = None  # no terminal, or none that this Python can talk to
        except Exception as error:  # termios.error is no OSError
            if type(error).__module__ != "termios":
                raise
            self._before = None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            import termios

            termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def pressed(self, timeout: float) -> list[str]:
        """Wait until keys are pressed, up to `timeout` seconds, and return what they mean."""
        if self._before is None:
            time.sleep(timeout)
            return []
        if not select.select([self._file], [], [], timeout)[0]:
            return []
        sent = os.read(self._file, 64)
        return _meanings(sent) if sent else ["quit"]  # the terminal is gone


def _meanings(sent: bytes) -> list[str]:
    found = []
    while sent:
        key = next((key for key in KEYS if sent.startswith(key)), sent[:1])
        found += [KEYS[key]] if key in KEYS else []
        sent = sent[len(key) :]
    return found
