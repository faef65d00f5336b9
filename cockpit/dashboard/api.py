"""The addresses of the page and what stands behind them."""

from __future__ import annotations

import asyncio
import gzip
import importlib.util
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, unquote_plus

import anyio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    FileResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from cockpit._version import __version__
from cockpit.dashboard import about, view
from cockpit.dashboard.download import rows_of
from cockpit.dashboard.encoding import Json
from cockpit.dashboard.guard import Guard
from cockpit.dashboard.library import Library, NotThere
from cockpit.dashboard.opened import Shelf
from cockpit.errors import CockpitError, InvalidArgument, Unsupported

__all__ = ["application"]

STATIC = Path(__file__).parent / "static"
WORKERS = 4
MAX_SECONDS = 30.0
MEDIA = {"csv": "text/csv; charset=utf-8", "json": "application/json"}

Endpoint: TypeAlias = Callable[[Request], Any]


def application(
    library: Library,
    *,
    names: frozenset[str],
    addresses: bool = False,
    token: str | None = None,
    cookie: str = "cockpit",
) -> Guard:
    """Return the page as an ASGI application, behind its guard.

    Args:
        library: The runs.
        names: Host names that it answers to, in lower case.
        addresses: Whether it answers to any address in digits, too.
        token: What has to be brought; nothing if None.
        cookie: Name of the cookie that stands for the token.
    """
    pages = _Pages(Shelf(library), plotly_js())
    routes = [
        Route("/", pages.index),
        Route("/login", pages.login, methods=["GET", "POST"]),
        Route("/static/plotly.min.js", pages.plotly),
        *(
            Route(f"/static/{file.name}", partial(pages.file, file))
            for file in sorted(STATIC.iterdir())
            if file.suffix in (".js", ".css", ".svg")
        ),
        Route("/api/runs", pages.runs),
        Route("/api/board", pages.board),
        Route("/api/panels", pages.panels, methods=["POST"]),
        Route("/api/findings", pages.findings),
        Route("/api/settings", pages.settings),
        Route("/api/data", pages.data),
    ]
    middleware = [Middleware(GZipMiddleware, minimum_size=2048, compresslevel=1)]
    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={
            CockpitError: pages.user_error,
            OSError: pages.gone,
            ClientDisconnect: pages.left,
        },
    )
    pages.guard = Guard(app, names, addresses, token, cookie)
    return pages.guard


def plotly_js() -> Path:
    """Return where the package plotly has plotly.js, without loading the package.

    Raises:
        Unsupported: It is not installed.
    """
    spec = importlib.util.find_spec("plotly")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, "package_data", "plotly.min.js")
        if path.is_file():
            return path
    raise Unsupported("the live page needs plotly: pip install 'torch-cockpit[dashboard]'")


class _Pages:
    """The answers. Whatever reads a file does so in a thread, a few at a time and not for ever."""

    guard: Guard

    def __init__(self, shelf: Shelf, plotly: Path) -> None:
        self.shelf, self._plotly = shelf, plotly
        self._packed = b""
        self._workers: anyio.CapacityLimiter | None = None

    async def index(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def file(self, path: Path, request: Request) -> Response:
        # Not kept by the browser: a page never runs on the scripts of an older version.
        return FileResponse(path, headers={"Cache-Control": "no-store"})

    async def plotly(self, request: Request) -> Response:
        """Return plotly.js, large as it is: compressed once, and kept by the browser for a while."""
        headers = {"Cache-Control": "private, max-age=86400", "Vary": "Accept-Encoding"}
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return FileResponse(self._plotly, headers=headers)
        if not self._packed:
            self._packed = await self._work(_gzipped, self._plotly)
        headers["Content-Encoding"] = "gzip"
        return Response(self._packed, media_type="text/javascript", headers=headers)

    async def login(self, request: Request) -> Response:
        if request.method == "GET":
            return FileResponse(STATIC / "login.html")
        form = (await request.body()).decode(errors="replace")
        token = form.removeprefix("token=") if form.startswith("token=") else ""
        if not self.guard.accepts(unquote_plus(token.strip())):
            return RedirectResponse("login?wrong", 303)
        answer = RedirectResponse("./", 303)
        self.guard.remember(request, answer)
        return answer

    async def runs(self, request: Request) -> Response:
        found = await self._work(self.shelf.summaries)
        return Json(
            {
                "folder": self.shelf.library.place.name or "/",
                "runs": [one.record() for one in found],
                "version": __version__,
            }
        )

    async def board(self, request: Request) -> Response:
        names = tuple(dict.fromkeys(request.query_params.getlist("run")))[: view.MAX_RUNS]
        return Json(await self._work(view.board, self.shelf, names))

    async def panels(self, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return PlainTextResponse("Send JSON.\n", 415)
        try:
            query = view.Query.parse(json.loads(await request.body()))
        except (ValueError, RecursionError) as error:
            return Json({"error": f"The query cannot be read: {error}"}, 400)
        return Json(await self._work(view.figures, self.shelf, query))

    async def findings(self, request: Request) -> Response:
        return Json(await self._work(about.findings, self.shelf, _run_of(request)))

    async def settings(self, request: Request) -> Response:
        return Json(await self._work(about.settings, self.shelf, _run_of(request)))

    async def data(self, request: Request) -> Response:
        name, kind = _run_of(request), request.query_params.get("format", "csv")
        quantity = request.query_params.get("quantity")
        path = self.shelf.library.path(name)
        pieces = await self._work(rows_of, path, kind, quantity)
        stem = "-".join(filter(None, (path.name.rpartition(".")[0], quantity)))
        plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in stem)
        ways = f"attachment; filename=\"{plain}.{kind}\"; filename*=UTF-8''{quote(stem)}.{kind}"
        headers = {"Content-Disposition": ways}
        return StreamingResponse(pieces, media_type=MEDIA[kind], headers=headers)

    async def user_error(self, request: Request, error: Exception) -> Response:
        status = 404 if isinstance(error, NotThere) else 503 if isinstance(error, _Slow) else 400
        return Json({"error": self.shelf.library.hide(str(error))}, status)

    async def gone(self, request: Request, error: Exception) -> Response:
        return Json({"error": "The file cannot be read any more."}, 404)

    async def left(self, request: Request, error: Exception) -> Response:
        return Response(status_code=400)  # to nobody: who asked has hung up

    async def _work(self, do: Callable[..., Any], *arguments: Any) -> Any:
        """Do what reads files, in a thread; whoever waits too long is told so."""
        if self._workers is None:  # belongs to the loop that runs, which is here by now
            self._workers = anyio.CapacityLimiter(WORKERS)
        call = anyio.to_thread.run_sync(
            partial(do, *arguments), limiter=self._workers, abandon_on_cancel=True
        )
        try:
            return await asyncio.wait_for(call, MAX_SECONDS)
        except asyncio.TimeoutError:
            raise _Slow("This takes too long to compute; it is tried again.") from None


def _gzipped(path: Path) -> bytes:
    return gzip.compress(path.read_bytes(), 6)


class _Slow(CockpitError):
    """An answer was not there in time."""


def _run_of(request: Request) -> str:
    name = request.query_params.get("run")
    if name is None:
        raise InvalidArgument("name the run: ?run=NAME")
    return name
