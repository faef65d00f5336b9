"""What a training step takes, and what of that is the cockpit's."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from cockpit.budget.clock import Clock

RECENT = 64
"""Number of times that are remembered."""

REFRESH = 8
"""Number of new times after which the typical one is computed anew, once there are `RECENT`."""

LONGEST = 3.0
"""How many times the median a time may be to count: steps may differ, but a pause is none."""


@dataclass
class Typical:
    """The time that something usually takes: the mean of the recent times of up to `LONGEST` medians.

    Where steps alternate, as those of two players, that is the mean of both kinds; a validation, a
    stalled loader or a breakpoint leaves it as it was.

    Args:
        recent: The recent times, in seconds.
    """

    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    _known: float | None = None
    _new: int = 0

    def __len__(self) -> int:
        return len(self.recent)

    def add(self, seconds: float) -> None:
        """Take note of one more."""
        self.recent.append(seconds)
        self._new += 1
        if len(self.recent) < RECENT or self._new >= REFRESH:
            self._known = None

    @property
    def seconds(self) -> float:
        """The time; 0 where there is none."""
        if not self.recent:
            return 0.0
        if self._known is None:
            most = LONGEST * median(self.recent)
            self._known = fmean([seconds for seconds in self.recent if seconds <= most])
            self._new = 0
        return self._known


@dataclass
class Times:
    """The times of one training step, in seconds.

    Args:
        rest: From its first entry to that of the next step, without what the cockpit did in between,
            outside of the bodies of the with blocks.
        own: What it did for this step: before the bodies, after them, and in the forward pass.
        entry: The part of `own` in which the blocks were entered.
        forward: The part of `own` in the forward pass that led to the step.
        bodies: Those of the with blocks, the backward passes.
    """

    rest: float
    own: float
    entry: float
    forward: float
    bodies: list[float]


@dataclass
class _Marks:
    start: Any
    spans: list[tuple[str, Any, Any]] = field(default_factory=list)
    ahead: list[tuple[str, Any, Any]] = field(default_factory=list)  # in the forward pass before it
    end: Any = None


FORWARD, ENTRY, EXIT, UPDATE, BODY = "forward", "entry", "exit", "update", "body"


class Meter:
    """Marks when the cockpit begins and ends to work, step by step.

    Args:
        clock: Tells the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks = _Marks(None)
        self._ended: deque[_Marks] = deque()
        self._depth = 0
        self._body: Any = None

    def step(self) -> None:
        """Note that a training step begins."""
        now = self._clock.mark()
        before = self._marks
        before.end = now
        if before.start is not None:
            self._ended.append(before)
        ahead = [span for span in before.spans if span[0] == FORWARD]
        self._marks = _Marks(now, ahead=ahead)

    @contextmanager
    def own(self, kind: str) -> Iterator[None]:
        """Put around what the cockpit does; within another such block it is a part of that."""
        self._depth += 1
        if self._depth > 1:
            try:
                yield
            finally:
                self._depth -= 1
            return
        start = self._clock.mark()
        if kind == EXIT and self._body is not None:
            self._marks.spans.append((BODY, self._body, start))
            self._body = None
        try:
            yield
        finally:
            self._depth -= 1
            end = self._clock.mark()
            self._marks.spans.append((kind, start, end))
            self._body = end if kind == ENTRY else self._body

    def read(self) -> Times | None:
        """Return the times of the earliest step that has ended and was not read yet, if they are known."""
        if not self._ended or not self._clock.passed(self._ended[0].end):
            return None
        marks = self._ended.popleft()
        spans = [(kind, self._clock.seconds(start, end)) for kind, start, end in marks.spans]
        forward = sum(self._clock.seconds(start, end) for _, start, end in marks.ahead)
        own = sum(seconds for kind, seconds in spans if kind not in (BODY, FORWARD))
        return Times(
            rest=self._clock.seconds(marks.start, marks.end)
            - sum(seconds for kind, seconds in spans if kind != BODY),
            own=own + forward,
            entry=sum(seconds for kind, seconds in spans if kind == ENTRY),
            forward=forward,
            bodies=[seconds for kind, seconds in spans if kind == BODY],
        )
