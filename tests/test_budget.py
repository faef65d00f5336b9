"""Budgets: that tracking takes the share of the time that it may, from the first step on, on a clock that we set."""

from __future__ import annotations

import copy
import pickle
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cockpit.cockpit
from cockpit import Cockpit, CockpitError, CockpitWarning, configuration, quantities, schedules
from cockpit.budget import clock as clocks
from cockpit.budget.ledger import Account, Ledger
from cockpit.budget.meter import Meter
from cockpit.budget.plain import Typical
from cockpit.engine import Observation, Step
from cockpit.engine.needs import Moment, Next
from cockpit.quantities import Quantity
from cockpit.schedules import at, budget, budgets_of, linear
from cockpit.summary import about
from cockpit.transforms import Transform

PLAIN = 0.01
"""Seconds of a training step without a cockpit, half of them in the backward pass."""


class FakeClock:
    """Stands still until somebody works; tells the time of a moment when some more have been marked."""

    def __init__(self, late: int = 0) -> None:
        self.now, self.late, self.marked = 0.0, late, 0
        self.each = 0.0  # what it takes to mark a moment

    def work(self, seconds: float) -> None:
        self.now += seconds

    def host(self) -> float:
        return self.now

    def mark(self) -> tuple[float, int]:
        self.marked += 1
        moment = self.now, self.marked
        self.work(self.each)
        return moment

    def passed(self, moment: tuple[float, int]) -> bool:
        return self.marked >= moment[1] + self.late

    def seconds(self, start: tuple[float, int], end: tuple[float, int]) -> float:
        return end[0] - start[0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClock]:
    fake = FakeClock()
    monkeypatch.setattr(cockpit.cockpit, "clock_of", lambda device: fake)
    return fake


# -- quantities of known cost ---------------------------------------------------------------------


@dataclass(frozen=True)
class Work(Observation):
    """Takes so many seconds, and more the first time."""

    clock: FakeClock = field(compare=False)
    seconds: float
    first: float = 0.0
    moment = Moment.EXIT

    def observe(self, step: Step) -> float:
        self.clock.work(step.carried.get(self, self.first) + self.seconds)
        step.carried[self] = 0.0
        return self.seconds


@dataclass(frozen=True)
class WorkOnGradients(Transform):
    """Takes so many seconds for each parameter."""

    clock: FakeClock = field(compare=False)
    seconds: float

    def __call__(self, gradients: Any) -> Tensor:
        self.clock.work(self.seconds)
        return gradients.square_norms()


@dataclass(frozen=True)
class Costly(Quantity):
    need: Any = None
    label: str = "Costly"

    def needs(self) -> tuple[Any, ...]:
        return (self.need,)

    def compute(self, step: Step) -> float:
        return 1.0

    @property
    def name(self) -> str:
        return self.label


@dataclass(frozen=True)
class TwoSteps(Costly):
    def needs(self) -> tuple[Any, ...]:
        return (self.need, Next(self.need))


@dataclass
class Training:
    """A training of a tiny network whose steps take `PLAIN` seconds on the clock."""

    clock: FakeClock
    tracked: list[Quantity]
    options: dict[str, Any] = field(default_factory=dict)
    passes: int = 1
    step: int = 0

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.watch = Cockpit(self.model, self.tracked, optimizer=self.optimizer, **self.options)
        self.x, self.y = torch.randn(6, 3), torch.randint(2, (6,))

    def run(self, steps: int, pause: Callable[[int], float] = lambda step: 0.0) -> Training:
        for _ in range(steps):
            self.optimizer.zero_grad()
            for number in range(self.passes):
                self.clock.work(PLAIN / 4 / self.passes)
                losses = F.cross_entropy(self.model(self.x), self.y, reduction="none")
                loss = losses.mean()
                part = {"micro_batch": (number, self.passes)} if self.passes > 1 else {}
                with self.watch(self.step, loss=loss, individual_losses=losses, **part):
                    self.clock.work(PLAIN / 2 / self.passes)
                    loss.backward()
            self.clock.work(PLAIN / 4)
            self.optimizer.step()
            self.clock.work(pause(self.step))
            self.step += 1
        return self

    def overhead(self) -> float:
        """What tracking has really taken; without pauses the clock has nothing else."""
        return self.clock.now / (self.step * PLAIN) - 1

    def counts(self) -> Counter[str]:
        return Counter(name for values in self.watch.get_output().values() for name in values)


