"""From the words of the command line to a command and its exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from cockpit._version import __version__
from cockpit.cli.commands import COMMANDS
from cockpit.errors import CockpitError
from cockpit.printable import printable

__all__ = ["main"]

OK, FAILURE, USER_ERROR, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    That is 0 for success, 1 for a failure, or where the doctor has found something, 2 for a mistake in
    what was asked for, 130 for Ctrl-C.

    Args:
        arguments: Those of the command line, unless given.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without a sign shows another one
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.command is None:
        parser.print_help(sys.stderr)
        return USER_ERROR
    try:
        code = chosen.command(chosen)
        sys.stdout.flush()
    except CockpitError as error:
        return _complain(error, USER_ERROR)
    except BrokenPipeError:  # whoever reads has seen enough; Python would complain at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except OSError as error:
        return _complain(error, FAILURE)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    return code or OK


def _complain(problem: object, code: int) -> int:
    sys.stderr.write(f"cockpit: {printable(' '.join(str(problem).split()))}\n")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cockpit",
        description="Look inside PyTorch training runs.",
        epilog="Example: cockpit demo",
    )
    parser.add_argument("--version", action="version", version=f"torch-cockpit {__version__}")
    parser.set_defaults(command=None)
    listed = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        own = listed.add_parser(
            command.name,
            help=command.what,
            description=f"{command.what[0].upper()}{command.what[1:]}.",
            epilog=f"Example: {command.example}",
        )
        own.set_defaults(command=command.run)
        command.arguments(own)
    return parser
