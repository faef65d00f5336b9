"""Serving the page: in the foreground for the command, in the background for notebooks."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from secrets import token_urlsafe
from types import TracebackType
from urllib.parse import quote

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from cockpit.dashboard.api import application
from cockpit.dashboard.guard import is_loopback
from cockpit.dashboard.library import Library
from cockpit.errors import CockpitError, InvalidArgument

__all__ = ["DEFAULT_PORT", "Server"]

DEFAULT_PORT = 8642
PORTS_TRIED = 20
SHORTEST_TOKEN = 12
MAX_CONNECTIONS = 512
CROWDED = 256
"""Connections from which on the one that has kept the page waiting for longest makes room for a new one."""

HEADER_SECONDS = 10.0
STALLED_SECONDS = 30.0
"""How long nothing of an answer may be taken by who asked for it."""

START_SECONDS = 20.0


class Server:
    """The live page on one address. The address is taken when this is made.

    Args:
        place: The folder with the run files, or a single one.
        host: The address to listen on; by default only this machine reaches it.
        port: The port; 0 for any free one, by default 8642 or one of the next that is free.
        token: What a browser has to bring. Every address that others can reach has one: without it,
            one is made up.
        allow_hosts: Further names by which the page may be called, such as that of a proxy.

    Raises:
        InvalidArgument: There is no such place or address, or the token is too short.
        CockpitError: The port is taken.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        token: str | None = None,
        allow_hosts: Iterable[str] = (),
    ) -> None:
        if token is not None and len(token) < SHORTEST_TOKEN:
            raise InvalidArgument(
                f"the token has {len(token)} characters, at least {SHORTEST_TOKEN} are needed. "
                "Leave it out to have one made up where one is needed."
            )
        if token is None and not is_loopback(host):
            token = token_urlsafe(24)
        self.library = Library(Path(place))
        self.token = token
        self._socket = _listen(host, port)
        self.host = host
        self.port = int(self._socket.getsockname()[1])
        names = {"localhost", "127.0.0.1", "::1", host.lower()}
        if not is_loopback(host):
            names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        app = application(
            self.library,
            names=frozenset(names | {name.lower() for name in allow_hosts}),
            addresses=not is_loopback(host),
            token=token,
            cookie=f"cockpit_{self.port}",  # cookies know hosts, but no ports
        )
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=_Impatient,
                ws="none",
                lifespan="off",
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=MAX_CONNECTIONS,
                timeout_keep_alive=20,
                timeout_graceful_shutdown=1,
            )
        )
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address to open; the token is in it, to be handed over once."""
        return f"{self.plain_url}?token={quote(self.token)}" if self.token else self.plain_url

    @property
    def plain_url(self) -> str:
        """The address without the token."""
        reached = {"": "127.0.0.1", "0.0.0.0": socket.gethostname(), "::": socket.gethostname()}
        host = reached.get(self.host, self.host)
        return f"http://[{host}]:{self.port}/" if ":" in host else f"http://{host}:{self.port}/"

    def run(self) -> None:
        """Serve until Ctrl-C, which is raised as `KeyboardInterrupt`, or until `stop`."""
        self._server.run(sockets=[self._socket])

    def start(self) -> Server:
        """Serve in the background, and return when the page is there.

        Raises:
            CockpitError: It does not start.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self.run, name="cockpit-page", daemon=True)
            self._thread.start()
            end = time.monotonic() + START_SECONDS
            while not self._server.started:
                if not self._thread.is_alive() or time.monotonic() > end:
                    raise CockpitError(f"the live page did not start on {self.plain_url}.")
                time.sleep(0.01)
        return self

    def wait(self) -> None:
        """Wait until the page that was started in the background stops, or for Ctrl-C."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout=0.5)  # in between, Ctrl-C is seen on every system

    def stop(self) -> None:
        """Let go of the address; may be called twice."""
        self._server.should_exit = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        self._socket.close()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<live page of {self.library.place} on {self.plain_url}>"

    def _repr_html_(self) -> str:
        """Return a link, for notebooks."""
        from html import escape

        return f'<a href="{escape(self.url)}" target="_blank" rel="noopener">{escape(self.plain_url)}</a>'


def _listen(host: str, port: int | None) -> socket.socket:
    """Return a socket on the first port that is free of those that may be used."""
    try:
        found = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"{host!r} is not an address of this machine ({error}).") from None
    family, address = found[0][0], found[0][4][0]
    wanted = [port] if port is not None else range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED)
    for one in wanted:
        listening = socket.socket(family, socket.SOCK_STREAM)
        if os.name == "posix":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address, one))
            listening.listen(128)
        except OSError as error:
            listening.close()
            if error.errno == errno.EADDRINUSE:
                continue
            raise InvalidArgument(
                f"cannot listen on {host} port {one}: {error.strerror}. "
                "Give another address or port."
            ) from None
        else:
            return listening
    raise CockpitError(
        f"port {port} of {host} is in use. Give another one, or --port 0 for any that is free."
        if port is not None
        else f"ports {wanted[0]} to {wanted[-1]} of {host} are all in use. Give another one."
    )


class _Impatient(H11Protocol):
    """Speaks HTTP with who asks soon: a connection that stays silent or dribbles is closed.

    uvicorn waits for a request's headers, and for an answer to be taken, for ever; a few hundred such
    connections would keep everybody else out. So they are closed after a while, and at once where
    there are many and somebody else comes.
    """

    def connection_made(self, transport) -> None:  # type: ignore[no-untyped-def]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._answered, self._untaken = 0, 0
        self._since = self.loop.time()
        self._patience = self.loop.call_later(HEADER_SECONDS, self._check, 0)
        self._stalled = self.loop.call_later(STALLED_SECONDS, self._check_taken)
        if len(self.connections) > CROWDED:
            others = (one for one in self.connections if isinstance(one, _Impatient))
            slow = [one for one in others if one is not self and one.keeps_waiting]
            if slow:
                min(slow, key=lambda one: one._since).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._patience.cancel()
        self._stalled.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._answered += 1
        self._since = self.loop.time()
        super().on_response_complete()

    @property
    def keeps_waiting(self) -> bool:
        """Whether the page waits for who is at the other end: to ask, or to take the answer."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY) or self.flow.write_paused

    def _check(self, answered: int) -> None:
        waiting = self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
        if waiting and answered == self._answered:
            self.transport.close()
            return
        self._patience = self.loop.call_later(HEADER_SECONDS, self._check, self._answered)

    def _check_taken(self) -> None:
        untaken = self.transport.get_write_buffer_size()
        if untaken and untaken == self._untaken:
            self.transport.abort()
            return
        self._untaken = untaken
        self._stalled = self.loop.call_later(STALLED_SECONDS, self._check_taken)
