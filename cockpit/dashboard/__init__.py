"""The live page: runs in the browser, while they train and afterwards.

::

    from cockpit import dashboard

    dashboard.serve("runs")            # until Ctrl-C; the same as `cockpit serve runs`

    page = dashboard.start("runs")     # in the background, for notebooks and scripts
    page.url
    page.stop()

It needs the extra ``dashboard``: ``pip install 'torch-cockpit[dashboard]'``.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from cockpit.errors import Unsupported

if TYPE_CHECKING:
    from cockpit.dashboard.server import Server

__all__ = ["serve", "start"]

NEEDED = ("starlette", "uvicorn", "plotly")


def start(
    place: str | os.PathLike[str] = "runs",
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    allow_hosts: Iterable[str] = (),
) -> Server:
    """Serve the page in the background, until `Server.stop` or the end of the program.

    Args:
        place: The folder with the run files, or a single one.
        host: The address to listen on; by default only this machine reaches it.
        port: The port; 0 for any free one, by default 8642 or one of the next that is free.
        token: What a browser has to bring. Every address that others can reach has one: without it,
            one is made up, and is part of `Server.url`.
        allow_hosts: Further names by which the page may be called, such as that of a proxy.

    Returns:
        The server: its ``url``, and ``stop()``. It is a context manager, too.

    Raises:
        InvalidArgument: There is no such place or address, or the token is too short.
        Unsupported: The extra ``dashboard`` is not installed.
        CockpitError: The port is taken.
    """
    return _server(place, host, port, token, allow_hosts).start()


def serve(
    place: str | os.PathLike[str] = "runs",
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    allow_hosts: Iterable[str] = (),
) -> None:
    """Serve the page until Ctrl-C; the arguments and errors are those of `start`."""
    with _server(place, host, port, token, allow_hosts) as server:
        print(f"{server.library.place} on {server.url} (Ctrl-C to stop)")  # noqa: T201
        with suppress(KeyboardInterrupt):
            server.wait()


def _server(
    place: str | os.PathLike[str],
    host: str,
    port: int | None,
    token: str | None,
    allow_hosts: Iterable[str],
) -> Server:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise Unsupported(
            f"the live page needs {' and '.join(missing)}: pip install 'torch-cockpit[dashboard]'"
        )
    from cockpit.dashboard.server import Server

    return Server(place, host=host, port=port, token=token, allow_hosts=allow_hosts)
