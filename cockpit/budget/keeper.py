"""Keeps the budgets of a cockpit: measures, charges, and decides what is due at the step that comes."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cockpit.budget.clock import Clock
from cockpit.budget.ledger import Ledger
from cockpit.budget.meter import ENTRY, EXIT, FORWARD, UPDATE, Meter, Times, Typical
from cockpit.engine.needs import (
    AlongPreviousUpdate,
    AlongUpdate,
    InForward,
    Moment,
    Next,
    OfUpdate,
)
from cockpit.engine.plan import Plan
from cockpit.errors import InvalidArgument
from cockpit.quantities import Quantity
from cockpit.schedules import Budget, Schedule, budgets_of, linear
from cockpit.transforms import Need, Transform

PLAIN_STEPS = 5
"""Training steps whose time has to be known before anything is spent."""

PATIENCE = 20
"""Steps after which those with individual gradients count as plain ones, where there are no others."""

NOTICEABLE = 1.5
"""Ratio by which an interval has to change to be noted again."""

EVENT = "budget"
"""Kind of the events of the run file that say what was chosen."""

Note = Callable[[int, str, str, str], None]
"""Takes an event: the step, its kind, its subject, and a text."""


@dataclass
class _Record:
    """What is known of a training step beside its times."""

    step: int
    due: tuple[str, ...] = ()
    continued: tuple[str, ...] = ()
    heavy: bool = False  # whether there was more to do in the backward passes
    charged: dict[float, float] = field(default_factory=dict)  # by share
    asking: dict[Need, list[str]] = field(default_factory=dict)
    met: dict[Need, float] = field(default_factory=dict)  # seconds


class Keeper:
    """Keeps the budgets of a cockpit's quantities.

    Of what a step takes, what the cockpit does when its blocks are entered and left, in the forward pass
    and at the update is timed as such. In the backward passes of steps that need individual
    gradients, it is what these take beyond those of the other steps. What the hooks on the model take
    at every step, tracked or not, is a part of the plain step here: no choice of steps changes it.

    What a step took is split among its quantities by the host's time.

    Args:
        clock: Tells the time.
        note: Takes what is chosen.
        overhead: A budget for all quantities that have no schedule of their own, which has to do for
            those that have one as well.
    """

    def __init__(
        self,
        clock: Clock,
        note: Note,
        overhead: Budget | None = None,
    ) -> None:
        self._note, self._overhead, self._host = note, overhead, clock.host
        self._meter = Meter(clock)
        self._ledgers: dict[float, Ledger] = {}
        self._needs: dict[str, tuple[Need, ...]] = {}
        self._plain, self._any = Typical(), Typical()
        self._bodies, self._any_bodies = Typical(), Typical()
        self._records: deque[_Record] = deque()
        self._before = self._record = _Record(-1)
        self._entered = -1
        self._current: frozenset[str] = frozenset()
        self._next: frozenset[str] = frozenset()
        self._costs: dict[str, float] = {}  # of what has begun and may go on at the next step
        self._told: dict[str, int] = {}  # how often something was learned of each quantity
        self._noted: dict[str, float] = {}  # intervals
        self.spent: dict[float, float] = {}
        self.trained = 0.0
        self.steps = 0

    # -- the quantities ---------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether there is a budget."""
        return bool(self._ledgers)

    def bind(self, name: str, quantity: Quantity) -> Quantity:
        """Return a quantity whose budget, if it has one, is kept here.

        Raises:
            InvalidArgument: if it has two.
        """
        schedule = quantity.track_schedule
        if self._overhead is not None and schedule == linear(1):
            schedule = self._overhead
        budgets = set(budgets_of(schedule))
        self._needs[name] = quantity.needs()
        if not budgets:
            return quantity
        if len(budgets) > 1:
            raise InvalidArgument(f"{name} has two budgets, {schedule!r}: give it one of them.")
        share = budgets.pop().share
        ledger = self._ledgers.setdefault(share, Ledger(share))
        self.spent.setdefault(share, 0.0)
        effort = sum(need.effort for need in self._needs[name])
        ledger.open(name, effort, any(map(_individual, self._needs[name])))
        assert isinstance(schedule, Schedule)
        # Not dataclasses.replace, which would call an __init__ that may be somebody's own.
        bound = copy.copy(quantity)
        object.__setattr__(bound, "track_schedule", schedule.bound(partial(self._decided, name)))
        return bound

    def _decided(self, name: str, global_step: int) -> bool:
        if global_step > self._entered:
            return name in self._next
        return global_step == self._entered and name in self._current

    @property
    def taken(self) -> float:
        """What was spent so far, as a share of the time of the training; NaN if that is not known."""
        return sum(self.spent.values()) / self.trained if self.trained else math.nan

    # -- what happens in a step -------------------------------------------------------------------

    @contextmanager
    def entry(self, global_step: int) -> Any:
        """Put around the entry of a block."""
        if global_step > self._entered:
            self._meter.step()
            self._before, self._record = self._record, _Record(global_step)
            self._records.append(self._record)
            self._entered, self._current = global_step, self._next
            self._next = frozenset()
        with self._meter.own(ENTRY):
            self._read()
            yield

    def begin(self, plan: Plan, continued: bool) -> None:
        """Take note of what is tracked at the step that was entered.

        Args:
            plan: What has to be done.
            continued: Whether something goes on from the step before.
        """
        before, record = self._before, self._record
        record.due = tuple(plan.due)
        if continued:
            record.continued = tuple(n for n in before.due if any(map(_next, self._needs_of(n))))
        record.heavy = plan.wants_gradients or bool(plan.others)
        for name in record.due:
            for need in plan.needs_of[name]:
                record.asking.setdefault(need, []).append(name)
        for name in record.continued:
            for need in self._needs_of(name):
                if isinstance(need, Next):
                    record.asking.setdefault(need.need, []).append(name)
        for share, ledger in self._ledgers.items():
            record.charged[share] = ledger.charge(n for n in record.due if n in ledger.accounts)

    def _needs_of(self, name: str) -> tuple[Need, ...]:
        return self._needs.get(name, ())

    def observe(self, need: Need, parameter: str, function: Callable[[], Any]) -> Any:
        """Time what meets a need, and return its value; see `Engine.observer`."""
        start = self._host()
        try:
            return function()
        finally:
            met = self._record.met
            met[need] = met.get(need, 0.0) + self._host() - start

    def exit(self) -> AbstractContextManager[None]:
        """Put around the exit from a block."""
        return self._meter.own(EXIT)

    def update(self) -> AbstractContextManager[None]:
        """Put around what is done at an update."""
        return self._meter.own(UPDATE)

    def forward(self) -> AbstractContextManager[None]:
        """Put around what is done in a forward pass."""
        return self._meter.own(FORWARD)

    def decide(self) -> None:
        """Decide what is due at the step that comes, now, so that its forward pass can be looked at."""
        self._next = frozenset().union(*(ledger.due() for ledger in self._ledgers.values()))

    # -- what it has cost -------------------------------------------------------------------------

    def _read(self) -> None:
        """Settle the steps whose times have become known."""
        while (times := self._meter.read()) is not None:
            record = self._records.popleft()
            self._learn_plain(record, times)
            self._settle(record, times)

    def _learn_plain(self, record: _Record, times: Times) -> None:
        self._any.add(times.rest)
        for seconds in times.bodies:
            self._any_bodies.add(seconds)
        if not record.heavy:
            self._plain.add(times.rest)
            for seconds in times.bodies:
                self._bodies.add(seconds)

    def _plain_step(self) -> tuple[float, float]:
        """Return the seconds of a plain step, 0 while they are not known, and of the body of its block."""
        if len(self._plain) >= PLAIN_STEPS:
            return self._plain.seconds, self._bodies.seconds
        if len(self._any) >= PATIENCE:
            return self._any.seconds, self._any_bodies.seconds
        return 0.0, self._bodies.seconds

    def _settle(self, record: _Record, times: Times) -> None:
        plain, body = self._plain_step()
        total = times.own
        if record.heavy:
            total += sum(times.bodies) - len(times.bodies) * body
        costs = self._attributed(record, times, total)
        self.steps += 1
        self.trained += plain
        for share, ledger in self._ledgers.items():
            ledger.credit(plain)
            spent = sum(costs[name] for name in costs if name in ledger.accounts)
            spent += (total - sum(costs.values())) / len(self._ledgers)
            if self._overhead is not None and share == self._overhead.share:
                spent += sum(cost for name, cost in costs.items() if self._ledger_of(name) is None)
            self.spent[share] += spent
            ledger.spread(spent - record.charged.get(share, 0.0))
        self._learn(record, costs)

    def _ledger_of(self, name: str) -> Ledger | None:
        return next((one for one in self._ledgers.values() if name in one.accounts), None)

    def _attributed(self, record: _Record, times: Times, total: float) -> dict[str, float]:
        """Return what each quantity has cost of what a step took; the rest is nobody's in particular."""
        names = tuple(dict.fromkeys(record.due + record.continued))
        costs = dict.fromkeys(names, 0.0)
        if not names:
            return costs
        for need, seconds in record.met.items():
            _give(costs, record.asking.get(need, ()), seconds)
        watching = [
            n for n in record.due if any(isinstance(d, InForward) for d in self._needs_of(n))
        ]
        _give(costs, watching, times.forward)
        # Checks are made on entry from time to time, and are not what a quantity usually costs.
        at_entry = sum(
            s for need, s in record.met.items() if getattr(need, "moment", None) == Moment.ENTRY
        )
        common = max(0.0, times.entry - at_entry)
        rest = total - common - sum(costs.values())
        if rest < 0:  # the device was faster than the host, or a backward pass than usual
            scale = max(0.0, total - common) / max(sum(costs.values()), 1e-12)
            return {name: cost * scale for name, cost in costs.items()}
        demanding = [n for n in names if any(map(_demanding, self._needs_of(n)))]
        _give(costs, demanding or names, rest)
        return costs

    def _learn(self, record: _Record, costs: Mapping[str, float]) -> None:
        """Tell the accounts what their quantities have cost, those of two steps at the second one."""
        begun = self._costs
        for name in record.continued:
            if name in begun:
                begun[name] += costs[name] if name not in record.due else 0.0
        for name, cost in begun.items():
            ledger = self._ledger_of(name)
            if ledger is not None:
                ledger.learn(name, cost)
                self._tell(record.step, name, ledger)
        self._costs = {name: costs[name] for name in record.due}

    def _tell(self, step: int, name: str, ledger: Ledger) -> None:
        """Note at which interval a quantity is tracked, where that has changed noticeably."""
        times = self._told.get(name, 0) + 1
        self._told[name] = times
        if not ledger.plain or times & (times - 1):  # ever more rarely: costs come and go
            return
        interval, earlier = ledger.intervals()[name], self._noted.get(name)
        if earlier is not None and 1 / NOTICEABLE < interval / earlier < NOTICEABLE:
            return
        self._noted[name] = interval
        every = f"about every {interval:.0f} steps" if interval > 1 else "at every step"
        text = f"takes {1e3 * ledger.cost(name):.3g} ms a time, and is tracked {every}"
        self._note(step, EVENT, name, text)

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Note what share was spent, and what could not be afforded."""
        if not self.active or not self.trained:
            return
        for share, ledger in self._ledgers.items():
            self._note(
                self._entered,
                EVENT,
                "overhead",
                f"tracking took {100 * self.spent[share] / self.trained:.1f} % of the time of {self.steps} "
                f"steps, and {100 * share:g} % were allowed",
            )
            for name, account in ledger.accounts.items():
                if not account.costs and name not in self._costs:
                    self._note(
                        self._entered,
                        EVENT,
                        name,
                        f"was expected to take about {account.cost(ledger.plain) / ledger.plain:.2g} "
                        f"training steps, and its part of the budget came to "
                        f"{max(0.0, account.balance) / ledger.plain:.2g}: it was not tracked; allow more, "
                        "or give it a schedule of its own",
                    )

    # -- checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what was measured and what the accounts hold, as plain data."""
        return {
            "ledgers": {str(share): one.state_dict() for share, one in self._ledgers.items()},
            "plain": list(self._plain.recent),
            "any": list(self._any.recent),
            "bodies": list(self._bodies.recent),
            "any_bodies": list(self._any_bodies.recent),
            "next": sorted(self._next),
            "told": dict(self._told),
            "noted": dict(self._noted),
            "spent": {str(share): seconds for share, seconds in self.spent.items()},
            "trained": self.trained,
            "steps": self.steps,
        }

    def load_state_dict(self, state: Mapping[str, Any], entered: int) -> None:
        """Take up what was measured, for those budgets and quantities that are here as well.

        Args:
            state: What `state_dict` returned.
            entered: The last step that was entered.
        """
        for share, ledger in self._ledgers.items():
            if str(share) in state["ledgers"]:
                ledger.load_state_dict(state["ledgers"][str(share)])
            self.spent[share] = state["spent"].get(str(share), 0.0)
        for name in ("plain", "any", "bodies", "any_bodies"):
            times: Typical = getattr(self, f"_{name}")
            times.recent.extend(state[name])
        plain, _ = self._plain_step()
        for ledger in self._ledgers.values():
            ledger.credit(plain)  # of the last step, whose end was not seen
        self._next = frozenset(state["next"])
        self._told, self._noted = dict(state["told"]), dict(state["noted"])
        self.trained, self.steps = state["trained"], state["steps"]
        self._entered = entered


def _give(costs: dict[str, float], names: Iterable[str], seconds: float) -> None:
    """Add equal parts to the costs of some of them."""
    names = [name for name in names if name in costs]
    for name in names:
        costs[name] += seconds / len(names)


def _next(need: Need) -> bool:
    return isinstance(need, Next)


def _individual(need: Need) -> bool:
    """Whether a need takes individual gradients."""
    if isinstance(need, Next):
        return _individual(need.need)
    return isinstance(need, Transform | AlongUpdate | AlongPreviousUpdate)


def _demanding(need: Need) -> bool:
    """Whether a need takes more than the time in which it is met: individual gradients, or the update."""
    return _individual(need) or isinstance(need, OfUpdate)
