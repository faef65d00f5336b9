"""The runs under a folder: which there are, and which path a name stands for.

Names come from a browser, so they are not trusted: only regular run files that lie under the folder
itself can be reached, by no ``..`` and through no symbolic link.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from cockpit.errors import CockpitError, InvalidArgument
from cockpit.log import open_file
from cockpit.log.reader import is_database

__all__ = ["Library", "NotThere", "Stamp", "changed", "stamp"]

MAX_DEPTH = 8
MAX_RUNS = 1000
MAX_VISITED = 50_000
MAX_JSON_BYTES = 256 * 2**20
"""The JSON of Cockpit 1.0 is read as a whole: a larger file would take the server's memory."""

APPLICATION_ID_AT = slice(68, 72)
JSON_OF_1_0 = re.compile(rb'\s*\{\s*("\d+"\s*:|\})')

Stamp: TypeAlias = tuple[int, ...]
"""Changes whenever a run file does."""


class NotThere(CockpitError):
    """There is no run of that name under the folder."""


@dataclass(frozen=True)
class Library:
    """The run files under a folder, or a single one.

    Args:
        place: The folder, or a run file.

    Raises:
        InvalidArgument: There is no such file or folder.
        NotARunFile: It is a file, but no run file.
    """

    place: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", self.place.expanduser().resolve())
        if not self.place.exists():
            raise InvalidArgument(
                f"there is no file or folder {self.place}. Give the folder that the run files "
                "of Cockpit(..., log=path) are in, or one of them."
            )
        if not self.place.is_dir():
            open_file(self.place).close()

    @property
    def folder(self) -> Path:
        """The folder under which everything lies that can be reached."""
        return self.place if self.place.is_dir() else self.place.parent

    def hide(self, text: str) -> str:
        """Return an error's text with paths below the folder only: the rest is nobody's business."""
        return text.replace(f"{self.folder}{os.sep}", "")

    def names(self) -> list[str]:
        """Return the paths of the runs below the folder, those that changed last first."""
        if not self.place.is_dir():
            return [self.place.name]
        found = sorted(_run_files(self.folder), key=lambda item: item[1], reverse=True)
        return [path.relative_to(self.folder).as_posix() for path, _ in found[:MAX_RUNS]]

    def path(self, name: str) -> Path:
        """Return the file that a name stands for.

        Raises:
            NotThere: It is no run file under the folder.
        """
        parts = PurePosixPath(name).parts
        fine = (
            0 < len(name) < 1024
            and name == "/".join(parts)  # the one way to write it, which no absolute path is
            and not any(part in ("..", ".") or "\\" in part or "\0" in part for part in parts)
            and 0 < len(parts) <= MAX_DEPTH
            and (self.place.is_dir() or name == self.place.name)
        )
        if fine and self._reaches(parts):
            path = self.folder.joinpath(*parts)
            if _is_run(path):
                return path
        raise NotThere(f"there is no run {name!r} in this folder")

    def _reaches(self, parts: Sequence[str]) -> bool:
        """Whether a path below the folder passes no symbolic link and stays below the folder."""
        path = self.folder
        for part in parts:
            path = path / part
            if os.path.islink(path):
                return False
        return Path(os.path.realpath(path)).is_relative_to(self.folder)


def stamp(path: Path) -> Stamp:
    """Return what changes whenever a run file does: inode, size and time, of its helper file too."""
    found: list[int] = []
    for own in (path, path.with_name(f"{path.name}-wal")):
        try:
            status = own.stat()
        except OSError:
            found += [0, 0, 0]
        else:
            found += [status.st_ino, status.st_size, status.st_mtime_ns]
    return tuple(found)


def changed(stamp: Stamp) -> float:
    """Return when the run file with this stamp was written to last, in seconds since 1970.

    A helper file without content does not count: whoever opens a run makes one.
    """
    return max(stamp[2], stamp[5] if stamp[4] else 0) / 1e9


def _run_files(folder: Path) -> Iterator[tuple[Path, float]]:
    """Yield run files and when they changed; no symbolic link is followed."""
    visited = 0
    for root, folders, files in os.walk(folder, followlinks=False):
        if len(Path(root).relative_to(folder).parts) >= MAX_DEPTH - 1:
            folders.clear()
        folders[:] = [one for one in folders if not one.startswith(".")]
        for name in files:
            visited += 1
            if visited > MAX_VISITED:
                return
            path = Path(root, name)
            if name.endswith((".db", ".json")) and _is_run(path):
                yield path, changed(stamp(path))


def _no_waiting(path: str, flags: int) -> int:
    """Open a file; not through a link, and without waiting, should a pipe have taken its place."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _is_run(path: Path) -> bool:
    """Return whether the file is a regular one that starts as a run file does."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return False
        with open(path, "rb", opener=_no_waiting) as file:
            start = file.read(128)
    except (OSError, ValueError):
        return False
    if is_database(start[:16]):
        # A run that has just begun may still have all of its first page in its helper file.
        return start[APPLICATION_ID_AT] in (b"COCK", bytes(4))
    return status.st_size <= MAX_JSON_BYTES and bool(JSON_OF_1_0.match(start))
