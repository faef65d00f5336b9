"""What a run is: model, optimizer, how far it has come, and what happened on the way."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from cockpit.log import Event, open_file
from cockpit.run import Run

__all__ = ["About", "EventCount", "Status", "about", "status_text"]

Status: TypeAlias = Literal["running", "stopped", "closed"]

BASIS = "basis"
"""Kind of the events that say what a quantity was computed from; nothing has gone wrong there."""

BUDGET = "budget"
"""Kind of the events that say how often a budget tracks a quantity, and what tracking took in the end."""


@dataclass(frozen=True)
class EventCount:
    """Equal events of a run, and at how many of the steps they happened."""

    kind: str
    subject: str
    message: str
    count: int
    first: int | None
    """The first step; None for what happened in no step."""


@dataclass(frozen=True)
class About:
    """What a run is.

    Args:
        status: ``"stopped"`` is what was neither closed nor is being written on this machine.
        created: When it began, in seconds since 1970.
        steps: Number of tracked steps.
        first: The first of them, None without any.
        last: The last one.
        model: Class of the model; empty if not known.
        parameters: How many parameters it has.
        elements: How many numbers these have together; None if not known.
        optimizers: Their classes, with those of their settings that are switched on.
        bases: What each quantity of curvature was computed from, in the end.
        events: What happened apart from that, the most frequent first.
        budget: How often each quantity that has a budget was tracked in the end, and under
            ``"overhead"``, once the run is closed, what all of that took.
    """

    status: Status
    created: float
    steps: int
    first: int | None
    last: int | None
    model: str
    parameters: int
    elements: int | None
    optimizers: tuple[str, ...]
    bases: Mapping[str, str]
    events: tuple[EventCount, ...]
    budget: Mapping[str, str] = field(default_factory=dict)

    @property
    def extent(self) -> str:
        """The number of tracked steps, and from which to which, in words."""
        reach = f", {self.first} to {self.last}" if self.steps else ""
        return f"{self.steps} tracked{reach}"

    @property
    def size(self) -> str:
        """The model, and how many tensors and elements its parameters are, in words."""
        words = [self.model or "not known"]
        if self.parameters:
            words.append(f"{self.parameters} tensor{'s' * (self.parameters != 1)}")
        if self.elements is not None:
            words.append(f"{self.elements:,} elements")
        return ", ".join(words)


def about(run: Run) -> About:
    """Return what a run is."""
    with open_file(run.path) as file:
        parameters, created, events = file.parameters, file.created, file.events()
        running = file.status == "running"
        status: Status = "closed" if not running else "running" if file.is_live else "stopped"
    sizes = [math.prod(one.shape) for one in parameters if one.dtype]
    steps, settings = run.steps, run.settings
    optimizers = settings.get("optimizers")
    listed = optimizers if isinstance(optimizers, list) else []
    return About(
        status=status,
        created=created if math.isfinite(created) else 0.0,
        steps=len(steps),
        first=int(steps[0]) if len(steps) else None,
        last=int(steps[-1]) if len(steps) else None,
        model=str(settings.get("model") or ""),
        parameters=len(parameters),
        elements=sum(sizes) if parameters and len(sizes) == len(parameters) else None,
        optimizers=tuple(_options(one) for one in listed if isinstance(one, Mapping)),
        bases={event.subject: event.message for event in events if event.kind == BASIS},
        events=_counted([event for event in events if event.kind not in (BASIS, BUDGET)]),
        budget={event.subject: event.message for event in events if event.kind == BUDGET},
    )


def status_text(status: Status) -> str:
    """Return a status in words."""
    return {
        "running": "running",
        "stopped": "not closed: still running elsewhere, or stopped on the way",
        "closed": "closed",
    }[status]


def _options(optimizer: Mapping[str, Any]) -> str:
    """Return the kind of an optimizer with those of its settings that are switched on."""
    options = [
        f"{k}={v}" for k, v in optimizer.items() if k != "class" and v not in (None, False, 0)
    ]
    return " ".join([str(optimizer.get("class", "not known")), *options])


def _counted(events: list[Event]) -> tuple[EventCount, ...]:
    counts = Counter((event.kind, event.subject, event.message) for event in events)
    first: dict[tuple[str, str, str], int | None] = {}
    for event in events:
        first.setdefault((event.kind, event.subject, event.message), event.step)
    return tuple(EventCount(*what, count, first[what]) for what, count in counts.most_common())
