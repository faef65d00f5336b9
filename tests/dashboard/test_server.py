"""Starting and stopping: as a command, and in the background."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cockpit import dashboard
from cockpit.cli import main
from cockpit.dashboard.server import Server
from cockpit.errors import CockpitError, InvalidArgument, Unsupported


def reaches(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_in_the_background(folder: Path) -> None:
    page = dashboard.start(folder, port=0)
    with urllib.request.urlopen(page.url, timeout=20) as answer:
        assert b"<title>Cockpit</title>" in answer.read()
    assert page.plain_url in page._repr_html_()
    page.stop()
    page.stop()
    assert not reaches(page.port)


def test_the_next_port_is_taken_unless_one_was_named(folder: Path) -> None:
    with dashboard.start(folder) as first, dashboard.start(folder) as second:
        assert second.port > first.port
        with pytest.raises(CockpitError, match=f"port {first.port} .* is in use.*--port 0"):
            dashboard.start(folder, port=first.port)


def test_what_cannot_be_served(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no file or folder"):
        Server(tmp_path / "nowhere")
    (tmp_path / "text.db").write_text("text")
    with pytest.raises(CockpitError, match="not an SQLite database"):
        Server(tmp_path / "text.db")
    with pytest.raises(InvalidArgument, match="not an address"):
        Server(tmp_path, host="no such host.invalid")


def test_without_the_extra_its_name_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "NEEDED", ("starlette", "not_installed_anywhere"))
    with pytest.raises(
        Unsupported, match=r"not_installed_anywhere: pip install 'torch-cockpit\[dashboard\]'"
    ):
        dashboard.start(folder)


COMMAND = """
import signal, sys
from cockpit.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main(sys.argv[1:]))
"""
"""The command, which hears Ctrl-C: shells have what they start in the background ignore it, these tests and all that
they start."""


@contextmanager
def started(*words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_the_command_serves_until_ctrl_c(folder: Path) -> None:
    with started(
        "serve", str(folder), "--port", "0", COCKPIT_TOKEN="correct-horse-battery"
    ) as process:
        lines = [process.stdout.readline() for _ in range(3)]
        url = re.search(r"http://\S+", lines[1])
        assert url is not None, lines
        with urllib.request.urlopen(url[0].partition("?")[0] + "login", timeout=20) as answer:
            assert answer.status == 200
        assert url[0].endswith("?token=correct-horse-battery")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "Stopped." in out
    assert err == ""


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("serve", "/no/such/folder"), "no file or folder"),
        (("serve", ".", "--token", "short", "--port", "0"), "at least 12 are needed"),
    ],
)
def test_mistakes_are_told_on_stderr(
    words: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert problem in printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("port", ["-1", "65536", "web", "8.5"])
def test_ports_are_checked(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(("serve", ".", "--port", port))
    assert stop.value.code == 2
    assert "whole number from 0" in capsys.readouterr().err


def test_the_demonstration_shows_its_training(tmp_path: Path) -> None:
    with started(
        "demo",
        "--serve",
        "--quick",
        "--out",
        str(tmp_path),
        BROWSER="",
        DISPLAY="",
        WAYLAND_DISPLAY="",
    ) as process:
        url = re.search(r"(http://\S+)#run=demo\.db", process.stdout.readline())
        assert url is not None
        with urllib.request.urlopen(url[1] + "api/runs", timeout=30) as answer:
            assert answer.status == 200
        for line in process.stdout:
            if "until Ctrl-C" in line:
                break
        with urllib.request.urlopen(url[1] + "api/board?run=demo.db", timeout=30) as answer:
            assert b'"alpha"' in answer.read()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 0
