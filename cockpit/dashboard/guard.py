"""Who may ask what: the checks that every request passes, and the headers that every answer has.

A page on loopback is within reach of every page that the same browser shows. What keeps those out:
requests must name this host (so that no other name can be made to point here), must not come from
another site, and, wherever a token is set, must bring it.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import math
import re
import secrets
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeAlias

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

__all__ = ["Guard", "is_loopback"]

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 64 * 1024
MAX_URL_BYTES = 8 * 1024
BODY_SECONDS = 10.0

EMPTY_STYLE = f"'sha256-{b64encode(sha256(b'').digest()).decode()}'"
"""Lets plotly.js make a style sheet that is empty at first, and nobody write one into the page."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    f"style-src 'self' {EMPTY_STYLE}; "
    "img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

OPEN_TO_ALL = re.compile(r"/(login|static/(app\.css|theme\.js|login\.js|icon\.svg))")
"""What somebody sees who has yet to bring the token."""


def is_loopback(host: str) -> bool:
    """Return whether an address is only reachable from the machine itself."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass
class Guard:
    """An ASGI application that lets only what is allowed through to another one.

    Args:
        app: The application behind it.
        names: What the ``Host`` of a request may be called, without port and in lower case.
        addresses: Whether it may also be any address in digits, which no name can be made to be.
        token: What has to be brought; nothing if None.
        cookie: Name of the cookie that stands for the token after its first hand-over.
    """

    app: App
    names: frozenset[str]
    addresses: bool = False
    token: str | None = None
    cookie: str = "cockpit"
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no websockets here: the server closes them

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        request = Request(scope)
        refusal = self._refuse(request) or self._ask_for_token(request)
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        await self.app(scope, _bounded(receive), send_with_headers)

    def _refuse(self, request: Request) -> Response | None:
        """Return the answer to a request that no token makes good."""
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not self._is_here(hosts[0]):
            return PlainTextResponse(
                "This host name is not one that this page answers to. "
                "Allow it with: cockpit serve --allow-host NAME\n",
                421,
            )
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != hosts[0]:
            return PlainTextResponse("Requests of other sites are not answered.\n", 403)
        site = request.headers.get("sec-fetch-site", "none")
        visit = request.headers.get("sec-fetch-mode") == "navigate" and request.method == "GET"
        if site not in ("none", "same-origin") and not (visit and request.url.path == "/"):
            return PlainTextResponse("Requests of other sites are not answered.\n", 403)
        if (
            len(request.scope.get("raw_path", b"")) + len(request.scope["query_string"])
            > MAX_URL_BYTES
        ):
            return PlainTextResponse("The address is too long.\n", 414)
        size = request.headers.get("content-length", "0")
        if not size.isascii() or not size.isdigit() or int(size[:20]) > MAX_BODY_BYTES:
            return PlainTextResponse("The request is too large.\n", 413)
        return None

    def _is_here(self, host: str) -> bool:
        matched = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]/@\s]+)(:\d{1,5})?", host)
        if matched is None:
            return False
        name = matched[1].strip("[]").lower().rstrip(".")
        if name in self.names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.addresses

    def _ask_for_token(self, request: Request) -> Response | None:
        """Return the answer to a request without the token, and to one that hands it over."""
        if self.token is None:
            return None
        if request.method == "GET" and request.url.path == "/" and "token" in request.query_params:
            if self._matches(request.query_params["token"], self.token):
                answer = RedirectResponse("./", 303)
                self.remember(request, answer)
                return answer
            return RedirectResponse("login?wrong", 303)
        if self._matches(request.cookies.get(self.cookie, ""), self._pass()):
            return None
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._matches(given.strip(), self.token):
            return None
        if OPEN_TO_ALL.fullmatch(request.url.path):
            return None
        if request.url.path == "/":
            return RedirectResponse("login", 303)
        return JSONResponse({"error": "This page asks for its token first."}, 401)

    def accepts(self, token: str) -> bool:
        """Return whether this is the token."""
        return self.token is None or self._matches(token, self.token)

    def remember(self, request: Request, answer: Response) -> None:
        """Let the browser bring a pass from now on, which tells nothing about the token."""
        answer.set_cookie(
            self.cookie,
            self._pass(),
            path="/",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )

    def _pass(self) -> str:
        return hmac.new(self._key, b"pass", sha256).hexdigest()

    @staticmethod
    def _matches(given: str, expected: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def _bounded(receive: Receive) -> Receive:
    """Return a `receive` that gives up on a body that is too large or, as a whole, takes too long."""
    seen, end = 0, math.inf

    async def receive_some() -> Message:
        nonlocal seen, end
        end = min(end, time.monotonic() + BODY_SECONDS)  # from when on somebody waits for it
        if seen < 0:  # all of it has come: what follows is that the browser hangs up, whenever
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), max(0.0, end - time.monotonic()))
        except asyncio.TimeoutError:
            raise HTTPException(408, "The request took too long.") from None
        seen += len(message.get("body", b""))
        if seen > MAX_BODY_BYTES:
            raise HTTPException(413, "The request is too large.")
        if not message.get("more_body", False):
            seen = -1
        return message

    return receive_some
