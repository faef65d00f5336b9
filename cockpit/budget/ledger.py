"""The accounts of quantities that share a budget."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

RECENT = 7
"""Number of measured costs that are remembered."""

LONGEST_WAIT = 32
"""Steps after which is decided anew whether something can be afforded, however unlikely that is."""

KEPT = 0.2
"""Part of a budget that is for quantities, whatever it takes to have a cockpit at all."""


@dataclass
class Account:
    """What a quantity has, and what it costs.

    Args:
        effort: What it costs before that has been measured, in plain training steps.
        grouped: Whether it shares work with others of which that is said.
        balance: Seconds that it has, negative where it owes them.
        costs: The costs that were measured last, in seconds.
        awaited: Whether one of the first two, of which the smaller one counts, is being measured.
    """

    effort: float
    grouped: bool = False
    balance: float = 0.0
    costs: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    awaited: bool = False
    _typical: float | None = None

    def learn(self, seconds: float) -> None:
        """Take note of what it has cost."""
        self.costs.append(seconds)
        self.awaited = False
        self._typical = sorted(self.costs)[(len(self.costs) - 1) // 2]

    def cost(self, plain: float) -> float:
        """Return what it will cost: the median of the last times, of two the smaller one.

        Args:
            plain: Seconds of a training step without tracking.
        """
        return self.effort * plain if self._typical is None else self._typical

    def price(self, plain: float) -> float:
        """Return what it is charged: the smaller one of the estimate and a cost that was measured only once.

        The first time may be an outlier, and what is charged too little is settled afterwards.

        Args:
            plain: Seconds of a training step without tracking.
        """
        cost = self.cost(plain)
        return cost if len(self.costs) != 1 else min(cost, self.effort * plain)


class Ledger:
    r"""Spends a share of the training time on quantities, the same part on each of them.

    With every training step each account gets an equal part of `share` times the time of a plain step,
    less what the with blocks take where nothing is tracked; of that no more is paid than leaves `KEPT`.
    A quantity is due when its account holds half of what it costs, and is charged all of it: so over
    time, what has been spent is neither ahead of what was earned nor behind it, whenever one looks.
    What a step really took, beyond the usual costs of its quantities or below them, is borne by all
    accounts alike. So their sum is exact: the work that quantities share, checks made now and then, and
    the first time of everything are paid for by the steps that follow. While a cost has been measured only
    once, no more is charged than the estimate, so that an outlier keeps nothing from being tracked again.

    An account that holds the whole cost gets no more, and its part goes to the others. So what is cheaper
    than its part is tracked at every step, and among all choices of frequencies that take this time, it
    is the one with the largest product.

    Quantities that share work, when it is due for one of them, come along if they are not in debt,
    and before their cost has been measured, if they hold a quarter of what it is taken to be.

    Args:
        share: What they may take, as a share of the time of the plain steps.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.accounts: dict[str, Account] = {}
        self.plain = 0.0  # seconds of a plain step, 0 while that is not known
        self._unpaid = 0  # steps without their credit, since that was not known
        self._attached = 0.0  # seconds that their blocks took
        self._credited = 0.0
        self._elsewhere = 0.0

    def open(self, name: str, effort: float, grouped: bool) -> None:
        """Open an account."""
        self.accounts[name] = Account(effort, grouped)

    @property
    def balance(self) -> float:
        """The sum of all accounts, in seconds."""
        return sum(account.balance for account in self.accounts.values())

    def cost(self, name: str) -> float:
        """Return what a quantity will cost, in seconds."""
        return self.accounts[name].cost(self.plain)

    def credit(self, plain: float, attached: float = 0.0) -> float:
        """Pay out the credit of a training step.

        Args:
            plain: What it takes without tracking, in seconds; 0 while that is not known.
            attached: What the blocks take of it where nothing is tracked.

        Returns:
            How much was paid for the blocks, of this step and of those before that had no credit yet.
        """
        self.plain = plain
        self._unpaid += 1
        self._attached += attached
        if not plain:
            return 0.0
        earned, self._unpaid = self.share * plain * self._unpaid, 0
        paid, self._attached = min(self._attached, (1 - KEPT) * earned), 0.0
        self._credited += earned
        self._elsewhere += paid
        open_ = [a for a in self.accounts.values() if a.balance < a.cost(plain)]
        for account in open_:
            account.balance += (earned - paid) / len(open_)
        return paid

    def charge(self, names: Iterable[str]) -> float:
        """Charge quantities with what they will cost, and return the sum."""
        total = 0.0
        for name in names:
            account = self.accounts[name]
            price = account.price(self.plain)
            account.balance -= price
            account.awaited = len(account.costs) < 2
            total += price
        return total

    def spread(self, seconds: float, elsewhere: float = 0.0) -> None:
        """Charge all accounts alike with what was not foreseen.

        Args:
            seconds: What they are charged.
            elsewhere: The part of it that was taken by what has no account here.
        """
        self._elsewhere += elsewhere
        for account in self.accounts.values():
            account.balance -= seconds / len(self.accounts)

    def learn(self, name: str, seconds: float) -> None:
        """Take note of what a quantity has cost."""
        self.accounts[name].learn(seconds)

    def due(self) -> set[str]:
        """Return the quantities that can be afforded at the next step, before that has brought its credit."""
        if not self.plain or not self.accounts:
            return set()
        coming = self.share * self.plain / len(self.accounts)
        plain, accounts = self.plain, self.accounts.items()
        has = {n: a.balance + coming for n, a in accounts if not a.awaited}
        due = {n for n, a in accounts if n in has and has[n] >= a.price(plain) / 2}
        if any(self.accounts[name].grouped for name in due):
            due |= {name for name in has if self._comes_along(name, has[name])}
        return due

    def wait(self) -> int:
        """Return at how many steps after the next one nothing can be afforded, if nothing is at that one."""
        plain, accounts = self.plain, self.accounts.values()
        if not plain or any(account.awaited for account in accounts):
            return 0
        open_ = sum(account.balance < account.cost(plain) for account in accounts)
        if not open_:
            return 0
        # No more accounts are full before one of them is due: until then none gets more than this.
        income, coming = self.share * plain / open_, self.share * plain / len(accounts)
        missing = min(account.price(plain) / 2 - account.balance for account in accounts) - coming
        return max(0, min(LONGEST_WAIT, math.ceil(missing / income) - 1))

    def _comes_along(self, name: str, balance: float) -> bool:
        account = self.accounts[name]
        least = 0.0 if account.costs else account.cost(self.plain) / 4
        return account.grouped and balance >= least

    @property
    def available(self) -> float:
        """The credit of a step in seconds, without what blocks and quantities that have no account take of it."""
        taken = self._elsewhere / self._credited if self._credited else 0.0
        return self.share * self.plain * max(0.0, 1 - taken)

    def intervals(self) -> dict[str, float]:
        """Return at about which intervals the quantities will be tracked; infinite where nothing is left."""
        costs = {name: self.cost(name) for name in self.accounts}
        left, part = self.available, 0.0
        for position, cost in enumerate(sorted(costs.values())):
            part = left / (len(costs) - position)
            if cost > part:
                break
            left -= cost
        return {n: max(1.0, cost / part if part else math.inf) for n, cost in costs.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return what the accounts hold, as plain data; the credit of the last step has not come yet."""
        accounts = {name: [a.balance, list(a.costs)] for name, a in self.accounts.items()}
        return {
            "accounts": accounts,
            "unpaid": self._unpaid,
            "attached": self._attached,
            "credited": self._credited,
            "elsewhere": self._elsewhere,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what accounts of these names held; the credit of the last step is still to come."""
        self._unpaid = state["unpaid"]
        self._attached = state.get("attached", 0.0)
        self._credited = state.get("credited", 0.0)
        self._elsewhere = state.get("elsewhere", 0.0)
        for name, (balance, costs) in state["accounts"].items():
            if name in self.accounts:
                account = self.accounts[name]
                account.balance = balance
                for cost in costs:
                    account.learn(cost)
