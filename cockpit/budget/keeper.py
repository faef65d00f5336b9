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

from cockpit.budget import telling
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
from cockpit.schedules import Budget, Schedule, budgets_of, is_default
from cockpit.transforms import Need, Transform

PLAIN_STEPS = 5
"""Training steps whose time has to be known before anything is spent."""

PATIENCE = 20
"""Steps after which those with individual gradients count as plain ones, where there are no others."""

NOTICEABLE = 1.5
"""Ratio by which an interval has to change to be noted again."""

EVENT = "budget"
"""Kind of the events of the run file that say what was chosen."""

GRADIENTS = "individual gradients"
"""Subject of the event that says that their cost is not known as a whole."""

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
    inside: float = 0.0  # seconds of these in the backward passes

    @property
    def tracked(self) -> tuple[str, ...]:
        """The quantities that had to do with it."""
        return tuple(dict.fromkeys(self.due + self.continued))

    @property
    def idle(self) -> bool:
        """Whether there was nothing to do."""
        return not (self.due or self.continued or self.heavy)


class Keeper:
    """Keeps the budgets of a cockpit's quantities.

    Of what a step takes, what the cockpit does when its blocks are entered and left, in the forward pass
    and at the update is timed as such. In the backward passes of steps that need individual
    gradients, it is what these take beyond those of the other steps. What the hooks on the model take
    at every step, tracked or not, is a part of the plain step here: no choice of steps changes it. The
    same goes for what the blocks take where nothing is due: this is known apart, and no budget pays for it.

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
        self._idle = Typical()
        self._records: deque[_Record] = deque()
        self._before = self._record = _Record(-1)
        self._entered = -1
        self._tracked = -1  # the last step at which something was due
        self._current: frozenset[str] = frozenset()
        self._next: frozenset[str] = frozenset()
        self._costs: dict[str, float] = {}  # of what has begun and may go on at the next step
        self._told: dict[str, int] = {}  # how often something was learned of each quantity
        self._noted: dict[str, float] = {}  # intervals; and what is said only once
        self._untimed = 0  # steps of which it is not known yet how long the training took
        self.spent: dict[float, float] = {}
        self.total = self.idle = self.trained = 0.0
        self.steps = 0
        if overhead is not None:  # also where all quantities have schedules of their own
            self._open(overhead.share)

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
        if self._overhead is not None and is_default(schedule):
            schedule = self._overhead
        budgets = set(budgets_of(schedule))
        self._needs[name] = quantity.needs()
        if not budgets:
            return quantity
        if len(budgets) > 1:
            raise InvalidArgument(f"{name} has two budgets, {schedule!r}: give it one of them.")
        share = budgets.pop().share
        ledger = self._open(share)
        effort = sum(need.effort for need in self._needs[name])
        ledger.open(name, effort, any(map(_individual, self._needs[name])))
        assert isinstance(schedule, Schedule)
        # Not dataclasses.replace, which would call an __init__ that may be somebody's own.
        bound = copy.copy(quantity)
        object.__setattr__(bound, "track_schedule", schedule.bound(partial(self._decided, name)))
        return bound

    def _open(self, share: float) -> Ledger:
        self.spent.setdefault(share, 0.0)
        return self._ledgers.setdefault(share, Ledger(share))

    def _decided(self, name: str, global_step: int) -> bool:
        if global_step > self._entered:
            return name in self._next
        return global_step == self._entered and name in self._current

    @property
    def taken(self) -> float:
        """What tracking took so far, as a share of the time of the training; NaN if that is not known.

        That of all quantities, also those that have no budget.
        """
        return self.total / self.trained if self.trained else math.nan

    # -- what happens in a step -------------------------------------------------------------------

    @contextmanager
    def entry(self, global_step: int) -> Any:
        """Put around the entry of a block.

        Raises:
            InvalidArgument: if an earlier step is entered again, and something was tracked since.
        """
        if global_step != self._entered:
            self._step(global_step)
        with self._meter.own(ENTRY):
            self._read()
            yield

    def _step(self, global_step: int) -> None:
        if global_step < self._entered and global_step <= self._tracked:
            raise InvalidArgument(
                f"Step {global_step} comes after step {self._entered}, and step {self._tracked} was tracked "
                "already. With a budget any step may be tracked, so every one needs a number of its own, "
                "and the numbers have to grow: count on from one epoch to the next."
            )
        self._meter.step()
        self._before, self._record = self._record, _Record(global_step)
        self._records.append(self._record)
        self._entered, self._current = global_step, self._next
        self._next = frozenset()

    def begin(self, plan: Plan, continued: bool) -> None:
        """Take note of what is tracked at the step that was entered.

        Args:
            plan: What has to be done.
            continued: Whether something goes on from the step before.
        """
        before, record = self._before, self._record
        record.due = tuple(plan.due)
        if record.due:
            self._tracked = record.step
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
            charged = ledger.charge(n for n in record.due if n in ledger.accounts)
            # A step that failed and is tried again is charged again, and settled once.
            record.charged[share] = record.charged.get(share, 0.0) + charged

    def _needs_of(self, name: str) -> tuple[Need, ...]:
        return self._needs.get(name, ())

    def observe(self, need: Need, parameter: str, function: Callable[[], Any]) -> Any:
        """Time what meets a need, and return its value; see `Engine.observer`."""
        start = self._host()
        try:
            return function()
        finally:
            record, seconds = self._record, self._host() - start
            record.met[need] = record.met.get(need, 0.0) + seconds
            if not self._meter.working:
                record.inside += seconds

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
        if record.idle:
            self._idle.add(times.own)
        self._any.add(max(0.0, times.rest - record.inside))
        for seconds in times.bodies:
            self._any_bodies.add(max(0.0, seconds - record.inside / len(times.bodies)))
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
        return 0.0, (self._bodies or self._any_bodies).seconds

    def _settle(self, record: _Record, times: Times) -> None:
        plain, body = self._plain_step()
        if plain and len(self._plain) < PLAIN_STEPS and GRADIENTS not in self._noted:
            self._noted[GRADIENTS] = 1.0
            self._note(record.step, EVENT, GRADIENTS, telling.UNKNOWN)
        self.steps += 1
        self._untimed += 1
        if plain:
            self.trained += plain * self._untimed
            self._untimed = 0
        for ledger in self._ledgers.values():
            ledger.credit(plain)
        total = self._idle.beyond(times.own) if record.idle else times.own - self._idle.seconds
        self.idle += times.own - total
        if record.heavy:
            total += sum(times.bodies) - len(times.bodies) * body
        self.total += total
        costs = self._attributed(record, times, total)
        if total or record.charged:
            self._pay(record, costs, total)
        self._learn(record, costs)

    def _pay(self, record: _Record, costs: Mapping[str, float], total: float) -> None:
        """Have the ledgers pay for a step: each for its quantities, and for what these have in common."""
        common = total - sum(costs.values())
        bills = {n: cost + common / len(costs) for n, cost in costs.items()}
        payers = {name: self._payer(name) for name in bills}
        for share, ledger in self._ledgers.items():
            mine = {n: bill for n, bill in bills.items() if payers[n] is ledger}
            spent = sum(mine.values()) if bills else total / len(self._ledgers)
            elsewhere = sum(bill for n, bill in mine.items() if n not in ledger.accounts)
            self.spent[share] += spent
            ledger.spread(spent - record.charged.get(share, 0.0), elsewhere)

    def _payer(self, name: str) -> Ledger | None:
        """Return who pays for a quantity: its own ledger, or that of the `overhead`."""
        ledger = self._ledger_of(name)
        if ledger is None and self._overhead is not None:
            ledger = self._ledgers.get(self._overhead.share)
        return ledger

    def _ledger_of(self, name: str) -> Ledger | None:
        return next((one for one in self._ledgers.values() if name in one.accounts), None)

    def _attributed(self, record: _Record, times: Times, total: float) -> dict[str, float]:
        """Return what each quantity has cost of what a step took; the rest is nobody's in particular."""
        names = record.tracked
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
        common = max(0.0, times.entry - at_entry - self._idle.seconds)
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
        if interval == earlier:
            return
        if earlier is not None and 1 / NOTICEABLE < interval / earlier < NOTICEABLE:
            return
        self._noted[name] = interval
        text = telling.of_interval(ledger.cost(name), interval)
        self._note(step, EVENT, name, text)

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Note what share was spent, and what could not be afforded."""
        if not self.active or not self.trained:
            return
        spent = {share: seconds / self.trained for share, seconds in self.spent.items()}
        text = telling.of_total(self.taken, spent, self.idle / self.trained, self.steps)
        self._note(self._entered, EVENT, "overhead", text)
        for ledger in self._ledgers.values():
            for name, account in ledger.accounts.items():
                if not account.costs and name not in self._costs:
                    expected = account.cost(ledger.plain) / ledger.plain
                    text = telling.of_untracked(expected, account.balance / ledger.plain)
                    self._note(self._entered, EVENT, name, text)

    # -- checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what was measured and what the accounts hold, as plain data."""
        return {
            "ledgers": {str(share): one.state_dict() for share, one in self._ledgers.items()},
            "plain": list(self._plain.recent),
            "any": list(self._any.recent),
            "bodies": list(self._bodies.recent),
            "any_bodies": list(self._any_bodies.recent),
            "idle_times": list(self._idle.recent),
            "next": sorted(self._next),
            "told": dict(self._told),
            "noted": dict(self._noted),
            "spent": {str(share): seconds for share, seconds in self.spent.items()},
            "total": self.total,
            "idle": self.idle,
            "trained": self.trained,
            "steps": self.steps,
            "untimed": self._untimed,
            "tracked": self._tracked,
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
        self._idle.recent.extend(state.get("idle_times", ()))
        plain, _ = self._plain_step()
        for ledger in self._ledgers.values():
            ledger.credit(plain)  # of the last step, whose end was not seen
        self._next = frozenset(state["next"])
        self._told, self._noted = dict(state["told"]), dict(state["noted"])
        self.trained, self.steps = state["trained"], state["steps"]
        self.total = state.get("total", sum(state["spent"].values()))
        self.idle = state.get("idle", 0.0)
        self._untimed = state.get("untimed", 0)
        self._tracked = state.get("tracked", -1)
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
