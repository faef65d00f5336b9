"""Forwarding to trackio; needs the extra ``torch-cockpit[trackio]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import trackio

from cockpit.errors import InvalidArgument


class TrackioTracker:
    """Logs scalars and histograms to a run of trackio, and events as its alerts.

    ::

        run = trackio.init(project="mnist")
        Cockpit(model, quantities, log="runs/first.db", trackers=[TrackioTracker(run)])

    Args:
        run: The run, as ``trackio.init`` returns it. It stays open.

    Raises:
        InvalidArgument: if it is none.
    """

    def __init__(self, run: Any) -> None:
        if not hasattr(run, "log"):
            raise InvalidArgument(
                f"TrackioTracker needs the run that trackio.init(...) returned, got {run!r}."
            )
        self._run = run

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of a step."""
        self._run.log(dict(values), step=step)

    def histogram(self, step: int, name: str, counts: np.ndarray, edges: np.ndarray) -> None:
        """Log a histogram."""
        self._run.log({name: trackio.Histogram(np_histogram=(counts, edges))}, step=step)

    def event(self, step: int | None, kind: str, subject: str, message: str) -> None:
        """Raise an alert."""
        at = "" if step is None else f"Step {step}: "
        self._run.alert(title=f"cockpit: {kind}: {subject}", text=f"{at}{message}")

    def close(self) -> None:
        """Do nothing: the run is its owner's to finish."""
