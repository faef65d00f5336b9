"""The formats of a report, and writing one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from cockpit.errors import InvalidArgument
from cockpit.replacing import replace_file
from cockpit.report.content import Content, Told, content_of
from cockpit.report.html import html
from cockpit.report.json import json
from cockpit.report.markdown import markdown
from cockpit.report.png import png
from cockpit.run import Run

__all__ = ["FORMATS", "report"]

FORMATS: dict[str, Callable[[Content, Told], str | bytes]] = {
    "html": html,
    "markdown": markdown,
    "json": json,
    "png": png,
}
"""What writes each format."""


def report(
    runs: Run | Sequence[Run],
    target: str | os.PathLike[str] | BinaryIO,
    *,
    kind: str = "html",
    on_progress: Told = lambda done, total: None,
) -> None:
    """Write all there is to see of a run, or of several runs side by side, into one file.

    It holds the findings, where each quantity stands, every picture, the events and the settings. A
    file that is there is replaced in one go, once the new one is complete; a run file never is.

    Args:
        runs: One run, or several to be compared.
        target: The path of the file, or a stream of bytes.
        kind: One of `FORMATS`. ``"html"`` is a page that needs neither network nor script.
        on_progress: Told how many pictures are drawn, of how many, now and then.

    Raises:
        InvalidArgument: There is no such format, no run is given, or nothing can be written at
            `target`.
    """
    if kind not in FORMATS:
        raise InvalidArgument(f"kind must be one of {', '.join(FORMATS)}, got {kind!r}.")
    listed = [runs] if isinstance(runs, Run) else list(runs)
    if not listed:
        raise InvalidArgument("there is no run to report on. Give at least one.")
    written = FORMATS[kind](content_of(listed), on_progress)
    text = written if isinstance(written, bytes) else written.encode()
    if isinstance(target, str | os.PathLike):
        replace_file(Path(target).expanduser(), text)
    else:
        target.write(text)
