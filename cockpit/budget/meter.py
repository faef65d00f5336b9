"""What a training step takes, and what of that is the cockpit's."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from cockpit.budget.clock import Clock


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
KINDS = (FORWARD, ENTRY, EXIT, UPDATE)
"""Of what the cockpit does."""


class _Own:
    """A piece of the cockpit's work, as a context; made once, since there are several at every step."""

    __slots__ = ("_kind", "_meter")

    def __init__(self, meter: Meter, kind: str) -> None:
        self._meter, self._kind = meter, kind

    def __enter__(self) -> None:
        self._meter.begin(self._kind)

    def __exit__(self, *error: object) -> None:
        self._meter.end(self._kind)


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
        self._start: Any = None  # of the cockpit's work that goes on
        self._own = {kind: _Own(self, kind) for kind in KINDS}
        self._body: Any = None

    def step(self) -> None:
        """Note that a training step begins: with the cockpit's work, if it is at work already."""
        now = self._start if self._depth else self._clock.mark()
        before = self._marks
        before.end = now
        if before.start is not None:
            self._ended.append(before)
        ahead = [span for span in before.spans if span[0] == FORWARD]
        self._marks = _Marks(now, ahead=ahead)

    @property
    def working(self) -> bool:
        """Whether it is the cockpit that is at work now."""
        return self._depth > 0

    def own(self, kind: str) -> _Own:
        """Put around what the cockpit does; within another such block it is a part of that."""
        return self._own[kind]

    def begin(self, kind: str) -> None:
        """Note that the cockpit begins to work."""
        self._depth += 1
        if self._depth > 1:
            return
        self._start = self._clock.mark()
        if kind == EXIT and self._body is not None:
            self._marks.spans.append((BODY, self._body, self._start))
            self._body = None

    def end(self, kind: str) -> None:
        """Note that it has done so."""
        self._depth -= 1
        if self._depth:
            return
        end = self._clock.mark()
        self._marks.spans.append((kind, self._start, end))
        if kind == ENTRY:
            self._body = end

    def read(self) -> Times | None:
        """Return the times of the earliest step that has ended and was not read yet, if they are known."""
        if not self._ended or not self._clock.passed(self._ended[0].end):
            return None
        marks = self._ended.popleft()
        seconds = self._clock.seconds
        total = dict.fromkeys(KINDS, 0.0)
        bodies = []
        for kind, start, end in marks.spans:
            if kind == BODY:
                bodies.append(seconds(start, end))
            else:
                total[kind] += seconds(start, end)
        forward = sum(seconds(start, end) for _, start, end in marks.ahead)
        cockpit = sum(total.values())
        return Times(
            rest=seconds(marks.start, marks.end) - cockpit,
            own=cockpit - total[FORWARD] + forward,
            entry=total[ENTRY],
            forward=forward,
            bodies=bodies,
        )
