"""What each quantity has cost of what a training step took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cockpit.budget.meter import Times
from cockpit.engine.needs import (
    AlongPreviousUpdate,
    AlongUpdate,
    InForward,
    Moment,
    Next,
    OfUpdate,
)
from cockpit.engine.plan import Plan
from cockpit.transforms import Need, Transform


@dataclass
class Record:
    """What is known of a training step beside its times.

    Args:
        step: Its number.
        before: The quantities that began at the step before.
        due: The quantities that began.
        continued: Those that went on from the step before.
        heavy: Whether there was more to do in the backward passes.
        charged: What was charged for it beforehand, by the share of the budget.
        asking: The quantities that asked for a need.
        met: The seconds in which a need was met.
        inside: The part of these that lies in the backward passes.
    """

    step: int
    before: tuple[str, ...] = ()
    due: tuple[str, ...] = ()
    continued: tuple[str, ...] = ()
    heavy: bool = False
    charged: dict[float, float] = field(default_factory=dict)
    asking: dict[Need, list[str]] = field(default_factory=dict)
    met: dict[Need, float] = field(default_factory=dict)
    inside: float = 0.0

    @property
    def tracked(self) -> tuple[str, ...]:
        """The quantities that had to do with it."""
        return tuple(dict.fromkeys(self.due + self.continued))

    @property
    def idle(self) -> bool:
        """Whether there was nothing to do."""
        return not (self.due or self.continued or self.heavy)

    def plan(self, plan: Plan, continued: bool, needs: Mapping[str, tuple[Need, ...]]) -> None:
        """Take note of what has to be done.

        Args:
            plan: That.
            continued: Whether something goes on from the step before.
            needs: What each quantity needs.
        """
        self.due = tuple(plan.due)
        if continued:
            self.continued = tuple(n for n in self.before if any(map(_next, needs.get(n, ()))))
        self.heavy = plan.wants_gradients or bool(plan.others)
        for name in self.due:
            for need in plan.needs_of[name]:
                self.asking.setdefault(need, []).append(name)
        for name in self.continued:
            for need in needs[name]:
                if isinstance(need, Next):
                    self.asking.setdefault(need.need, []).append(name)

    def meet(self, need: Need, seconds: float, inside: bool) -> None:
        """Take note of the time in which a need was met."""
        self.met[need] = self.met.get(need, 0.0) + seconds
        if inside:
            self.inside += seconds


def costs_of(
    record: Record,
    times: Times,
    total: float,
    attached: float,
    needs: Mapping[str, tuple[Need, ...]],
) -> dict[str, float]:
    """Return what each quantity has cost of what a step took; the rest is nobody's in particular.

    Needs cost what it took to meet them, and quantities that ask for the same one pay equal parts. What is
    left is the work beneath: individual gradients that were fetched, updates that were taken.

    Args:
        record: The step.
        times: Its times.
        total: What tracking took of it, in seconds.
        attached: What the blocks take where nothing is tracked.
        needs: What each quantity needs.
    """
    names = record.tracked
    costs = dict.fromkeys(names, 0.0)
    if not names:
        return costs
    for need, seconds in record.met.items():
        _give(costs, record.asking.get(need, ()), seconds)
    watching = [n for n in record.due if any(isinstance(d, InForward) for d in needs.get(n, ()))]
    _give(costs, watching, times.forward)
    # Checks are made on entry from time to time, and are not what a quantity usually costs.
    at_entry = sum(
        s for need, s in record.met.items() if getattr(need, "moment", None) == Moment.ENTRY
    )
    common = max(0.0, times.entry - at_entry - attached)
    rest = total - common - sum(costs.values())
    if rest < 0:  # the device was faster than the host, or a backward pass than usual
        scale = max(0.0, total - common) / max(sum(costs.values()), 1e-12)
        return {name: cost * scale for name, cost in costs.items()}
    demanding = [n for n in names if any(map(_demanding, needs.get(n, ())))]
    _give(costs, demanding or names, rest)
    return costs


def _next(need: Need) -> bool:
    return isinstance(need, Next)


def individual(need: Need) -> bool:
    """Whether a need takes individual gradients."""
    if isinstance(need, Next):
        return individual(need.need)
    return isinstance(need, Transform | AlongUpdate | AlongPreviousUpdate)


def _demanding(need: Need) -> bool:
    """Whether a need takes more than the time in which it is met: individual gradients, or the update."""
    return individual(need) or isinstance(need, OfUpdate)


def _give(costs: dict[str, float], names: Iterable[str], seconds: float) -> None:
    """Add equal parts to the costs of some of them."""
    names = [name for name in names if name in costs]
    for name in names:
        costs[name] += seconds / len(names)
