"""Keeps the budgets of a cockpit: measures, charges, and decides what is due at the step that comes."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from cockpit.budget.clock import Clock
from cockpit.budget.costs import Record, costs_of, individual
from cockpit.budget.ledger import Ledger
from cockpit.budget.meter import ENTRY, EXIT, FORWARD, UPDATE, Meter, Times
from cockpit.budget.plain import Plain, Typical
from cockpit.budget.telling import Note, Notices
from cockpit.engine.plan import Plan
from cockpit.errors import InvalidArgument
from cockpit.quantities import Quantity
from cockpit.schedules import Budget, Schedule, budgets_of, is_default
from cockpit.transforms import Need


class Keeper:
    """Keeps the budgets of a cockpit's quantities.

    Of what a step takes, what the cockpit does when its blocks are entered and left, in the forward pass
    and at the update is timed as such, whether something is due or not. In the backward passes of steps that
    need individual gradients, and in what comes after them up to the next step, it is what these take beyond those
    of the other steps. What the hooks on the model take at every step is a part of the plain step here: it cannot
    be told from it.

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
        self._overhead, self._host = overhead, clock.host
        self._meter = Meter(clock)
        self._notices = Notices(note)
        self._ledgers: dict[float, Ledger] = {}
        self._needs: dict[str, tuple[Need, ...]] = {}
        self._plain, self._idle = Plain(), Typical()
        self._records: deque[Record] = deque()
        self._record = Record(-1)
        self._entered = -1
        self._tracked = -1  # the last step at which something was due
        self._current: frozenset[str] = frozenset()
        self._next: frozenset[str] = frozenset()
        self._wait = 0  # decisions of which is known already that nothing can be afforded
        self._costs: dict[str, float] = {}  # of what has begun and may go on at the next step
        self._untimed = 0  # steps of which it is not known yet how long the training took
        self.spent: dict[float, float] = {}  # seconds, by the share of the budget
        self.tracking = self.attached = self.others = self.trained = 0.0  # seconds
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
        self._wait = 0
        budgets = set(budgets_of(schedule))
        self._needs[name] = quantity.needs()
        if not budgets:
            return quantity
        if len(budgets) > 1:
            raise InvalidArgument(f"{name} has two budgets, {schedule!r}: give it one of them.")
        share = budgets.pop().share
        ledger = self._open(share)
        effort = sum(need.effort for need in self._needs[name])
        ledger.open(name, effort, any(map(individual, self._needs[name])))
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
        """What the cockpit took so far, as a share of the time of the training; NaN if that is not known.

        That of all quantities, also those that have no budget, and that of its blocks where nothing is due.
        """
        self._read()
        return (self.tracking + self.attached) / self.trained if self.trained else math.nan

    # -- what happens in a step -------------------------------------------------------------------

    @contextmanager
    def entry(self, global_step: int) -> Iterator[None]:
        """Put around the entry of a block.

        Raises:
            InvalidArgument: if an earlier step is entered again, and something was tracked since.
        """
        with self._meter.own(ENTRY):
            if global_step != self._entered:
                self._step(global_step)
            yield

    def _step(self, global_step: int) -> None:
        if global_step < self._entered and global_step <= self._tracked:
            raise InvalidArgument(
                f"Step {global_step} comes after step {self._entered}, and step {self._tracked} was tracked "
                "already. With a budget any step may be tracked, so every one needs a number of its own, "
                "and the numbers have to grow: count on from one epoch to the next."
            )
        self._meter.step()
        self._record = Record(global_step, before=self._record.due)
        self._records.append(self._record)
        self._entered, self._current = global_step, self._next
        self._next = frozenset()

    def begin(self, plan: Plan, continued: bool) -> None:
        """Take note of what is tracked at the step that was entered.

        Args:
            plan: What has to be done.
            continued: Whether something goes on from the step before.
        """
        record, self._wait = self._record, 0
        record.plan(plan, continued, self._needs)
        if record.due:
            self._tracked = record.step
        for share, ledger in self._ledgers.items():
            charged = ledger.charge(n for n in record.due if n in ledger.accounts)
            # A step that failed and is tried again is charged again, and settled once.
            record.charged[share] = record.charged.get(share, 0.0) + charged

    def observe(self, need: Need, parameter: str, function: Callable[[], Any]) -> Any:
        """Time what meets a need, and return its value; see `Engine.observer`."""
        start = self._host()
        try:
            return function()
        finally:
            self._record.meet(need, self._host() - start, inside=not self._meter.working)

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
        """Decide what is due at the step that comes, now, so that its forward pass can be looked at.

        Steps are settled for that, as many as have become known. Where nothing can be afforded for a
        while, none is until then: code that runs seldom, and at a stretch, takes far less time than code
        that has left the processor's cache whenever its turn comes.
        """
        if self._wait:
            self._wait -= 1
            return
        ledgers = self._ledgers.values()
        if not ledgers:
            return
        self._read()
        self._next = frozenset().union(*(ledger.due() for ledger in ledgers))
        if not self._next and not self._costs:
            self._wait = min(ledger.wait() for ledger in ledgers)

    # -- what it has cost -------------------------------------------------------------------------

    def _read(self) -> None:
        """Settle the steps whose times have become known."""
        while (times := self._meter.read()) is not None:
            self._settle(self._records.popleft(), times)

    def _settle(self, record: Record, times: Times) -> None:
        self._plain.add(times.rest, times.bodies, record.heavy, record.inside)
        if record.idle:
            self._idle.add(times.own)
        tracking = self._idle.beyond(times.own) if record.idle else times.own - self._idle.seconds
        self._credit(record.step, times.own - tracking)
        if record.heavy:
            bodies = sum(times.bodies)
            tracking += bodies - len(times.bodies) * self._plain.body
            tracking += self._plain.slower(times.rest - bodies)
        self.tracking += tracking
        costs = costs_of(record, times, tracking, self._idle.seconds, self._needs)
        if tracking or record.charged:
            self._pay(record, costs, tracking)
        if costs or self._costs:
            self._learn(record, costs)

    def _credit(self, step: int, attached: float) -> None:
        """Have the ledgers pay out the credit of a step, less what its blocks take where nothing is due."""
        plain = self._plain.seconds
        if plain and not self._plain.comparable:
            self._notices.unknown(step)
        self.steps += 1
        self._untimed += 1
        if plain:
            self.trained += plain * self._untimed
            self._untimed = 0
        self.attached += attached
        allowed = sum(self._ledgers)
        for share, ledger in self._ledgers.items():
            self.spent[share] += ledger.credit(plain, attached * share / allowed)

    def _pay(self, record: Record, costs: Mapping[str, float], tracking: float) -> None:
        """Have the ledgers pay for a step: each for its quantities, and for what these have in common."""
        common = tracking - sum(costs.values())
        bills = {n: cost + common / len(costs) for n, cost in costs.items()}
        payers = {name: self._payer(name) for name in bills}
        self.others += sum(bill for n, bill in bills.items() if payers[n] is None)
        for share, ledger in self._ledgers.items():
            mine = {n: bill for n, bill in bills.items() if payers[n] is ledger}
            spent = sum(mine.values()) if bills else tracking / len(self._ledgers)
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

    def _learn(self, record: Record, costs: Mapping[str, float]) -> None:
        """Tell the accounts what their quantities have cost, those of two steps at the second one."""
        begun = self._costs
        for name in record.continued:
            if name in begun:
                begun[name] += costs[name] if name not in record.due else 0.0
        for name, cost in begun.items():
            ledger = self._ledger_of(name)
            if ledger is not None:
                ledger.learn(name, cost)
                self._notices.learned(record.step, name, ledger)
        self._costs = {name: costs[name] for name in record.due}

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Note what share was spent, and what could not be afforded."""
        self._read()
        if not self.active or not self.trained:
            return
        spent = {share: seconds / self.trained for share, seconds in self.spent.items()}
        others, attached = self.others / self.trained, self.attached / self.trained
        self._notices.total(self._entered, self.steps, self.taken, spent, others, attached)
        for ledger in self._ledgers.values():
            for name, account in ledger.accounts.items():
                if not account.costs and name not in self._costs:
                    expected = account.cost(ledger.plain) / ledger.plain
                    balance = account.balance / ledger.plain
                    self._notices.untracked(self._entered, name, expected, balance)

    # -- checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what was measured and what the accounts hold, as plain data."""
        self._read()
        return {
            "ledgers": {str(share): one.state_dict() for share, one in self._ledgers.items()},
            "spent": {str(share): seconds for share, seconds in self.spent.items()},
            "plain": self._plain.state_dict(),
            "idle": list(self._idle.recent),
            "notices": self._notices.state_dict(),
            "next": sorted(self._next),
            **{name: getattr(self, name) for name in TOTALS},
            "untimed": self._untimed,
            "tracked": self._tracked,
        }

    def load_state_dict(self, state: Mapping[str, Any], entered: int) -> None:
        """Take up what was measured, for those budgets and quantities that are here as well.

        Args:
            state: What `state_dict` returned.
            entered: The last step that was entered.
        """
        self._plain.load_state_dict(state["plain"])
        self._idle.recent.extend(state["idle"])
        for share, ledger in self._ledgers.items():
            if str(share) in state["ledgers"]:
                ledger.load_state_dict(state["ledgers"][str(share)])
            self.spent[share] = state["spent"].get(str(share), 0.0)
            # Of the last step, whose end was not seen.
            ledger.credit(self._plain.seconds, self._idle.seconds)
        self._notices.load_state_dict(state["notices"])
        self._next = frozenset(state["next"])
        for name in TOTALS:
            setattr(self, name, state[name])
        self._untimed, self._tracked = state["untimed"], state["tracked"]
        self._entered = entered


TOTALS = ("tracking", "attached", "others", "trained", "steps")
"""What is summed up over the steps."""
