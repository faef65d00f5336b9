"""The errors of the toolkit: what was wrong, what was got, what to do.

All derive from `CockpitError`, so that a caller can catch what this package raises and nothing
else. Those about arguments are `ValueError`s or `TypeError`s too, as Python's own conventions have
it.
"""

from __future__ import annotations

import sys
import warnings


class CockpitError(Exception):
    """Base of every error that this package raises on purpose."""


class InvalidArgument(CockpitError, ValueError):
    """An argument has a value that cannot be used."""


class InvalidType(CockpitError, TypeError):
    """An argument is of a kind that cannot be used."""


class Unsupported(CockpitError):
    """Something that is not defined, or not implemented, for this model or this step, with the way out."""


class NotARunFile(CockpitError, ValueError):
    """The file that was opened is no run file, or not one that this version reads."""


class RunFileInUse(CockpitError):
    """Another process is writing to the run file."""


class CockpitWarning(UserWarning):
    """A warning of this package; silence it with ``warnings.filterwarnings("ignore", category=CockpitWarning)``."""


BETWEEN = ("cockpit", "torch", "contextlib")
"""Packages that stand between the user's line and a warning."""


def warn(message: str) -> None:
    """Warn at the line of the user's that led here, rather than at one of ours."""
    level, frame = 1, sys._getframe()
    while (
        frame.f_back is not None
        and str(frame.f_globals.get("__name__")).partition(".")[0] in BETWEEN
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, CockpitWarning, stacklevel=level)
