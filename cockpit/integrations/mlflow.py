"""Forwarding to MLflow; needs the extra ``torch-cockpit[mlflow]``."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import mlflow
import numpy as np
from mlflow.entities import Metric

from cockpit.errors import InvalidArgument

MOST_METRICS = 1000
"""Number of metrics that MLflow takes in one call."""

_NOT_ALLOWED = re.compile(r"[^\w\-. :/]")


class MLflowTracker:
    """Logs scalars to a run of MLflow, and histograms and events as its artifacts.

    ::

        with mlflow.start_run():
            Cockpit(model, quantities, log="runs/first.db", trackers=[MLflowTracker()])

    MLflow has no histograms: they become JSON files ``cockpit/<quantity>/step-<step>.json`` with
    ``counts`` and ``edges``. Events become tags of the run, ``cockpit.<kind>.<subject>``.

    Args:
        run_id: The run; the active one unless given. It stays open.
        tracking_uri: Where the run is; MLflow's present one unless given.
        histograms: Whether to log histograms. Each is a file.

    Raises:
        InvalidArgument: if there is no run.
    """

    def __init__(
        self, run_id: str | None = None, *, tracking_uri: str | None = None, histograms: bool = True
    ) -> None:
        if run_id is None:
            active = mlflow.active_run()
            if active is None:
                raise InvalidArgument(
                    "MLflowTracker found no active run. Call mlflow.start_run() before, or give "
                    "run_id=..."
                )
            run_id = active.info.run_id
        self._run_id = run_id
        self._histograms = histograms
        # The active run is one of the thread it was started in; a client is not.
        self._client: Any = mlflow.MlflowClient(tracking_uri or mlflow.get_tracking_uri())

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of a step."""
        now = int(time.time() * 1000)
        metrics = [Metric(_allowed(name), value, now, step) for name, value in values.items()]
        for start in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._run_id, metrics[start : start + MOST_METRICS])

    def histogram(self, step: int, name: str, counts: np.ndarray, edges: np.ndarray) -> None:
        """Log a file with the counts and the edges."""
        if self._histograms:
            values = {"counts": counts.tolist(), "edges": edges.tolist()}
            self._client.log_dict(self._run_id, values, f"{_allowed(name)}/step-{step}.json")

    def event(self, step: int | None, kind: str, subject: str, message: str) -> None:
        """Set a tag."""
        at = "" if step is None else f"step {step}: "
        self._client.set_tag(self._run_id, _allowed(f"cockpit.{kind}.{subject}"), f"{at}{message}")

    def close(self) -> None:
        """Do nothing: the run is its owner's to end."""


def _allowed(name: str) -> str:
    return _NOT_ALLOWED.sub("_", name)