def costly(clock: FakeClock, **plain_steps: float) -> list[Quantity]:
    return [
        Costly(budget(0.05), need=Work(clock, cost * PLAIN), label=name)
        for name, cost in plain_steps.items()
    ]


# -- the share that it takes ----------------------------------------------------------------------

SETS: dict[str, dict[str, float]] = {
    "one cheap": {"a": 0.01},
    "one dear": {"a": 3.0},
    "of all kinds": {"a": 0.001, "b": 0.05, "c": 0.5, "d": 2.0},
    "one work for many": dict.fromkeys("abcdefghijkl", 0.3),
}


@pytest.mark.parametrize("late", [0, 40], ids=["host", "device"])
@pytest.mark.parametrize("costs", SETS.values(), ids=SETS)
def test_the_share_is_kept_from_the_first_step_on(
    clock: FakeClock, costs: dict[str, float], late: int
) -> None:
    clock.late = late
    training = Training(clock, costly(clock, **costs)).run(500)
    dearest = max(costs.values())
    allowed = 0.05 if sum(costs.values()) > 0.05 else sum(costs.values())
    assert abs(training.overhead() - allowed) < 0.005 + dearest / 500
    assert training.watch.overhead == pytest.approx(training.overhead(), abs=0.005 + late / 2 / 500)
    training.watch.close()


def test_what_is_dearer_the_first_time_is_paid_off(clock: FakeClock) -> None:
    tracked: list[Quantity] = [
        Costly(budget(0.05), need=Work(clock, cost * PLAIN, first=2 * PLAIN), label=f"of {cost}")
        for cost in (0.3, 0.35)
    ]
    training = Training(clock, tracked).run(500)
    assert abs(training.overhead() - 0.05) < 0.01
    training.watch.close()


def test_cheap_quantities_are_tracked_more_often_than_dear_ones(clock: FakeClock) -> None:
    costs = {"a": 0.005, "b": 0.1, "c": 0.5, "d": 1.0}
    training = Training(clock, costly(clock, **costs)).run(1000)
    counts = training.counts()
    # a takes less than its part at every step; the others have (0.05 − 0.005) / 3 each.
    assert counts["a"] > 900
    for name, cost in list(costs.items())[1:]:
        assert counts[name] == pytest.approx(1000 * 0.015 / cost, rel=0.15)
    training.watch.close()


def test_what_cannot_be_afforded_is_not_begun(clock: FakeClock) -> None:
    search = quantities.HessMaxEV(budget(0.05))
    training = Training(clock, [*costly(clock, a=0.1), search]).run(100)
    training.watch.close()
    assert training.counts()["HessMaxEV"] == 0
    assert training.counts()["a"] > 20
    assert [subject for subject, text in events(training) if "it was not tracked" in text] == [
        "HessMaxEV"
    ]


def test_work_on_individual_gradients_is_shared(clock: FakeClock) -> None:
    """Those that need them are tracked at the same steps, for what they share is paid once."""
    tracked: list[Quantity] = [
        Costly(budget(0.05), need=WorkOnGradients(clock, cost * PLAIN / 4), label=name)
        for name, cost in {"a": 0.2, "b": 0.3, "c": 0.35}.items()
    ]
    training = Training(clock, tracked).run(500)
    steps = {
        n: {s for s, values in training.watch.get_output().items() if n in values} for n in "abc"
    }
    assert len(steps["b"] & steps["a"]) >= 0.8 * len(steps["b"])
    assert len(steps["c"] & steps["a"]) >= 0.8 * len(steps["c"])
    assert abs(training.overhead() - 0.05) < 0.01
    training.watch.close()


@dataclass(frozen=True)
class ColdCaches(WorkOnGradients):
    """Makes the next update slower, as cold caches do."""

    steps: list[bool] = field(default_factory=list, compare=False)

    def __call__(self, gradients: Any) -> Tensor:
        self.steps.append(True)
        return super().__call__(gradients)


def test_what_comes_after_is_paid_for_as_well(clock: FakeClock) -> None:
    need = ColdCaches(clock, 0.1 * PLAIN / 4)

    def slower(step: int) -> float:
        cold = bool(need.steps)
        need.steps.clear()
        return 0.4 * PLAIN if cold else 0.0

    training = Training(clock, [Costly(budget(0.05), need=need)]).run(500, slower)
    assert abs(training.overhead() - 0.05) < 0.01
    assert training.counts()["Costly"] >= 40
    training.watch.close()


