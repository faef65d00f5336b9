"""Writing a file so that there is never less than a whole one at its place."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from cockpit.errors import InvalidArgument

__all__ = ["replace_file", "writing_to"]

PLACE = (FileExistsError, FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
"""What is wrong with the place that was asked for, unlike a disk that is full."""


def replace_file(path: Path, content: bytes | Callable[[BinaryIO], None]) -> None:
    """Write a file; what is there is replaced at the very end, or stays if anything goes wrong.

    A run file is never replaced: it may be the one that is read just now.

    Args:
        path: Where to; its folder is made if need be. Of a link, what it points to is replaced.
        content: What to write, or what writes it to a stream.

    Raises:
        InvalidArgument: Nothing can be written there.
        OSError: Writing failed on the way, such as on a disk that is full.
    """
    write = content if callable(content) else _writing(content)
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InvalidArgument(f"{path} is a folder. Give the path of a file in it.")
    if not target.exists() or target.is_file():
        _replace(path, target, write)
        return
    with target.open("wb") as stream:  # a device or a pipe, such as /dev/stdout
        write(stream)


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Refuse a place that nothing can be written at, which is found out within.

    Raises:
        InvalidArgument: The folder is not there, or may not be written to.
    """
    try:
        yield
    except PLACE as error:
        raise InvalidArgument(
            f"{path} cannot be written: {error.strerror or error}. Give the path of a file in a "
            "folder that may be written to."
        ) from error


def _writing(content: bytes) -> Callable[[BinaryIO], None]:
    def write(stream: BinaryIO) -> None:
        stream.write(content)

    return write


def _replace(path: Path, target: Path, write: Callable[[BinaryIO], None]) -> None:
    if target.exists() and _is_database(target):
        raise InvalidArgument(f"{path} is a run file and is not replaced. Give another path.")
    temporary = target.with_name(f".cockpit-{secrets.token_hex(8)}.tmp")
    try:
        with writing_to(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as stream:
                write(stream)
            os.replace(temporary, target)
    finally:
        with suppress(OSError):
            temporary.unlink()


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"
