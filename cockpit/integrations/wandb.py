"""Forwarding to Weights & Biases; needs the extra ``torch-cockpit[wandb]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import wandb

from cockpit.errors import InvalidArgument

STEP = "cockpit/step"


class WandbTracker:
    """Logs scalars and histograms to a run of Weights & Biases, and events as its alerts.

    ::

        Cockpit(model, quantities, log="runs/first.db", trackers=[WandbTracker(wandb.init(...))])

    The values have a step of their own, ``cockpit/step``, which W&B draws them over: they may come
    later than those that you log, and W&B's own step never goes back.

    Args:
        run: The run; the one that ``wandb.init`` began last unless given. It stays open.
        alerts: Whether events become alerts, beside being logged.

    Raises:
        InvalidArgument: if there is no run.
    """

    def __init__(self, run: Any = None, *, alerts: bool = True) -> None:
        self._run: Any = wandb.run if run is None else run
        if self._run is None:
            raise InvalidArgument("WandbTracker found no run. Call wandb.init(...) before.")
        self._alerts = alerts
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("cockpit/*", step_metric=STEP)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of a step."""
        self._run.log({STEP: step, **values})

    def histogram(self, step: int, name: str, counts: np.ndarray, edges: np.ndarray) -> None:
        """Log a histogram, with bins joined where there are more than W&B takes (512)."""
        join = -(-len(counts) // wandb.Histogram.MAX_LENGTH)
        starts = np.arange(0, len(counts), join)
        joined = np.add.reduceat(counts, starts), edges[[*starts, len(counts)]]
        self._run.log({STEP: step, name: wandb.Histogram(np_histogram=joined)})

    def event(self, step: int | None, kind: str, subject: str, message: str) -> None:
        """Raise an alert."""
        if self._alerts:
            at = "" if step is None else f"Step {step}: "
            self._run.alert(title=f"cockpit: {kind}: {subject}", text=f"{at}{message}")

    def close(self) -> None:
        """Do nothing: the run is its owner's to finish."""
