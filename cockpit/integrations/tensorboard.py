"""Forwarding to TensorBoard; needs the extra ``torch-cockpit[tensorboard]``."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np


class TensorBoardTracker:
    """Writes scalars, histograms and events to TensorBoard.

    ::

        Cockpit(model, quantities, log="runs/first.db", trackers=[TensorBoardTracker("runs/tb")])

    Histograms arrive with the bins that they were counted in; nothing is binned anew.

    Args:
        target: Folder of a new event file, or a ``SummaryWriter`` of yours, which stays open.
        wall: When the steps were, in seconds since 1970; those that it lacks are now.
    """

    def __init__(
        self, target: str | os.PathLike[str] | Any, wall: Mapping[int, float] | None = None
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._own = isinstance(target, str | os.PathLike)
        self._writer: Any = SummaryWriter(str(target)) if self._own else target
        self._wall = wall or {}

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write the numbers of a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, walltime=self._wall.get(step))

    def histogram(self, step: int, name: str, counts: np.ndarray, edges: np.ndarray) -> None:
        """Write a histogram. Sums, which TensorBoard stores too, are those of the bins' centres."""
        if not math.isfinite(float(edges[0])) or not math.isfinite(float(edges[-1])):
            return
        centres = (edges[:-1] + edges[1:]) / 2
        self._writer.add_histogram_raw(
            name,
            min=float(edges[0]),
            max=float(edges[-1]),
            num=int(counts.sum()),
            sum=float((counts * centres).sum()),
            sum_squares=float((counts * centres**2).sum()),
            bucket_limits=edges[1:].tolist(),
            bucket_counts=counts.tolist(),
            global_step=step,
            walltime=self._wall.get(step),
        )

    def event(self, step: int | None, kind: str, subject: str, message: str) -> None:
        """Write a text."""
        wall = None if step is None else self._wall.get(step)
        self._writer.add_text(f"cockpit/{kind}", f"**{subject}**: {message}", step, walltime=wall)

    def close(self) -> None:
        """Write what is buffered."""
        if self._own:
            self._writer.close()
        else:
            self._writer.flush()
