"""What a training step takes without tracking, learned from the training itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

RECENT = 64
"""Number of times that are remembered."""

REFRESH = 8
"""The typical time is computed anew when one in so many of those that it rests on would be new."""

LONGEST = 3.0
"""How many times the median a time may be to count: steps may differ, but a pause is none."""

ENOUGH = 5
"""Training steps whose time has to be known before anything is spent."""

PATIENCE = 20
"""Steps after which those with individual gradients count as plain ones, where there are no others."""


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
        if REFRESH * self._new >= len(self.recent):
            self._known = None

    def beyond(self, seconds: float) -> float:
        """Return by how much a time exceeds the typical one, if it is too long to count."""
        return seconds - self.seconds if seconds > LONGEST * self.seconds else 0.0

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
class Steps:
    """Training steps of a kind, without what the cockpit was seen to do in them.

    Args:
        whole: What they take.
        bodies: What the bodies of their with blocks take, the backward passes.
        others: What all but these takes: the update, the next batch, and its forward pass.
    """

    whole: Typical = field(default_factory=Typical)
    bodies: Typical = field(default_factory=Typical)
    others: Typical = field(default_factory=Typical)


class Plain:
    """The training steps without tracking.

    These are the steps at which nothing was asked of the backward passes. Where there are no such, it is the
    others, without the time in which needs were met there.
    """

    def __init__(self) -> None:
        self._light, self._heavy = Steps(), Steps()

    def add(self, whole: float, bodies: Sequence[float], heavy: bool, inside: float) -> None:
        """Take note of a step.

        Args:
            whole: What it took, in seconds, without what the cockpit did outside of the bodies.
            bodies: What these took.
            heavy: Whether there was more to do in the backward passes.
            inside: The time in which needs were met there.
        """
        steps = self._heavy if heavy else self._light
        steps.whole.add(max(0.0, whole - inside))
        for seconds in bodies:
            steps.bodies.add(max(0.0, seconds - inside / len(bodies)))
        steps.others.add(max(0.0, whole - sum(bodies)))

    @property
    def comparable(self) -> bool:
        """Whether there are enough steps without individual gradients."""
        return len(self._light.whole) >= ENOUGH

    @property
    def seconds(self) -> float:
        """What a step takes; 0 while that is not known."""
        if self.comparable:
            return self._light.whole.seconds
        return self._heavy.whole.seconds if len(self._heavy.whole) >= PATIENCE else 0.0

    @property
    def body(self) -> float:
        """What a backward pass takes, as far as it is known."""
        return (self._light if self._light.bodies else self._heavy).bodies.seconds

    def slower(self, others: float) -> float:
        """Return by how much all but the backward passes of a step took longer than usual, in seconds.

        After individual gradients the processor's cache is cold, and hooks of torch's own have had to be called. A step
        with a pause in it is not compared.
        """
        usual = self._light.others
        if not self.comparable or others > LONGEST * usual.seconds:
            return 0.0
        return others - usual.seconds

    def state_dict(self) -> dict[str, list[list[float]]]:
        """Return the times, as plain data."""
        kinds = {"light": self._light, "heavy": self._heavy}
        return {
            kind: [list(one.recent) for one in (steps.whole, steps.bodies, steps.others)]
            for kind, steps in kinds.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up times."""
        for steps, kind in ((self._light, "light"), (self._heavy, "heavy")):
            of_steps = steps.whole, steps.bodies, steps.others
            for typical, recent in zip(of_steps, state[kind], strict=True):
                typical.recent.extend(recent)
