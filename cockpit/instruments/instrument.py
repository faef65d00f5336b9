"""An instrument: a function from a run to a panel, and the quantities that it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pandas as pd

from cockpit.instruments.panel import Panel

__all__ = ["Instrument", "Readable", "instrument"]


class Readable(Protocol):
    """What instruments ask of a run."""

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters in model order."""

    @property
    def settings(self) -> dict[str, Any]:
        """What was stored about the run when it began."""

    @property
    def steps(self) -> np.ndarray:
        """The tracked steps."""

    @property
    def quantities(self) -> list[str]:
        """Names of the quantities that were recorded."""

    def scalars(self, quantity: str | None = None) -> pd.DataFrame:
        """Return a frame of step, quantity, part, value."""

    def events(self) -> pd.DataFrame:
        """Return a frame of step, time, kind, subject, message."""

    def parts(self, quantity: str, kind: str = "scalar", *, details: bool = True) -> list[str]:
        """Return which parts of a quantity are numbers, or arrays."""

    def curve(self, quantity: str, part: str = "") -> tuple[np.ndarray, np.ndarray]:
        """Return steps and values of one part of a quantity."""

    def newest(self, quantity: str) -> tuple[int, dict[str, np.ndarray]] | None:
        """Return the last step that has arrays of a quantity, and these by their parts."""

    def series(self, quantity: str, part: str | None = None) -> pd.Series | pd.DataFrame:
        """Return the values of one quantity by step, a column per part where it has several."""

    def arrays(self, quantity: str | None = None, part: str | None = None) -> pd.DataFrame:
        """Return a frame of step, quantity, part, value, where the values are arrays."""


@dataclass(frozen=True)
class Instrument:
    """A function `(run) -> Panel | None` and what it shows: it needs one of these quantities.

    Args:
        read: The function.
        quantities: What it shows.
        name: What it is called in addresses and findings, such as ``"alpha"``; it never changes.
    """

    read: Callable[[Readable], Panel | None]
    quantities: tuple[str, ...]
    name: str = ""

    def __call__(self, run: Readable) -> Panel | None:
        """Return the panel, or `None` when the run has nothing to show on it."""
        panel = self.read(run) if self.fits(run) else None
        return panel and replace(panel, name=self.name, quantities=self.quantities)

    def fits(self, run: Readable) -> bool:
        """Return whether the run has one of the quantities."""
        return not set(self.quantities).isdisjoint(run.quantities)


def instrument(
    *quantities: str, name: str = ""
) -> Callable[[Callable[[Readable], Panel | None]], Instrument]:
    """Make an instrument of a function.

    Args:
        quantities: What it shows.
        name: What it is called in addresses; the function's name unless told otherwise.
    """
    return lambda read: Instrument(read, quantities, name or read.__name__.replace("_", "-"))
