"""Who is answered, and what: plain HTTP requests to the page."""

import http.client
import json
import os
import socket
from pathlib import Path
from urllib.parse import quote

import pytest

from cockpit.dashboard import server as server_module
from cockpit.dashboard.server import Server
from cockpit.errors import InvalidArgument

TOKEN = "correct-horse-battery"


def ask(server: Server, path: str, method: str = "GET", body: bytes | None = None, **headers: str):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None and "Content-Length" not in named:
            named["Content-Length"] = str(len(body))
        for name, value in named.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def locked(folder: Path):
    with Server(folder, port=0, token=TOKEN) as server:
        yield server


# -- names of this host ---------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST", "localhost:9000"])
def test_it_answers_to_its_own_names_on_any_port(page: Server, host: str) -> None:
    assert ask(page, "/api/runs", Host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "192.168.0.1",
        "a@localhost",
        "",
    ],
)
def test_it_answers_to_no_other_name(page: Server, host: str) -> None:
    status, _, body = ask(page, "/api/runs", Host=host)
    assert status in (400, 421)
    assert b"first" not in body


def test_a_request_with_two_hosts_is_refused(page: Server) -> None:
    with socket.create_connection(("127.0.0.1", page.port), timeout=10) as raw:
        raw.sendall(b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert raw.recv(100).split()[1] in (b"400", b"421")


def test_names_can_be_allowed(folder: Path) -> None:
    with Server(folder, port=0, allow_hosts=["Lab.Example"]) as server:
        assert ask(server, "/api/runs", Host="lab.example:80")[0] == 200
        assert ask(server, "/api/runs", Host="other.example")[0] == 421


# -- other sites ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors"},
    ],
)
def test_requests_of_other_sites_are_not_answered(page: Server, headers: dict[str, str]) -> None:
    assert ask(page, "/api/runs", **headers)[0] == 403


def test_a_link_from_elsewhere_leads_to_the_page_but_not_to_its_data(page: Server) -> None:
    visit = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    assert ask(page, "/", **visit)[0] == 200
    assert ask(page, "/api/data?run=first.db", **visit)[0] == 403


@pytest.mark.parametrize(
    "path", ["/", "/api/runs", "/nothing", "/api/settings?run=none", "/static/app.js"]
)
def test_every_answer_has_the_headers(page: Server, path: str) -> None:
    headers = {name.lower(): value for name, value in ask(page, path)[1].items()}
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


def test_the_page_loads_nothing_from_elsewhere_and_has_no_script_in_it() -> None:
    static = Path(server_module.__file__).parent / "static"
    for file in static.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, file
        assert "https://" not in text, file
        assert "innerHTML" not in text, file
        if file.suffix == ".html":
            assert "<script>" not in text, file
            assert "style=" not in text, file


# -- files ----------------------------------------------------------------------------------------

OUTSIDE = [
    "../secret.db",
    "sweep/../../secret.db",
    "/etc/passwd",
    "..",
    ".",
    "",
    "first.db/",
    "a\0b",
    "..\\secret.db",
]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("what", ["settings", "findings", "data", "board"])
def test_nothing_outside_the_folder_is_reached(page: Server, what: str, name: str) -> None:
    status, _, body = ask(page, f"/api/{what}?run={quote(name, safe='')}")
    assert status == 404
    assert b"secret.db is" not in body


def test_nor_in_pictures(page: Server) -> None:
    query = json.dumps({"runs": ["../secret.db"], "instruments": ["loss"]}).encode()
    status, _, body = ask(page, "/api/panels", "POST", query, Content_Type="application/json")
    assert status == 200
    assert "no run" in json.loads(body)["panels"][0]["error"]


@pytest.mark.parametrize(
    "path",
    ["/static/../api.py", "/static/%2e%2e/api.py", "/static/%2e%2e%2fapi.py", "//etc/passwd"],
)
def test_static_files_are_those_of_the_page_only(page: Server, path: str) -> None:
    assert ask(page, path)[0] == 404


def test_links_and_what_is_no_file_are_not_followed(tmp_path: Path, folder: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "file.db").symlink_to(folder / "first.db")
    (runs / "folder").symlink_to(folder, target_is_directory=True)
    os.mkfifo(runs / "pipe.db")
    (runs / "text.db").write_text("no run file")
    with Server(runs, port=0) as server:
        assert json.loads(ask(server, "/api/runs")[2])["runs"] == []
        for name in ("file.db", "folder/first.db", "pipe.db", "text.db"):
            assert ask(server, f"/api/settings?run={name}")[0] == 404, name


def test_of_a_single_run_its_neighbours_are_out_of_reach(folder: Path) -> None:
    with Server(folder / "first.db", port=0) as server:
        assert [one["name"] for one in json.loads(ask(server, "/api/runs")[2])["runs"]] == [
            "first.db"
        ]
        assert ask(server, "/api/settings?run=first.db")[0] == 200
        assert ask(server, f"/api/settings?run={quote('sweep/second.db')}")[0] == 404


def test_errors_do_not_say_where_the_folder_is(tmp_path: Path, folder: Path) -> None:
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes((folder / "first.db").read_bytes()[:5000])
    with Server(tmp_path, port=0) as server:
        run = json.loads(ask(server, "/api/runs")[2])["runs"][0]
        assert run["status"] == "damaged"
        status, _, body = ask(server, "/api/settings?run=damaged.db")
        assert status == 400
        assert str(tmp_path).encode() not in body + run["error"].encode()


