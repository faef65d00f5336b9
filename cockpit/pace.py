"""Foresees the number of the step that comes next."""

from __future__ import annotations


class Pace:
    """Learns by how much the numbers of steps grow.

    Most loops count one by one, others come by at every tenth step only, and some count samples or
    start anew; so the next number is foreseen only after it has come as foreseen before.

    Args:
        confirmations: How often that has to be the case.
    """

    def __init__(self, confirmations: int = 2) -> None:
        self._confirmations = confirmations
        self._last: int | None = None
        self._stride, self._confirmed = 0, 0

    def note(self, global_step: int) -> None:
        """Take in the number of the step that has come."""
        if self._last == global_step:  # the same one in several passes
            return
        stride = 0 if self._last is None else global_step - self._last
        self._confirmed = self._confirmed + 1 if stride == self._stride > 0 else 0
        self._last, self._stride = global_step, stride

    @property
    def coming(self) -> list[int]:
        """The number of the step that comes next and, if that is left out, of the one after; empty if unforeseen."""
        if self._last is None or self._confirmed < self._confirmations:
            return []
        return [self._last + self._stride, self._last + 2 * self._stride]
