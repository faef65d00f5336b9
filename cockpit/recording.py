"""What a run has recorded: metrics of the user's go in, values come out."""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor

from cockpit.arguments import read_step
from cockpit.errors import CockpitError
from cockpit.forwarding import ForwardingWriter
from cockpit.log import Row, RunFile, RunWriter, SilentWriter, write_json
from cockpit.rows import rows_of


class Recording:
    """A run file that is being written, as the training loop sees it."""

    _writer: RunWriter | ForwardingWriter | SilentWriter

    @property
    def path(self) -> str:
        """Path of the run file."""
        return str(self._writer.path)

    def log(
        self,
        global_step: int,
        epoch_count: float | None = None,
        train_loss: float | None = None,
        valid_loss: float | None = None,
        test_loss: float | None = None,
        train_accuracy: float | None = None,
        valid_accuracy: float | None = None,
        test_accuracy: float | None = None,
        learning_rate: float | None = None,
        **more: float | Tensor,
    ) -> None:
        """Write metrics of your own to the run file, under their names.

        Args:
            global_step: The step they belong to.
            epoch_count: Epochs so far.
            train_loss: Loss on the training set.
            valid_loss: Loss on the validation set.
            test_loss: Loss on the test set.
            train_accuracy: Accuracy on the training set.
            valid_accuracy: Accuracy on the validation set.
            test_accuracy: Accuracy on the test set.
            learning_rate: The learning rate.
            more: Any other metrics, numbers or tensors.
        """
        metrics = {
            "epoch_count": epoch_count,
            "train_loss": train_loss,
            "valid_loss": valid_loss,
            "test_loss": test_loss,
            "train_accuracy": train_accuracy,
            "valid_accuracy": valid_accuracy,
            "test_accuracy": test_accuracy,
            "learning_rate": learning_rate,
            **more,
        }
        given = [(name, value) for name, value in metrics.items() if value is not None]
        rows = [
            Row(row.quantity, row.value, row.key, source="log")
            for of_metric in rows_of(given)
            for row in of_metric
        ]
        self._writer.record(read_step(global_step), rows, tracked=False)

    def get_output(self) -> dict[int, dict[str, Any]]:
        """Return all values so far, ``{step: {"NormTest": value, ...}}``.

        Of several processes that train together only the first one has them; the others return ``{}``.
        """
        return self._read(metrics=False)

    @property
    def output(self) -> dict[int, dict[str, Any]]:
        """All values so far, as `get_output` has them, with the metrics of `log` among them."""
        return self._read(metrics=True)

    def _read(self, *, metrics: bool) -> dict[int, dict[str, Any]]:
        if isinstance(self._writer, SilentWriter):
            return {}
        self._writer.flush()
        with RunFile(self._writer.path) as file:
            return file.output(metrics=metrics)

    def write(self, logpath: str | os.PathLike[str]) -> str:
        """Write `output` in the format of Cockpit 1.0: ``{"<step>": {"NormTest": value, ...}}``.

        The file is whole at any time: an older one stays until the new one is complete. NaN and
        infinities are written as ``NaN`` and ``Infinity``, as Python does. The run file has more
        (names of the parameters, details, events) and does not have to be written by hand.

        Args:
            logpath: Where to. ``.json`` is appended, unless it is there; folders are created.

        Returns:
            The path of the file; `cockpit.open_run` reads it.

        Raises:
            InvalidArgument: if nothing can be written there.
        """
        return str(write_json(logpath, self.output))

    def run(self) -> Any:
        """Return the run so far, to be analysed or plotted; see `cockpit.open_run`.

        Raises:
            CockpitError: on a process that writes no run file.
        """
        if isinstance(self._writer, SilentWriter):
            raise CockpitError("The run file is written by rank 0; ask its cockpit for the run.")
        from cockpit.run import (
            open_run,
        )  # pandas is loaded when somebody reads, not in the training

        self._writer.flush()
        return open_run(self._writer.path)
