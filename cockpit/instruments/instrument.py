"""An instrument: a function from a run to a panel, and the quantities that it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

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
    def steps(self) -> np.ndarray:
        """The tracked steps."""

    @property
    def quantities(self) -> list[str]:
        """Names of the quantities that were recorded."""

    def scalars(self, quantity: str | None = None) -> pd.DataFrame:
        """Return a frame of step, quantity, part, value."""

    def series(self, quantity: str, part: str | None = None) -> pd.Series | pd.DataFrame:
        """Return the values of one quantity by step, a column per part where it has several."""

    def arrays(self, quantity: str | None = None, part: str | None = None) -> pd.DataFrame:
        """Return a frame of step, quantity, part, value, where the values are arrays."""


@dataclass(frozen=True)
class Instrument:
    """A function `(run) -> Panel | None` and what it shows: it needs one of these quantities."""

    read: Callable[[Readable], Panel | None]
    quantities: tuple[str, ...]

    def __call__(self, run: Readable) -> Panel | None:
        """Return the panel, or `None` when the run has nothing to show on it."""
        recorded = set(run.quantities)
        return self.read(run) if recorded.intersection(self.quantities) else None


def instrument(*quantities: str) -> Callable[[Callable[[Readable], Panel | None]], Instrument]:
    """Make an instrument of a function; `quantities` are what it shows."""
    return lambda read: Instrument(read, quantities)