def test_quantities_of_two_steps(clock: FakeClock) -> None:
    work = Work(clock, 0.5 * PLAIN)
    training = Training(clock, [TwoSteps(budget(0.05), need=work)]).run(500)
    assert abs(training.overhead() - 0.05) < 0.01
    assert training.counts()["Costly"] == pytest.approx(25, abs=3)
    ledger = training.watch._budget._ledgers[0.05]
    assert ledger.cost("Costly") == pytest.approx(PLAIN)
    training.watch.close()


def test_accumulated_gradients(clock: FakeClock) -> None:
    tracked = [Costly(budget(0.05), need=WorkOnGradients(clock, 0.1 * PLAIN))]
    training = Training(clock, tracked, passes=3).run(500)
    assert abs(training.overhead() - 0.05) < 0.01
    training.watch.close()


def test_the_preset_on_a_real_clock() -> None:
    """Alpha, histograms and audits go together with it; the time is that of the machine."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 300), nn.Tanh(), nn.Linear(300, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = Cockpit(
        model,
        [*configuration("economy"), quantities.ActivationStats()],
        optimizer=optimizer,
        overhead=50.0,  # all that there is
    )
    x, y = torch.randn(64, 200), torch.randint(10, (64,))
    for step in range(60):
        optimizer.zero_grad()
        losses = F.cross_entropy(model(x), y, reduction="none")
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        optimizer.step()
    watch.close()
    counts = Counter(name for values in watch.get_output().values() for name in values)
    assert {q.name for q in watch.quantities} <= set(counts)


def test_nothing_is_tracked_again_before_its_first_cost_is_known(clock: FakeClock) -> None:
    training = Training(clock, costly(clock, a=2.0)).run(200)
    first, second, *_ = training.watch.get_output()
    assert second - first > 20
    training.watch.close()


def test_one_outlier_does_not_starve_what_is_cheap(clock: FakeClock) -> None:
    """The first time takes 20 steps, and those after it next to nothing."""
    tracked: list[Quantity] = [
        Costly(budget(0.05), need=Work(clock, 0.01 * PLAIN, first=20 * PLAIN), label="a"),
        Costly(budget(0.05), need=Work(clock, 0.2 * PLAIN), label="b"),
    ]
    training = Training(clock, tracked).run(1000)
    assert training.counts()["a"] > 500  # paid off after 400
    assert abs(training.overhead() - 0.05) < 0.005
    training.watch.close()


def test_while_one_cost_is_known_the_estimate_limits_what_is_charged() -> None:
    account = Account(effort=0.5)
    assert account.price(1.0) == 0.5
    account.learn(20.0)
    assert (account.cost(1.0), account.price(1.0)) == (20.0, 0.5)
    account.learn(30.0)
    assert account.price(1.0) == 20.0


# -- what the blocks take where nothing is due ----------------------------------------------------


def with_slow_blocks(training: Training, seconds: float) -> Training:
    """Have each of its blocks take so many seconds, whether something is due or not."""
    enter = training.watch._enter

    def slow(*arguments: Any) -> bool:
        training.clock.work(seconds)
        return enter(*arguments)

    training.watch._enter = slow
    return training


@pytest.mark.parametrize("share", [0.002, 0.01, 0.03])
def test_idle_blocks_are_paid_for(clock: FakeClock, share: float) -> None:
    """What they take of a step is no more there for tracking: together it is 5 %."""
    training = with_slow_blocks(Training(clock, costly(clock, a=0.1)), share * PLAIN).run(500)
    assert training.overhead() == pytest.approx(0.05, abs=0.002)
    assert training.watch.overhead == pytest.approx(0.05, abs=0.002)
    assert training.counts()["a"] == pytest.approx(500 * (0.05 - share) / 0.1, rel=0.05)
    interval = training.watch._budget._ledgers[0.05].intervals()["a"]
    assert interval == pytest.approx(500 / training.counts()["a"], rel=0.05)
    training.watch.close()
    subject, text = events(training)[-1]
    assert subject == "overhead"
    assert text.endswith(f"; {100 * share:.1f} % by the with blocks at every step, tracked or not")


def test_something_is_tracked_whatever_idle_blocks_take(clock: FakeClock) -> None:
    """They take more than the whole budget here, of which a fifth is kept for tracking."""
    training = with_slow_blocks(Training(clock, costly(clock, a=0.1)), 0.06 * PLAIN).run(500)
    assert training.counts()["a"] == pytest.approx(50, abs=2)
    assert training.watch.overhead == pytest.approx(training.overhead(), abs=0.002)
    keeper = training.watch._budget
    assert keeper.spent[0.05] / keeper.trained == pytest.approx(0.05, abs=0.002)
    training.watch.close()


def test_budgets_share_what_idle_blocks_take(clock: FakeClock) -> None:
    first = Costly(budget(0.02), need=Work(clock, 0.2 * PLAIN), label="first")
    second = Costly(budget(0.06), need=Work(clock, 0.21 * PLAIN), label="second")
    training = with_slow_blocks(Training(clock, [first, second]), 0.04 * PLAIN).run(1000)
    assert training.counts()["first"] == pytest.approx(1000 * 0.01 / 0.2, abs=3)
    assert training.counts()["second"] == pytest.approx(1000 * 0.03 / 0.21, abs=3)
    keeper = training.watch._budget
    spent = {share: seconds / keeper.trained for share, seconds in keeper.spent.items()}
    assert spent == pytest.approx({0.02: 0.02, 0.06: 0.06}, rel=0.03)
    training.watch.close()


def test_an_idle_block_that_takes_long_is_charged(clock: FakeClock) -> None:
    clock.each = 0.001 * PLAIN
    training = Training(clock, costly(clock, a=0.1)).run(100)
    while any(quantity.is_due(training.step) for quantity in training.watch.quantities):
        training.run(1)
    enter = training.watch._enter
    with_slow_blocks(training, 5 * PLAIN).run(1)
    training.watch._enter = enter
    training.run(60)
    spent = training.counts()["a"] * 0.1 * PLAIN
    assert training.watch._budget.tracking == pytest.approx(spent + 5 * PLAIN, rel=0.02)
    training.watch.close()


# -- what is no training --------------------------------------------------------------------------


def test_the_time_is_that_of_the_training_s_own_thread() -> None:
    """It stands still where others work on the machine; of a device there is what its host sees."""
    assert clocks.clock_of(torch.device("cpu")).mark is time.thread_time
    assert clocks.clock_of(torch.device("mps")).mark is time.perf_counter


def test_ticks_of_16_ms_are_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks.os, "name", "nt")
    assert clocks.clock_of(torch.device("cpu")).mark is time.perf_counter


def test_pauses_are_no_training(clock: FakeClock) -> None:
    """A validation every 50 steps, and a stall of the loader now and then."""

    def pause(step: int) -> float:
        return 300 * PLAIN if step % 50 == 49 else 20 * PLAIN if step % 17 == 0 else 0.0

    training = Training(clock, costly(clock, a=0.1, b=0.5)).run(500, pause)
    spent = training.counts()["a"] * 0.1 + training.counts()["b"] * 0.5
    assert abs(spent / 500 - 0.05) < 0.005
    training.watch.close()


def test_the_typical_time() -> None:
    typical = Typical()
    for seconds in [1.0, 2.0] * 10 + [500.0]:
        typical.add(seconds)
    assert typical.seconds == 1.5
    for _ in range(200):
        typical.add(3.0)
    assert typical.seconds == 3.0


def test_an_error_in_the_block_leaves_the_budget_intact(clock: FakeClock) -> None:
    training = Training(clock, costly(clock, a=0.1)).run(30)
    with (
        pytest.raises(ZeroDivisionError),
        training.watch(30, loss=torch.ones(1, requires_grad=True)),
    ):
        raise ZeroDivisionError
    training.step = 31
    training.run(469)
    assert abs(training.overhead() - 0.05) < 0.01
    training.watch.close()


@pytest.mark.parametrize("most", [1, 1000], ids=["once", "each time"])
def test_a_step_that_is_tried_again_is_settled_once(clock: FakeClock, most: int) -> None:
    """Its first attempt fails before anything was computed, as where memory runs out."""
    training = Training(clock, costly(clock, a=2.0))
    failures = 0
    for step in range(400):
        due = any(quantity.is_due(step) for quantity in training.watch.quantities)
        if due and failures < most:
            failures += 1
            losses = F.cross_entropy(training.model(training.x), training.y, reduction="none")
            with (
                pytest.raises(MemoryError),
                training.watch(step, loss=losses.mean(), individual_losses=losses),
            ):
                raise MemoryError
        training.run(1)
    assert failures
    assert abs(training.overhead() - 0.05) < 0.01
    training.watch.close()


def test_numbers_that_start_anew_are_refused_at_once(clock: FakeClock) -> None:
    training = Training(clock, costly(clock, a=0.1)).run(60)
    last = max(training.watch.get_output())
    training.step = 0
    words = f"Step 0 comes after step 59, and step {last} was tracked already.*count on from"
    with pytest.raises(CockpitError, match=words):
        training.run(1)
    training.step = 60
    training.run(440)
    assert abs(training.overhead() - 0.05) < 0.01
    training.watch.close()


def test_numbers_may_start_anew_before_anything_was_tracked(clock: FakeClock) -> None:
    training = Training(clock, costly(clock, a=0.1)).run(2)
    training.step = 0
    training.run(2)
    training.step = 0
    keeper = training.watch._budget
    assert keeper.steps == 3
    assert len(keeper._meter._marks.spans) < 8
    training.run(500)
    assert training.counts()["a"] == pytest.approx(250, abs=8)
    training.watch.close()


# -- the accounts ---------------------------------------------------------------------------------


def test_the_accounts_add_up_to_what_was_earned_and_spent() -> None:
    ledger = Ledger(0.1)
    for name, effort in {"a": 0.5, "b": 2.0}.items():
        ledger.open(name, effort, grouped=False)
    earned = spent = 0.0
    for step in range(300):
        ledger.credit(1.0)
        earned += 0.1
        due = ledger.due()
        charged = ledger.charge(due)
        really = charged * (1.5 if step % 3 else 0.2)
        for name in due:
            ledger.learn(name, ledger.cost(name))
        ledger.spread(really - charged)
        spent += really
        assert ledger.balance == pytest.approx(earned - spent)


def test_credit_does_not_pile_up() -> None:
    ledger = Ledger(0.5)
    ledger.open("a", 2.0, grouped=False)
    for _ in range(1000):
        ledger.credit(1.0)
    assert ledger.balance <= 2.5


def test_nothing_is_spent_before_the_plain_step_is_known() -> None:
    ledger = Ledger(0.5)
    ledger.open("a", 0.1, grouped=False)
    for _ in range(4):
        ledger.credit(0.0)
        assert ledger.due() == set()
    ledger.credit(1.0)
    assert ledger.balance == 2.5


def test_of_two_costs_the_smaller_one_counts() -> None:
    """The first time of everything is the dearest."""
    ledger = Ledger(0.1)
    ledger.open("a", 1.0, grouped=False)
    ledger.credit(1.0)
    for cost, expected in [(9.0, 9.0), (2.0, 2.0), (3.0, 3.0), (2.5, 2.5)]:
        ledger.learn("a", cost)
        assert ledger.cost("a") == expected


def test_intervals_spend_the_share() -> None:
    ledger = Ledger(0.1)
    costs = {"a": 0.01, "b": 0.3, "c": 1.5}
    for name, effort in costs.items():
        ledger.open(name, effort, grouped=False)
    ledger.credit(1.0)
    intervals = ledger.intervals()
    assert intervals["a"] == 1.0
    assert sum(costs[name] / intervals[name] for name in costs) == pytest.approx(0.1)
    assert costs["b"] / intervals["b"] == pytest.approx(costs["c"] / intervals["c"])


def test_intervals_are_those_of_what_others_leave() -> None:
    ledger = Ledger(0.1)
    ledger.open("a", 1.0, grouped=False)
    for _ in range(10):
        ledger.credit(1.0)
        ledger.spread(0.06, elsewhere=0.06)
    assert ledger.available == pytest.approx(0.04)
    assert ledger.intervals()["a"] == pytest.approx(25)
    ledger.spread(1.0, elsewhere=1.0)
    assert ledger.intervals()["a"] == float("inf")


def test_a_ledger_without_accounts_buys_nothing() -> None:
    ledger = Ledger(0.1)
    ledger.credit(1.0)
    ledger.spread(1.0)
    assert (ledger.due(), ledger.intervals()) == (set(), {})


def test_spans_within_spans_count_once() -> None:
    fake = FakeClock()
    meter = Meter(fake)
    meter.step()
    with meter.own("entry"):
        fake.work(1.0)
        with meter.own("update"):
            fake.work(2.0)
    fake.work(5.0)
    with meter.own("exit"):
        fake.work(1.0)
    with meter.own("forward"):
        fake.work(0.5)
    meter.step()
    times = meter.read()
    assert times is not None
    assert (times.own, times.entry, times.rest, times.bodies) == (4.0, 3.0, 5.0, [5.0])
    meter.step()
    following = meter.read()
    assert following is not None
    assert (following.own, following.forward) == (0.5, 0.5)


# -- whose budget it is ---------------------------------------------------------------------------


def test_overhead_is_for_all_that_have_no_schedule(clock: FakeClock) -> None:
    free = Costly(need=Work(clock, 0.2 * PLAIN), label="free")
    own = Costly(linear(10), need=Work(clock, 0.21 * PLAIN), label="own")
    training = Training(clock, [free, own], {"overhead": 0.05}).run(500)
    counts = training.counts()
    assert counts["own"] == 50
    # What the other one takes is taken from the budget: there is 0.05 − 0.021 left.
    assert counts["free"] == pytest.approx(500 * (0.05 - 0.021) / 0.2, abs=4)
    assert abs(training.overhead() - 0.05) < 0.005
    training.watch.close()
    assert training.watch.run().settings["overhead"] == 0.05


def test_what_others_take_is_told(clock: FakeClock) -> None:
    """With half of the budget gone, what is left comes half as often, and the run file says so."""
    free = Costly(need=Work(clock, 0.5 * PLAIN), label="free")
    own = Costly(linear(2), need=Work(clock, 0.05 * PLAIN), label="own")
    training = Training(clock, [free, own], {"overhead": 0.05}).run(1000)
    training.watch.close()
    assert training.counts()["free"] == pytest.approx(50, abs=5)
    ledger = training.watch._budget._ledgers[0.05]
    assert ledger.intervals()["free"] == pytest.approx(20, rel=0.1)


def test_a_schedule_that_was_asked_for_is_kept(clock: FakeClock) -> None:
    """``linear(1)`` is the default, too; but who writes it wants it."""
    own = Costly(linear(1), need=Work(clock, 0.2 * PLAIN), label="own")
    free = Costly(need=Work(clock, 0.21 * PLAIN), label="free")
    training = Training(clock, [own, free], {"overhead": 0.05}).run(100)
    assert training.counts()["own"] == 100
    assert training.counts()["free"] < 10
    training.watch.close()


def test_the_overhead_is_known_where_all_have_schedules(clock: FakeClock) -> None:
    own = Costly(linear(2), need=Work(clock, PLAIN), label="own")
    training = Training(clock, [own], {"overhead": 0.05}).run(200)
    assert training.watch.overhead == pytest.approx(0.5, abs=0.01)
    training.watch.close()
    assert events(training)[-1][1].startswith("tracking took 50.")


def test_the_overhead_is_that_of_all(clock: FakeClock) -> None:
    own = Costly(linear(2), need=Work(clock, PLAIN), label="own")
    training = Training(clock, [own, *costly(clock, a=0.1)]).run(500)
    assert training.counts()["a"] == pytest.approx(250, abs=5)
    assert training.overhead() == pytest.approx(0.55, abs=0.01)
    assert training.watch.overhead == pytest.approx(training.overhead(), abs=0.01)
    training.watch.close()
    _, text = events(training)[-1]
    assert text.startswith("tracking took 55.")
    assert "; 50.1 % were taken by quantities with schedules of their own" in text


def test_a_budget_does_not_pay_for_steps_of_others(clock: FakeClock) -> None:
    """What it takes to enter a tracked step is paid by those that are due."""
    search = quantities.HessMaxEV(budget(0.05))
    own = Costly(linear(2), need=Work(clock, 0.1 * PLAIN), label="own")
    training = Training(clock, [search, own])
    enter = training.watch._engine.enter

    def slow(*arguments: Any) -> None:
        clock.work(PLAIN)
        enter(*arguments)

    training.watch._engine.enter = slow
    training.run(60)
    assert training.counts() == {"own": 30}
    assert training.watch._budget.spent[0.05] == 0
    assert training.watch.overhead == pytest.approx(0.55, abs=0.02)
    training.watch.close()


def test_individual_gradients_at_every_step(clock: FakeClock) -> None:
    """There is no step without them to compare with: what is computed from them is known nevertheless."""
    heavy = Costly(linear(1), need=WorkOnGradients(clock, 2 * PLAIN / 4), label="heavy")
    training = Training(clock, [heavy], {"overhead": 0.05}).run(200)
    assert training.overhead() == pytest.approx(2.0)
    assert training.watch.overhead == pytest.approx(2.0, abs=0.02)
    training.watch.close()
    told = [text for subject, text in events(training) if subject == "individual gradients"]
    assert len(told) == 1
    assert "what it takes to fetch them is not known" in told[0]


def test_different_budgets_are_kept_apart(clock: FakeClock) -> None:
    first = Costly(budget(0.01), need=Work(clock, 0.2 * PLAIN), label="first")
    second = Costly(budget(0.04), need=Work(clock, 0.21 * PLAIN), label="second")
    training = Training(clock, [first, second]).run(1000)
    counts = training.counts()
    assert counts["first"] == pytest.approx(1000 * 0.01 / 0.2, abs=5)
    assert counts["second"] == pytest.approx(1000 * 0.04 / 0.21, abs=10)
    training.watch.close()
    _, text = events(training)[-1]
    assert re.fullmatch(
        r"tracking took [45]\.\d % of the time of 999 steps; of what was allowed, "
        r"(1\.0|0\.9) % of 1 %, (4\.0|3\.9) % of 4 %",
        text,
    )


def test_the_user_s_quantity_is_left_alone(clock: FakeClock) -> None:
    mine = costly(clock, a=0.1)[0]
    training = Training(clock, [mine])
    assert mine.track_schedule == budget(0.05)
    assert repr(training.watch.quantities[0]) == repr(mine)
    with pytest.raises(CockpitError, match=r"budget\(0.05\) says nothing of step 3 by itself"):
        mine.is_due(3)
    training.watch.close()


def test_a_quantity_that_is_added_later(clock: FakeClock) -> None:
    training = Training(clock, [])
    training.watch.add(costly(clock, a=0.1)[0])
    training.run(500)
    assert abs(training.overhead() - 0.05) < 0.005
    training.watch.close()


def test_two_budgets_of_one_quantity_are_refused(clock: FakeClock) -> None:
    twice = Costly(budget(0.05) | budget(0.1), need=Work(clock, 0.1))
    with pytest.raises(CockpitError, match="Costly has two budgets"):
        Cockpit(nn.Linear(2, 2), [twice])


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ranks:
        rank = 0
        postponed = None

        def section(self) -> None:
            pass

    monkeypatch.setattr(cockpit.cockpit, "ranks_of", lambda model: Ranks())
    with pytest.raises(CockpitError, match="A budget cannot be kept on several processes"):
        Cockpit(nn.Linear(2, 2), "economy", overhead=0.05)


# -- schedules ------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0, -0.1, float("nan"), float("inf"), True, "5 %"])
def test_a_share_is_a_positive_number(share: Any) -> None:
    with pytest.raises(CockpitError, match="A budget must be a positive share"):
        budget(share)
    with pytest.raises(CockpitError, match="A budget must be a positive share"):
        Cockpit(nn.Linear(2, 2), "economy", overhead=share)


def test_budgets_combine_with_other_schedules(clock: FakeClock) -> None:
    first = Costly(budget(0.05) | at([0, 1]), need=Work(clock, 0.3 * PLAIN), label="first")
    tens = Costly(budget(0.05) & linear(10), need=Work(clock, 0.31 * PLAIN), label="tens")
    assert budgets_of(first.track_schedule) == (schedules.Budget(0.05),)
    training = Training(clock, [first, tens]).run(500)
    output = training.watch.get_output()
    steps = {n: [s for s in output if n in output[s]] for n in ("first", "tens")}
    assert steps["first"][:2] == [0, 1]
    assert len(steps["tens"]) > 20
    assert all(step % 10 == 0 for step in steps["tens"])
    assert abs(training.overhead() - 0.05) < 0.01
    training.watch.close()


def test_the_default_is_every_step_unless_told_otherwise() -> None:
    unsaid, said = schedules.default(), linear(1)
    assert unsaid == said == unsaid != linear(2)
    assert (hash(unsaid), repr(unsaid)) == (hash(said), repr(said))
    assert [schedules.is_default(schedule) for schedule in (unsaid, said)] == [True, False]
    for same in (copy.deepcopy(unsaid), pickle.loads(pickle.dumps(unsaid))):
        assert schedules.is_default(same)
    assert quantities.GradNorm() == quantities.GradNorm(linear(1))
    assert all(schedules.is_default(q.track_schedule) for q in configuration("economy"))


def test_budgets_are_values() -> None:
    assert budget(0.05) == budget(0.05) != budget(0.1)
    assert repr(budget(0.05)) == "Budget(share=0.05)"


# -- what is written ------------------------------------------------------------------------------


def events(training: Training) -> list[tuple[str, str]]:
    with sqlite3.connect(training.watch.path) as connection:
        query = "select subject, message from events where kind = 'budget' order by rowid"
        return list(connection.execute(query))


def test_the_choice_is_logged(clock: FakeClock) -> None:
    training = Training(clock, costly(clock, a=0.001, b=0.5)).run(500)
    training.watch.close()
    said = events(training)
    assert ("a", "takes 0.01 ms a time, and is tracked at every step") in said
    assert ("b", "takes 5 ms a time, and is tracked about every 10 steps") in said
    subject, text = said[-1]
    assert subject == "overhead"
    assert text.endswith("% of the time of 499 steps, and 5 % were allowed")
    assert len(said) < 8
    run = training.watch.run()
    assert about(run).budget == dict(said)
    assert about(run).events == ()


def test_a_choice_that_changes_is_logged_again(clock: FakeClock) -> None:
    @dataclass(frozen=True)
    class Growing(Work):
        def observe(self, step: Step) -> float:
            self.clock.work(self.seconds * (1 if step.global_step < 100 else 5))
            return 0.0

    training = Training(clock, [Costly(budget(0.05), need=Growing(clock, 0.1 * PLAIN))]).run(900)
    training.watch.close()
    said = [text for subject, text in events(training) if subject == "Costly"]
    assert said == [
        "takes 1 ms a time, and is tracked about every 2 steps",
        "takes 5 ms a time, and is tracked about every 10 steps",
    ]


# -- checkpoints ----------------------------------------------------------------------------------


def test_a_resumed_run_chooses_as_one_that_was_not_interrupted(clock: FakeClock) -> None:
    costs = {"a": 0.1037, "b": 0.3119, "c": 1.0873}
    whole = Training(clock, costly(clock, **costs)).run(119)
    while {whole.step - 2, whole.step - 1} & whole.watch.get_output().keys():
        whole.run(1)  # what the last tracked step has cost is not known before the next ones
    state, at_step = whole.watch.state_dict(), whole.step
    whole.run(200)
    resumed = Training(clock, costly(clock, **costs), step=at_step)
    with pytest.warns(CockpitWarning, match="is not the run file of the checkpoint"):
        resumed.watch.load_state_dict(state)
    resumed.run(200)
    for training in (whole, resumed):
        training.watch.close()
    chosen = [
        {s: sorted(v) for s, v in t.watch.get_output().items() if s >= at_step}
        for t in (whole, resumed)
    ]
    assert chosen[0] == chosen[1]


# -- other loops ----------------------------------------------------------------------------------


def test_closures_are_evaluated_within_a_step(clock: FakeClock) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    tracked = [Costly(budget(0.2), need=WorkOnGradients(clock, 0.1 * PLAIN))]
    watch = Cockpit(model, tracked, optimizer=optimizer)
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    for step in range(40):

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            losses = (model(x) - y).square().mean(1)
            loss = losses.mean()
            clock.work(PLAIN / 2)
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            return loss

        optimizer.step(closure)
    counts = Counter(name for values in watch.get_output().values() for name in values)
    assert 10 < counts["Costly"] < 40
    watch.close()


def test_the_forward_pass_is_looked_at_when_it_is_to_be(clock: FakeClock) -> None:
    """It comes before the step is entered: a decision that came later would leave it unseen, with a warning."""
    tracked = [quantities.ActivationStats(budget(0.05))]
    training = Training(clock, tracked).run(60)
    training.watch.close()
    assert training.counts()["ActivationStats"] > 10


def test_the_training_is_left_as_it_is(clock: FakeClock) -> None:
    ends = []
    for tracked in ([], configuration("business", budget(0.5))):
        training = Training(clock, tracked).run(30)
        training.watch.close()
        ends.append([p.detach().clone() for p in training.model.parameters()])
    assert all(map(torch.equal, *ends))
