"""The commands, in the order in which the help lists them."""

from __future__ import annotations

from cockpit.cli import compare, demo, doctor, export, plot, report, serve, show, watch
from cockpit.cli.command import Command

__all__ = ["COMMANDS"]

COMMANDS: tuple[Command, ...] = (
    demo.COMMAND,
    show.COMMAND,
    watch.COMMAND,
    doctor.COMMAND,
    serve.COMMAND,
    plot.COMMAND,
    report.COMMAND,
    compare.COMMAND,
    export.COMMAND,
)
