"""The command ``cockpit``: a demonstration, and tables, pictures, reports and data of runs.

A command is one file here and one line in `cockpit.cli.commands`. What it needs is imported when it
runs: ``cockpit --help`` loads neither pandas nor matplotlib.
"""

from cockpit.cli.entry import main

__all__ = ["main"]
