"""A first look at a long run: of its many steps, only some are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from cockpit.log import RunFile, Series
from cockpit.run import Run

__all__ = ["Preview"]

STEPS = 1200
STEPS_OF_ARRAYS = 200


class Preview:
    """A run whose curves and arrays have some of their steps only, evenly spread, and the last one.

    Instruments read it as they read the run itself, in a small part of the time. What lies between
    these steps is missing, so it stands in for pictures that are still being computed. A series that
    has values at few of the steps is read as a whole.

    Args:
        run: The run, for all that is not by step.
        file: Its run file, open; reading ends with it.
    """

    def __init__(self, run: Run, file: RunFile) -> None:
        self._run, self._file = run, file
        self._steps = run.steps
        self._series = {
            (one.quantity, "/".join(filter(None, (one.key, one.parameter))), one.kind): one
            for one in reversed(file.series())  # of two with one name the first one counts
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def curve(self, quantity: str, part: str = "") -> tuple[np.ndarray, np.ndarray]:
        """Return some steps and values of one part of a quantity."""
        one = self._series.get((quantity, part, "scalar"))
        if one is None:
            return np.zeros(0, np.int64), np.zeros(0)
        chosen = self._chosen(STEPS)
        steps, values = self._file.scalars_at(one.id, chosen)
        if len(steps) < len(chosen) // 2:
            _, steps, values = self._file.scalars(one.id)
        return steps, values

    def arrays(self, quantity: str | None = None, part: str | None = None) -> pd.DataFrame:
        """Return a frame of step, quantity, part and value with one part's arrays of some steps."""
        if quantity is None or part is None:
            return self._run.arrays(quantity, part)
        one = self._series.get((quantity, part, "array"))
        found = [] if one is None else self._some_arrays(one)
        values = np.empty(len(found), dtype=object)
        for place, (_, array) in enumerate(found):
            values[place] = array
        steps = np.array([step for step, _ in found], dtype=np.int64)
        return pd.DataFrame({"step": steps, "quantity": quantity, "part": part, "value": values})

    def _some_arrays(self, one: Series) -> list[tuple[int, np.ndarray]]:
        chosen = self._chosen(STEPS_OF_ARRAYS)
        found = [
            (step, array)
            for start in chosen.tolist()
            for _, step, array in self._file.arrays(one.id, start=start, stop=start + 1)
        ]
        if len(found) < len(chosen) // 2:
            found = [(step, array) for _, step, array in self._file.arrays(one.id)]
        return found

    def _chosen(self, most: int) -> np.ndarray:
        if len(self._steps) <= most:
            return self._steps
        places = np.linspace(0, len(self._steps) - 1, most).round().astype(int)
        return self._steps[places]
