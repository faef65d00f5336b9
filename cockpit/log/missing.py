"""What a run file lacks, counted, and how that is kept small when much has to wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from cockpit.log.schema import Batch


@dataclass
class Steps:
    """How many steps, and from which one to which; one that comes again right away counts once."""

    count: int = 0
    first: int = 0
    last: int = 0
    _newest: int | None = None

    def add(self, step: int) -> None:
        """Count a step."""
        self.first = min(self.first, step) if self.count else step
        self.last = max(self.last, step) if self.count else step
        self.count += step != self._newest
        self._newest = step

    def join(self, other: Steps) -> None:
        """Count the steps of another one."""
        if other.count:
            self.first = min(self.first, other.first) if self.count else other.first
            self.last = max(self.last, other.last) if self.count else other.last
            self.count += other.count

    def __str__(self) -> str:
        if self.count == 1:
            return f"step {self.first}"
        return f"{self.count:,} steps from {self.first} to {self.last}"


@dataclass
class Missing:
    """Counts what is not in the run file.

    Attributes:
        values: Numbers and arrays.
        steps: The steps that they belong to.
        notes: Events and findings.
    """

    values: int = 0
    steps: Steps = field(default_factory=Steps)
    notes: int = 0

    def add(self, batch: Batch, *, notes: bool = True) -> None:
        """Count what is in a batch.

        Args:
            batch: The batch.
            notes: Whether its events and findings are missing as well.
        """
        self.values += batch.values
        self.notes += (len(batch.events) + len(batch.findings)) if notes else 0
        if batch.step is not None and batch.has_step:
            self.steps.add(batch.step)

    def join(self, other: Missing) -> None:
        """Count what another one has counted."""
        self.values += other.values
        self.notes += other.notes
        self.steps.join(other.steps)

    def __bool__(self) -> bool:
        return bool(self.values or self.notes or self.steps.count)

    def __str__(self) -> str:
        values = f"{self.values:,} values of {self.steps}" if self.steps.count else ""
        notes = f"{self.notes:,} events and findings" if self.notes else ""
        return " and ".join(filter(None, (values, notes))) or "nothing"


def counted(batches: Iterable[Batch]) -> Missing:
    """Return how much there is in batches."""
    missing = Missing()
    for batch in batches:
        missing.add(batch)
    return missing


def thinned(batches: list[Batch], limit: int) -> tuple[list[Batch], Missing]:
    """Return what to keep of batches that wait, in no more than `limit` bytes, and count the rest.

    Steps go where they are closest together, so that those that stay are spread evenly. Events and findings
    stay as long as that is enough.
    """
    missing = Missing()
    rewinds = [batch for batch in batches if batch.rewind]
    rest = [batch for batch in batches if not batch.rewind]
    gap = 1
    while len(rest) > 1 and sum(batch.size for batch in rest) > limit:
        steps = sorted({batch.step for batch in rest if batch.step is not None and batch.has_step})
        if len(steps) > 2:
            gap *= 2
            going = _closer(steps, gap)
            rest = [one for batch in rest if (one := _kept(batch, going, missing))]
        else:
            older, rest = rest[: len(rest) // 2], rest[len(rest) // 2 :]
            missing.join(counted(older))
    return [*rewinds, *rest], missing


def _closer(steps: Sequence[int], gap: int) -> set[int]:
    """Return the steps without which there is no longer gap than this."""
    going, left = set(), steps[0]
    for step, right in pairwise(steps[1:]):
        if right - left <= gap:
            going.add(step)
        else:
            left = step
    return going


def _kept(batch: Batch, going: set[int], missing: Missing) -> Batch | None:
    """Return what stays of a batch whose step may be one of those that go."""
    if batch.step not in going:
        return batch
    missing.add(batch, notes=False)
    if not batch.events and not batch.findings:
        return None
    return Batch(batch.step, events=batch.events, findings=batch.findings)