# -- the token ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/api/runs", "/api/data?run=first.db", "/static/app.js", "/static/plotly.min.js"]
)
def test_without_the_token_there_is_nothing(locked: Server, path: str) -> None:
    assert ask(locked, path)[0] == 401
    assert ask(locked, path, Authorization="Bearer wrong")[0] == 401
    assert ask(locked, path, Cookie=f"cockpit_{locked.port}={TOKEN}")[0] == 401
    assert ask(locked, path + "?token=" + TOKEN)[0] == 401


def test_without_the_token_the_page_asks_for_it(locked: Server) -> None:
    status, headers, _ = ask(locked, "/")
    assert (status, headers["location"]) == (303, "login")
    for path in ("/login", "/static/app.css", "/static/theme.js", "/static/login.js"):
        assert ask(locked, path)[0] == 200


def test_the_token_is_handed_over_once(locked: Server) -> None:
    status, headers, _ = ask(locked, f"/?token={TOKEN}")
    assert (status, headers["location"]) == (303, "./")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert TOKEN not in cookie
    assert ask(locked, "/api/runs", Cookie=cookie.partition(";")[0])[0] == 200


def test_the_token_can_be_typed_or_sent_by_a_script(locked: Server) -> None:
    status, headers, _ = ask(locked, "/login", "POST", f"token={TOKEN}".encode())
    assert status == 303
    assert ask(locked, "/", Cookie=headers["set-cookie"].partition(";")[0])[0] == 200
    assert ask(locked, "/api/runs", Authorization=f"Bearer {TOKEN}")[0] == 200


@pytest.mark.parametrize("wrong", ["", "wrong", TOKEN[:-1], TOKEN + "x", "é"])
def test_a_wrong_token_opens_nothing(locked: Server, wrong: str) -> None:
    for status, headers, _ in (
        ask(locked, f"/?token={quote(wrong)}"),
        ask(locked, "/login", "POST", f"token={quote(wrong)}".encode()),
    ):
        assert (status, headers["location"]) == (303, "login?wrong")
        assert "set-cookie" not in headers


def test_an_address_that_others_reach_always_has_a_token(folder: Path) -> None:
    with Server(folder, host="0.0.0.0", port=0) as server:
        assert server.token is not None
        assert len(server.token) >= 24
        assert server.token in server.url
        assert ask(server, "/api/runs")[0] == 401
        bearer = f"Bearer {server.token}"
        assert ask(server, "/api/runs", Authorization=bearer, Host="192.168.0.7")[0] == 200
        assert ask(server, "/api/runs", Authorization=bearer, Host="evil.example")[0] == 421


def test_a_short_token_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidArgument, match="at least 12 are needed"):
        Server(folder, port=0, token="1234")


# -- bounds ---------------------------------------------------------------------------------------


def test_large_requests_are_refused(page: Server) -> None:
    large = b'"' + b"x" * 100_000 + b'"'
    assert ask(page, "/api/panels", "POST", large, Content_Type="application/json")[0] == 413
    assert ask(page, "/api/runs?" + "x" * 20_000)[0] in (400, 414)
    assert ask(page, "/api/panels", "POST", b"", Content_Length="-1")[0] in (400, 413)


def test_a_large_body_in_pieces_is_refused(page: Server) -> None:
    with socket.create_connection(("127.0.0.1", page.port), timeout=20) as raw:
        raw.sendall(
            b"POST /api/panels HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        piece = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
        raw.sendall(piece * 6)
        assert raw.recv(100).split()[1] == b"413"


def test_who_says_nothing_is_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HEADER_SECONDS", 0.2)
    with Server(folder, port=0) as server:
        for start in (b"", b"GET / HTTP/1.1\r\nHost: loc"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
                raw.sendall(start)
                assert raw.recv(100) == b""


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(page: Server, method: str) -> None:
    assert ask(page, "/api/runs", method)[0] == 405


GOOD = {"runs": ["first.db"], "instruments": ["loss"]}


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        {},
        GOOD | {"runs": []},
        GOOD | {"runs": "first.db"},
        GOOD | {"runs": ["first.db"] * 9},
        GOOD | {"instruments": [1]},
        GOOD | {"instruments": None},
        GOOD | {"width": 10**9},
        GOOD | {"width": "400"},
        GOOD | {"width": True},
        GOOD | {"density": 0},
        GOOD | {"density": 10**6},
        GOOD | {"density": "2"},
        GOOD | {"style": "red"},
        GOOD | {"window": [5, 5]},
        GOOD | {"window": [0, float("inf")]},
        GOOD | {"window": [0, None]},
        GOOD | {"layers": "conv1"},
        GOOD | {"known": []},
    ],
    ids=str,
)
def test_a_query_that_makes_no_sense_is_refused(page: Server, wrong: object) -> None:
    body = json.dumps(wrong).encode()
    status, _, answer = ask(page, "/api/panels", "POST", body, Content_Type="application/json")
    assert status == 400
    assert "query" in json.loads(answer)["error"]


def test_so_is_what_is_no_json(page: Server) -> None:
    for body in (b"{", b"[" * 60_000, b"\xff"):
        assert ask(page, "/api/panels", "POST", body, Content_Type="application/json")[0] == 400
    assert ask(page, "/api/panels", "POST", b"{}", Content_Type="text/plain")[0] == 415


def test_a_slow_answer_holds_up_nobody(page: Server) -> None:
    with socket.create_connection(("127.0.0.1", page.port), timeout=20) as raw:
        raw.sendall(b"POST /api/panels HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n")
        assert ask(page, "/api/runs")[0] == 200  # while the other's body has yet to come
