"""``cockpit serve``: runs in the browser, while they train and afterwards."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cockpit.cli.command import Command
from cockpit.cli.output import say, standard_output

if TYPE_CHECKING:
    from cockpit.dashboard.server import Server

__all__ = ["COMMAND", "has_browser", "open_page"]

TOKEN_VARIABLE = "COCKPIT_TOKEN"
LARGEST_PORT = 65535


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > LARGEST_PORT:
        raise argparse.ArgumentTypeError(
            f"must be a whole number from 0 (any free one) to {LARGEST_PORT}, got {text!r}"
        )
    return int(text)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "place",
        type=Path,
        nargs="?",
        default=Path("runs"),
        metavar="FOLDER|RUN",
        help="a folder with run files, or a single one (default: runs)",
    )
    parser.add_argument(
        "--port",
        type=_port,
        help="port; 0 for any free one (default: the first free one from 8642)",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1, which only this machine reaches)",
    )
    parser.add_argument(
        "--token",
        help="what a browser has to bring; made up for addresses that others reach "
        f"(default: the variable {TOKEN_VARIABLE}, which other users cannot see)",
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="answer to this host name, too, such as that of a proxy (may be repeated)",
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def _run(chosen: argparse.Namespace) -> None:
    from cockpit import dashboard

    console = standard_output()
    token = chosen.token or os.environ.get(TOKEN_VARIABLE) or None
    page = dashboard.start(
        chosen.place,
        host=chosen.host,
        port=chosen.port,
        token=token,
        allow_hosts=chosen.allow_host,
    )
    with page:
        say(console, f"Runs   {page.library.place}", f"Page   {page.url}", "Stop   Ctrl-C")
        sys.stdout.flush()
        if chosen.open:
            open_page(page)
        with suppress(KeyboardInterrupt):
            page.wait()
    say(console, "", "Stopped.")


def has_browser() -> bool:
    """Return whether there is a screen to open a page on: over ssh there is none."""
    if sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def open_page(page: Server, part: str = "") -> None:
    """Open the page, or a part of it, in the browser; a failure is no reason to stop."""
    if has_browser():
        with suppress(webbrowser.Error):
            webbrowser.open(f"{page.url}{part}")


COMMAND = Command(
    "serve",
    "show runs in the browser, live while they train",
    "cockpit serve runs --port 8700",
    _arguments,
    _run,
)
