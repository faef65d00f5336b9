"""The live page under attack: it stays up, gives nothing away, and lets nobody keep the others out."""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from reliability import hostile

from cockpit.dashboard import guard as guard_module
from cockpit.dashboard import server as server_module
from cockpit.dashboard.library import Library
from cockpit.dashboard.server import Server

CLIENTS = Path(__file__).with_name("page_clients.py")
SECRET = b"nobody may read this"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a good run and bad ones; what is beside it must stay out of reach."""
    root = tmp_path_factory.mktemp("page")
    (root / "secret.txt").write_bytes(SECRET)
    hostile.alter(
        hostile.write_run(root / "secret.db"),
        "INSERT INTO meta VALUES('secret', ?)",
        values=(SECRET.decode(),),
    )
    runs = root / "runs"
    runs.mkdir()
    hostile.write_run(runs / "good.db")
    for number, change in enumerate(hostile.SCHEMAS.values()):
        change(hostile.write_run(runs / f"hostile{number}.db"))
    for table in ("steps", "series"):
        hostile.endless_table(hostile.write_run(runs / f"endless-{table}.db"), table)
    (runs / "cut.db").write_bytes((runs / "good.db").read_bytes()[:9000])
    (runs / "deep.json").write_text('{"0": {"Loss": ' + "[" * 10**5)
    (runs / "swelling.json").write_text('{"0": {"Loss": [' + "[]," * 10**5 + "[]]}}")
    (runs / "link.db").symlink_to(root / "secret.db")
    os.mkfifo(runs / "pipe.db")
    return runs


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Server]:
    with Server(folder, port=0) as server:
        yield server


def ask(server: Server, path: str, method: str = "GET", body: bytes | None = None, **headers: str):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def say(server: Server, text: bytes, *, is_all: bool = False) -> bytes:
    """Send bytes as they are, and return all that comes back until the page hangs up.

    Args:
        server: The page.
        text: What to send.
        is_all: Say that nothing more will come; the page does not answer whole requests then.
    """
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
        with contextlib.suppress(OSError):
            raw.sendall(text)
            if is_all:
                raw.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(OSError):
            while piece := raw.recv(65536):
                answer += piece
        return answer


def is_up(server: Server) -> bool:
    return ask(server, "/api/settings?run=good.db")[0] == 200


# -- other names and other sites ------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:{port}",
        "127.0.0.1.nip.example",
        "localhost.evil.example",
        "localhost@evil.example",
        "evil.example#localhost",
        "evil.example/localhost",
        "localhost evil.example",
        "2130706433",
        "0x7f.0.0.1",
        "127.1",
        "0.0.0.0",
        "[::ffff:127.0.0.1]",
        "[::1%25lo]",
        "localhost:80:80",
        "localhost:evil",
        "ＬＯＣＡＬＨＯＳＴ",
    ],
)
def test_a_name_that_was_made_to_point_here_gets_nothing(page: Server, host: str) -> None:
    line = f"GET /api/runs HTTP/1.1\r\nHost: {host.format(port=page.port)}\r\n"
    answer = say(page, line.encode() + b"Connection: close\r\n\r\n")
    assert answer.split()[1] in (b"400", b"421")
    assert b"good" not in answer


@pytest.mark.parametrize(
    "line",
    [
        "GET http://evil.example/api/runs HTTP/1.1\r\nHost: evil.example",
        "GET /api/runs HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: localhost",
        "GET /api/runs HTTP/1.1\r\nHost: evil.example\r\nForwarded: host=localhost",
        "GET /api/runs HTTP/1.1\r\nHost : localhost",
        "GET /api/runs HTTP/1.0",
        "GET /api/runs HTTP/1.1",
    ],
)
def test_no_other_header_stands_for_the_name(page: Server, line: str) -> None:
    answer = say(page, line.encode() + b"\r\nConnection: close\r\n\r\n")
    assert answer.split()[1] in (b"400", b"421")
    assert b"good" not in answer


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://localhost.evil.example"},
        {"Origin": "http://localhost:1"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "file://"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "unheard-of"},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/api/runs", "/api/data?run=good.db", "/static/app.js"])
def test_other_sites_get_nothing(page: Server, path: str, headers: dict[str, str]) -> None:
    status, given, body = ask(page, path, **headers)
    assert status == 403
    assert not any(name.startswith("access-control") for name in given)
    assert given["cross-origin-resource-policy"] == "same-origin"
    assert b"good" not in body


def test_nor_may_they_ask_for_more(page: Server) -> None:
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    status, headers, _ = ask(page, "/api/panels", "OPTIONS", **asked)
    assert status == 403
    assert not any(name.startswith("access-control") for name in headers)


def test_there_are_no_websockets(page: Server) -> None:
    answer = say(
        page,
        b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        is_all=True,
    )
    assert answer.split()[1] != b"101"
    assert is_up(page)


# -- paths ----------------------------------------------------------------------------------------

UP = ("..", "%2e%2e", "%2E.", ".%2e", "%252e%252e", "..%00", "..%5c", "%c0%ae%c0%ae", "....", "..;")


@pytest.mark.parametrize("up", UP)
@pytest.mark.parametrize("slash", ["/", "%2f", "%5c", "%252f", "//"])
def test_no_spelling_of_a_path_leads_out_of_the_folder(page: Server, up: str, slash: str) -> None:
    for target in ("secret.txt", "secret.db", "runs/good.db"):
        for path in (
            f"/api/settings?run={up}{slash}{target}",
            f"/api/data?format=json&run=sub{slash}{up}{slash}{up}{slash}{target}",
            f"/static/{up}{slash}{target}",
            f"/{up}{slash}{up}{slash}{target}",
        ):
            request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            answer = say(page, request.encode())
            assert answer.split()[1] in (b"400", b"404"), path
            assert SECRET not in answer


@pytest.mark.parametrize(
    "name", ["link.db", "pipe.db", "x" * 1000, "a/" * 500, "é" * 300, "\ud800"]
)
def test_nor_does_what_is_no_file_in_it(page: Server, name: str) -> None:
    path = f"/api/settings?run={quote(name, safe='', errors='surrogatepass')}"
    assert ask(page, path)[0] == 404


# -- hostile runs ---------------------------------------------------------------------------------


def test_bad_runs_are_listed_as_damaged_and_keep_no_good_one_away(page: Server) -> None:
    status, _, body = ask(page, "/api/runs")
    assert status == 200
    runs = {one["name"]: one for one in json.loads(body)["runs"]}
    assert {"good.db", "cut.db", "hostile0.db"} <= set(runs)
    assert not {"link.db", "pipe.db"} & set(runs)
    assert runs["good.db"]["status"] == "closed"
    bad = [one for name, one in runs.items() if name.startswith(("hostile", "cut", "deep"))]
    assert {one["status"] for one in bad} == {"damaged"}
    assert all("/" not in one["error"].replace("'", "") for one in bad)


@pytest.mark.parametrize("what", ["settings", "findings", "data", "board"])
def test_whatever_is_asked_of_them_the_answer_is_an_error_in_words(page: Server, what: str) -> None:
    for name in ("hostile0.db", "hostile3.db", "endless-steps.db", "cut.db", "deep.json"):
        if name == "endless-steps.db" and what != "data":
            continue  # the others do not need the steps
        status, headers, body = ask(page, f"/api/{what}?run={name}")
        assert status == 400, (name, body)
        assert headers["content-type"] == "application/json"
        assert json.loads(body)["error"]
    assert is_up(page)


def test_their_pictures_have_an_error_each(page: Server) -> None:
    query = {"runs": ["hostile1.db", "good.db"], "instruments": ["loss"]}
    headers = {"Content-Type": "application/json"}
    status, _, body = ask(page, "/api/panels", "POST", json.dumps(query).encode(), **headers)
    assert status == 200
    assert "damaged" in json.loads(body)["panels"][0]["error"]


def test_names_are_text_whatever_stands_in_them(tmp_path: Path) -> None:
    path = hostile.write_run(tmp_path / "a&b'\"<i>.db")
    name = '</script><script>alert(1)</script>"\x1b\u2028\u202e\x00'
    hostile.alter(path, "UPDATE series SET quantity = ? WHERE id = 1", values=(name,))
    hostile.alter(path, "UPDATE parameters SET name = name || ?", values=(name,))
    with Server(tmp_path, port=0) as server:
        for what in ("settings", "board", "findings", "data"):
            url = f"/api/{what}?format=json&run={quote(path.name, safe='')}"
            status, headers, body = ask(server, url)
            assert status == 200, what
            assert headers["content-type"] == "application/json"
            assert headers["x-content-type-options"] == "nosniff"
            json.loads(body)
        status, headers, body = ask(server, f"/api/data?run={quote(path.name, safe='')}")
        assert status == 200
        assert headers["content-disposition"].startswith("attachment; ")
        assert "<" not in headers["content-disposition"]


# -- too much -------------------------------------------------------------------------------------

START = b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /api/panels HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /" + b"a" * 10**6 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /?" + b"run=good.db&" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        START + b"X: " + b"x" * 10**6 + b"\r\n\r\n",
        START + b"X: y\r\n" * 10**5 + b"\r\n",
        START + b"Cookie: " + b"a=b; " * 10**5 + b"\r\n\r\n",
        POST + b"Content-Length: 999999999999\r\n\r\n" + b"x" * 10**5,
        POST + b"Content-Length: -5\r\n\r\n",
        POST + b"Content-Length: 1e3\r\n\r\n",
        POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"4000\r\n" + b"x" * 0x4000 + b"\r\n" * 9,
        POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\r\n" * 10**5,
        b"GET /api/runs HTTP/9.9\r\nHost: localhost\r\n\r\n",
        START + b"X: a\x00b\r\n\r\n",
        START + b" folded: yes\r\n\r\n",
    ],
    ids=lambda request: request[:60].decode("latin-1"),
)
def test_too_much_and_nonsense_are_refused(page: Server, request_: bytes) -> None:
    answer = say(page, request_, is_all=True)
    assert answer == b"" or answer.split()[1] in (b"400", b"413", b"414", b"421", b"431")
    assert is_up(page)


def test_noise_does_not_bring_it_down(page: Server) -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        noise = bytearray((START + b"Accept: */*\r\n\r\n") * 2)
        for place in rng.integers(0, len(noise), size=4):
            noise[place] = rng.integers(0, 256)
        say(page, bytes(noise), is_all=True)
    assert is_up(page)


def test_of_many_requests_in_one_piece_each_is_answered(page: Server) -> None:
    line = b"GET /static/icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = line.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with socket.create_connection(("127.0.0.1", page.port), timeout=20) as raw:
        raw.sendall(line * 99 + last)
        answer = b""
        while piece := raw.recv(65536):
            answer += piece
    assert answer.count(b"HTTP/1.1 200") == 100


# -- too slow -------------------------------------------------------------------------------------


@contextlib.contextmanager
def connections(server: Server, count: int, text: bytes) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(_saying(server, text.replace(b"NUMBER", str(k).encode())))
            for k in range(count)
        ]


def _saying(server: Server, text: bytes) -> socket.socket:
    raw = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    raw.sendall(text)
    return raw


@pytest.mark.parametrize(
    "text",
    [b"", START, POST + b"Content-Length: 50000\r\n\r\n{", START + b"X: NUMBER"],
    ids=["silent", "headers", "body", "dribble"],
)
def test_six_hundred_slow_connections_keep_nobody_out(page: Server, text: bytes) -> None:
    with connections(page, 600, text) as slow:
        for _ in range(3):
            assert is_up(page)
            for one in slow[::20]:
                with contextlib.suppress(OSError):
                    one.sendall(b"x")
        assert len(page._server.server_state.connections) <= server_module.CROWDED + 8
    assert is_up(page)


def test_a_body_that_dribbles_is_given_up_as_a_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_module, "BODY_SECONDS", 0.5)
    with (
        Server(folder, port=0) as server,
        connections(server, 1, POST + b"Content-Length: 5000\r\n\r\n") as (raw,),
    ):
        with contextlib.suppress(OSError):
            for _ in range(40):
                raw.sendall(b" ")
                time.sleep(0.05)
        assert raw.recv(100).split()[1] == b"408"


def test_an_answer_that_took_long_to_begin_is_sent(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Only then does the page look whether the browser is still there: that is no late body.
    monkeypatch.setattr(guard_module, "BODY_SECONDS", 0.2)
    slow = Library.path
    monkeypatch.setattr(Library, "path", lambda self, name: (time.sleep(0.5), slow(self, name))[1])
    with Server(folder, port=0) as server:
        status, _, body = ask(server, "/api/data?run=good.db")
        assert status == 200
        assert body.count(b"\n") > 20
    assert not caplog.records


def test_who_does_not_take_the_answer_is_not_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "STALLED_SECONDS", 0.3)
    with Server(folder, port=0) as server, socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", server.port))
        raw.sendall(b"GET /static/plotly.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10)
        assert raw.recv(1000).startswith(b"HTTP/1.1 200")
        end = time.monotonic() + 15
        while server._server.server_state.connections:
            assert time.monotonic() < end, "the connection is still there"
            time.sleep(0.05)


# -- too many -------------------------------------------------------------------------------------


def test_two_hundred_clients_at_once_are_all_answered(tmp_path: Path) -> None:
    hostile.write_run(tmp_path / "good.db")
    with Server(tmp_path, port=0) as server:
        threads = threading.active_count()
        done = subprocess.run(
            [sys.executable, str(CLIENTS), str(server.port), "200", "3", "good.db"],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        found = json.loads(done.stdout)
        assert set(found["answers"]) == {"200"}, found
        assert found["answers"]["200"] >= 200
        assert is_up(server)
        assert (
            threading.active_count() <= threads + 60
        )  # asyncio's and anyio's pools, which are bounded
        end = time.monotonic() + 10
        while server._server.server_state.connections:
            assert time.monotonic() < end, "connections are left"
            time.sleep(0.05)
