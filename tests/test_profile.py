"""The profile: what it measures is put where it belongs, and nothing of the training is changed by it."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cockpit
from cockpit.errors import InvalidArgument, InvalidType, Unsupported
from cockpit.profiling import Profile, measuring
from cockpit.profiling.clock import clock_of
from cockpit.profiling.figures import TOGETHER, Figure, intervals
from cockpit.profiling.memory import HostMemory, memory_of, peak_memory
from cockpit.profiling.rendering import WIDTH
from cockpit.profiling.restoring import resident, restored
from cockpit.quantities import Alpha, GradNorm, HessTrace, Loss, NormTest, Quantity
from cockpit.schedules import linear
from cockpit.transforms import Transform

MEBI = 2**20


class Net(nn.Module):
    """Has what a step changes beside the weights: running statistics, random numbers, a frozen part."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(8, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(self.head(self.body(x)))


@dataclass
class Problem:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    x: Tensor
    y: Tensor

    def losses(self) -> Tensor:
        return F.cross_entropy(self.model(self.x), self.y, reduction="none")

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.losses().mean().backward()
        self.optimizer.step()


def problem(model: nn.Module | None = None, kind: Any = torch.optim.Adam) -> Problem:
    torch.manual_seed(0)
    model = Net() if model is None else model
    return Problem(
        model, kind(model.parameters(), lr=0.1), torch.randn(12, 6), torch.randint(3, (12,))
    )


def everything(training: Problem) -> dict[str, Any]:
    """Return all that a step could change, as copies; and who the objects are."""
    model, optimizer = training.model, training.optimizer
    modules = list(model.modules())
    hooks = (
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
        "_backward_pre_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called",
    )
    tensors = [*model.parameters(), *(p.grad for p in model.parameters()), *model.buffers()]
    return {
        "state": deepcopy(model.state_dict()),
        "grads": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "optimizer": deepcopy(optimizer.state_dict()),
        "attributes": {k: id(v) for k, v in vars(optimizer).items()},
        "identities": list(map(id, tensors)),
        "modes": [module.training for module in modules],
        "hooks": [[len(getattr(module, name)) for name in hooks] for module in modules],
        "of parameters": [
            len(p._backward_hooks or ()) + len(p._post_accumulate_grad_hooks or ())
            for p in model.parameters()
        ],
        "of the optimizer": [
            len(optimizer._optimizer_step_pre_hooks),
            len(optimizer._optimizer_step_post_hooks),
        ],
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state()[1].tolist(),  # noqa: NPY002
        "python": random.getstate(),
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def differing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [key for key in before if not same(before[key], after[key])]


# -- nothing is changed ---------------------------------------------------------------------------


def interrupted(losses: Callable[[], Tensor], call: int) -> Callable[[], Tensor]:
    """Return the function, with other modes and random numbers, and an exception at one of its calls."""
    calls = itertools.count()

    def run() -> Tensor:
        random.random(), np.random.rand()  # noqa: NPY002
        value = losses()
        if next(calls) == call:
            raise ZeroDivisionError
        return value

    return run


@pytest.mark.parametrize("fails_at", [None, 0, 1, 2, 7, 30])
@pytest.mark.parametrize("begun", [True, False], ids=["begun", "fresh"])
def test_everything_is_as_it_was(fails_at: int | None, begun: bool) -> None:
    training = problem()
    if begun:
        training.step()
        training.step()
    training.model.body[1].eval()
    before = everything(training)

    def losses() -> Tensor:
        training.model.frozen.train(False)
        return training.losses()

    def measure() -> None:
        cockpit.profile(
            training.model,
            interrupted(losses, -1 if fails_at is None else fails_at),
            [Alpha(), NormTest(), HessTrace()],
            optimizer=training.optimizer,
            repeats=1,
            memory=fails_at is None,
        )

    if fails_at is None:
        measure()
    else:
        with pytest.raises(ZeroDivisionError):
            measure()
    assert differing(before, everything(training)) == []


@pytest.mark.parametrize(
    "kind",
    [
        lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
        lambda p, lr: torch.optim.AdamW(p, lr=torch.tensor(lr), amsgrad=True),
        lambda p, lr: torch.optim.LBFGS(p, lr=lr, max_iter=3, history_size=2),
    ],
    ids=["momentum", "tensor-lr", "lbfgs"],
)
def test_the_training_goes_on_to_the_same_bit(kind: Any) -> None:
    trainings = [problem(kind=kind), problem(kind=kind)]
    states = []
    for number, training in enumerate(trainings):

        def closure(training: Problem = training) -> Tensor:
            training.optimizer.zero_grad()
            loss = training.losses().mean()
            loss.backward()
            return loss

        torch.manual_seed(1)
        training.optimizer.step(closure)
        if number:
            found = cockpit.profile(
                training.model,
                training.losses,
                [Alpha(), GradNorm()],
                optimizer=training.optimizer,
                repeats=1,
                memory=False,
            )
            assert not found.notes
        for _ in range(2):
            training.optimizer.step(closure)
        states.append(everything(training))
    assert [k for k in differing(*states) if k not in ("attributes", "identities")] == []


def test_a_stand_in_optimizer_leaves_nothing() -> None:
    training = problem()
    before = everything(training)
    found = cockpit.profile(training.model, training.losses, [Alpha()], repeats=1)
    assert found.notes == ()
    assert differing(before, everything(training)) == []


class Helper:
    """Keeps a running value, and counts."""

    def __init__(self) -> None:
        self.value, self.calls = torch.zeros(1), 0


class Wrapping(torch.optim.Optimizer):
    """Holds another optimizer, as SAM and Lookahead do, slow weights, and more."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(list(parameters), {"lr": lr})
        self.base_optimizer = torch.optim.Adam(self.param_groups, lr=lr)
        self.slow = [p.detach().clone() for p in self.base_optimizer.param_groups[0]["params"]]
        self.helper, self.noise = Helper(), torch.Generator().manual_seed(3)
        self.seen: set[int] = set()

    def step(self, closure: Any = None) -> None:
        self.base_optimizer.step()
        self.helper.calls += 1
        self.helper.value += torch.rand(1, generator=self.noise)
        self.seen.add(self.helper.calls)
        for slow, group in zip(self.slow, self.param_groups[0]["params"], strict=True):
            slow.lerp_(group.detach(), 0.5)


class Passing:
    """Passes on what an optimizer has, as wrappers of frameworks do."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def step(self) -> None:
        self.optimizer.step()


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "fresh"])
def test_what_an_optimizer_holds_is_as_it_was(begun: bool) -> None:
    training = problem(kind=Wrapping)
    optimizer = training.optimizer
    if begun:
        training.step()

    def state() -> dict[str, Any]:
        return {
            "base": deepcopy(optimizer.base_optimizer.state_dict()),
            "slow": [slow.clone() for slow in optimizer.slow],
            "helper": (optimizer.helper.value.clone(), optimizer.helper.calls),
            "noise": optimizer.noise.get_state(),
            "seen": sorted(optimizer.seen),
            **everything(training),
        }

    before = state()
    cockpit.profile(
        training.model, training.losses, [GradNorm()], optimizer=optimizer, repeats=1, memory=False
    )
    assert differing(before, state()) == []


def test_a_wrapper_of_an_optimizer() -> None:
    training = problem()
    training.step()
    before, held = everything(training), resident(training.model, [training.optimizer])
    assert resident(training.model, [Passing(training.optimizer)]) == held
    with restored(training.model, [Passing(training.optimizer)]):
        training.step()
        assert "optimizer" in differing(before, everything(training))
    assert differing(before, everything(training)) == []


def test_an_optimizer_whose_state_is_out_of_reach_is_refused() -> None:
    training = problem()

    class Slotted:
        __slots__ = ("param_groups",)

        def __init__(self, groups: Any) -> None:
            self.param_groups = groups

    with (
        pytest.raises(Unsupported, match="Slotted keeps its state where it cannot be put back"),
        restored(training.model, [Slotted(training.optimizer.param_groups)]),
    ):
        pass


# -- the time is put where it belongs -------------------------------------------------------------


class Ticks:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def wait(self) -> None:
        pass

    def mark(self) -> float:
        return self.now

    def seconds(self, start: float, end: float) -> float:
        return end - start


TICKS = Ticks()


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    TICKS.now = 0.0
    monkeypatch.setattr(measuring, "clock_of", lambda device: TICKS)
    return TICKS


@dataclass(frozen=True)
class Slow(Quantity):
    """Takes so many ticks when it is computed."""

    takes: int = 0

    def compute(self, step: Any) -> float:
        TICKS.now += self.takes
        return 0.0

    @property
    def name(self) -> str:
        return f"Slow{self.takes}"


@dataclass(frozen=True)
class SlowNorms(Transform):
    """Takes one tick for each element of the parameter, and keeps so many mebibytes for a moment."""

    mebibytes: int = 0

    def __call__(self, gradients: Any) -> Tensor:
        TICKS.now += gradients.numel
        torch.empty(self.mebibytes * MEBI, dtype=torch.uint8)
        return gradients.square_norms()


@dataclass(frozen=True)
class OfSlowNorms(Quantity):
    norms = SlowNorms()

    def compute(self, step: Any) -> Tensor:
        return step[self.norms].total().sum()


@dataclass(frozen=True)
class AlsoOfSlowNorms(OfSlowNorms):
    pass


@dataclass(frozen=True)
class OfLargeNorms(OfSlowNorms):
    norms = SlowNorms(5)


def small() -> Problem:
    return problem(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)), torch.optim.SGD)


def ticking(training: Problem, ticks: Ticks, each: float = 100) -> Callable[[], Tensor]:
    def losses() -> Tensor:
        ticks.now += each
        return training.losses()

    return losses


def test_steps_and_quantities(ticks: Ticks) -> None:
    training = small()
    found = cockpit.profile(
        training.model,
        ticking(training, ticks),
        [Slow(takes=7), OfSlowNorms(), AlsoOfSlowNorms(), Slow(takes=3)],
        repeats=2,
        memory=False,
    )
    elements = 6 * 4 + 4 + 4 * 3 + 3
    assert {n: c.seconds.median for n, c in found.steps.items()} == {
        "plain": 100,
        "attached": 100,
        "fetched": 100,
        "tracked": 110 + elements,
    }
    assert found.tracked.ratio == Figure(*3 * [1.1 + elements / 100])
    costs = {cost.name: (cost.alone.median, cost.saved.median) for cost in found.quantities}
    assert costs == {
        "OfSlowNorms": (elements, 0),  # the other one asks for the same
        "AlsoOfSlowNorms": (elements, 0),
        "Slow7": (7, 7),
        "Slow3": (3, 3),
    }
    assert [cost.name for cost in found.quantities][-2:] == ["Slow7", "Slow3"]


def test_needs_and_layers(ticks: Ticks) -> None:
    training = small()
    found = cockpit.profile(
        training.model,
        ticking(training, ticks),
        [OfSlowNorms(), AlsoOfSlowNorms(), NormTest()],
        repeats=2,
        memory=False,
    )
    sizes = {name: parameter.numel() for name, parameter in training.model.named_parameters()}
    layers = {(c.parameter, c.need): c.seconds.median for c in found.layers}
    expected = {(name, "SlowNorms"): size for name, size in sizes.items()}
    for need in ("SquareNorms", "DotMean", "SquareNormOfMean"):
        expected |= {(name, need): 0 for name in sizes}
    assert layers == expected
    assert [c.parameter for c in found.layers][:2] == ["0.weight", "2.weight"]
    needs = {c.need: (c.seconds.median, c.quantities) for c in found.needs}
    assert needs == {
        "SlowNorms": (sum(sizes.values()), ("OfSlowNorms", "AlsoOfSlowNorms")),
        "SquareNorms": (0, ("NormTest",)),
        "DotMean": (0, ("NormTest",)),
        "SquareNormOfMean": (0, ("NormTest",)),
    }


@dataclass(frozen=True)
class SummedUp(SlowNorms):
    """Takes 1000 ticks more when all parameters have been looked at."""

    def finish(self, taken: Mapping[str, Any]) -> Mapping[str, Any]:
        TICKS.now += 1000
        return taken


@dataclass(frozen=True)
class OfSummedUp(OfSlowNorms):
    norms = SummedUp()


def test_what_is_done_for_all_parameters_at_once_is_shown(ticks: Ticks) -> None:
    training = small()
    found = cockpit.profile(
        training.model,
        ticking(training, ticks),
        [OfSummedUp(), NormTest(), GradNorm()],
        repeats=1,
        memory=False,
    )
    sizes = {name: parameter.numel() for name, parameter in training.model.named_parameters()}
    at_once = [cost for cost in found.layers if cost.parameter == TOGETHER]
    assert [(cost.need, cost.seconds.median) for cost in at_once] == [("SummedUp", 1000)]
    (need,) = [cost.seconds.median for cost in found.needs if cost.need == "SummedUp"]
    assert need == 1000 + sum(sizes.values())
    assert need == sum(cost.seconds.median for cost in found.layers)
    assert re.search(r"\n\(all at once\) +1000000 +– +SummedUp 1000000\n", str(found))


def test_what_waits_for_the_update_is_seen() -> None:
    training = small()
    found = cockpit.profile(training.model, training.losses, [Alpha()], repeats=1)
    needs = {cost.need for cost in found.needs}
    assert {"DotUpdate", "DotPreviousUpdate", "UpdateNorms"} <= needs
    names = {name for name, _ in training.model.named_parameters()}
    for need in ("DotUpdate", "DotPreviousUpdate"):
        assert {c.parameter for c in found.layers if c.need == need} == names
    assert found.notes == ()


def test_medians_and_quartiles() -> None:
    assert Figure.of([3.0]) == Figure(3, 3, 3)
    assert Figure.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Figure(3, 2, 4)
    assert Figure.of([1.0, 3.0]).spread == 0.5


# -- memory ---------------------------------------------------------------------------------------


def test_memory_is_put_where_it_belongs() -> None:
    training = small()
    found = cockpit.profile(
        training.model,
        training.losses,
        [OfLargeNorms(), Loss()],
        repeats=1,
    )
    assert found.plain.peak is not None
    assert found.tracked.peak is not None
    assert found.plain.peak < MEBI
    assert 5 * MEBI <= found.tracked.peak < 5.1 * MEBI
    slow, loss = found.quantities if found.quantities[0].name != "Loss" else found.quantities[::-1]
    for peak in (slow.alone_peak, slow.saved_peak):
        assert 4.9 * MEBI <= peak < 5.1 * MEBI
    assert loss.saved_peak == 0
    assert {c.peak // MEBI for c in found.layers} == {5}
    assert {c.need: c.peak // MEBI for c in found.needs if c.need == "SlowNorms"} == {
        "SlowNorms": 5
    }


def test_the_peak_counts_what_is_held() -> None:
    """Of a training step without anything else: weights, momentum, and a gradient that is as large."""
    model = nn.Linear(1000, 1000, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(2, 1000)
    found = cockpit.profile(
        model, lambda: model(x).square().mean(1), [Loss()], repeats=1, optimizer=optimizer
    )
    weights = model.weight.numel() * 4
    assert found.plain.peak == pytest.approx(3 * weights, rel=0.05)


def test_peaks_of_the_host() -> None:
    kept = []

    def work(around: Any) -> None:
        with around("small"):
            torch.empty(1000)
        kept.append(torch.empty(MEBI, dtype=torch.uint8))
        with around("large"):
            one = torch.empty(3000)
            del one
            torch.empty(2000)
        with around("large"):
            torch.empty(1000)
        with around("none"):
            pass

    assert HostMemory().peaks(work) == {"small": 4000, "large": 12000, "none": 0}
    assert peak_memory(lambda: kept.append(torch.empty(10)), warmup=1) == 40


class FakeEvent:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: FakeDevice) -> None:
        self.device, self.moment = stream, stream.submit()

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.device.done >= end.moment, "nobody has waited for the device"
        return end.moment - self.moment


class FakeDevice:
    """Does what it is given a thousand ticks later, or when somebody waits."""

    Event = FakeEvent

    def __init__(self) -> None:
        self.submitted = self.done = self.waited = 0
        self.held = self.largest = 0

    def submit(self, work: int = 0) -> int:
        self.submitted += work
        return self.submitted

    def current_stream(self, device: torch.device) -> FakeDevice:
        return self

    def synchronize(self, device: torch.device) -> None:
        self.done, self.waited = self.submitted, self.waited + 1

    def take(self, size: int) -> None:
        self.held += size
        self.largest = max(self.largest, self.held)

    def memory_allocated(self, device: torch.device) -> int:
        return self.held

    def max_memory_allocated(self, device: torch.device) -> int:
        return self.largest

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.largest = self.held


def test_a_stream_is_not_waited_for_between_marks() -> None:
    clock, device = clock_of(torch.device("cuda", 0)), FakeDevice()
    clock._backend = device
    marks = [clock.mark()]
    device.submit(3000)
    marks.append(clock.mark())
    device.submit(500)
    marks.append(clock.mark())
    assert device.waited == 0
    clock.wait()
    assert [clock.seconds(a, b) for a, b in itertools.pairwise(marks)] == [3, 0.5]


def test_memory_of_a_device() -> None:
    memory, device = memory_of(torch.device("cuda", 0)), FakeDevice()
    memory._backend = device
    device.take(100)

    def work(around: Any = lambda label: nullcontext()) -> None:
        with around("one"):
            device.take(30)
            device.take(-20)
        with around("two"):
            device.take(7)
            device.take(-17)

    assert memory.peak(work) == 30
    assert memory.peaks(work) == {"one": 30, "two": 7}
    assert clock_of(torch.device("cpu")).seconds(1.0, 3.0) == 2


# -- how it is shown ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def economy() -> Profile:
    training = problem(Net())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr.isatty", lambda: False, raising=False)
        return cockpit.profile(
            training.model, training.losses, optimizer=training.optimizer, repeats=2
        )


def test_the_text(economy: Profile) -> None:
    text = str(economy)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "\x1b" not in text
    for cost in economy.quantities:
        assert f"\n{cost.name} " in text
    for name in ("body.0.weight", "head.bias"):
        assert f"\n{name} " in text
    assert "plain step" in text
    assert "Net: batch 12, cpu" in text
    assert repr(economy).startswith("<Profile of Net: 9 quantities")


def test_long_names_and_many_layers_fit() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a_module_with_a_rather_long_name = nn.ModuleDict(
                {f"a_block_with_a_long_name_{i}": nn.Linear(6, 6) for i in range(9)}
            )

        def forward(self, x: Tensor) -> Tensor:
            for module in self.a_module_with_a_rather_long_name.values():
                x = module(x)
            return x[:, :3]

    training = problem(Deep())
    found = cockpit.profile(training.model, training.losses, repeats=1, memory=False)
    text = str(found)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "6 others" in text
    assert "–" in text  # for the memory that was not measured
    assert found.plain.peak is None


def test_the_data(economy: Profile) -> None:
    data = json.loads(json.dumps(economy.to_dict()))
    assert data["steps"]["tracked"]["seconds"]["median"] == economy.tracked.seconds.median
    assert [row["name"] for row in data["quantities"]] == [c.name for c in economy.quantities]
    frame = economy.frame("layers")
    assert list(frame["parameter"]) == [cost.parameter for cost in economy.layers]
    assert frame["seconds_median"].tolist() == [c.seconds.median for c in economy.layers]
    with pytest.raises(KeyError, match="quantities, needs, layers"):
        economy.frame("quantity")


def test_what_is_not_tracked_is_noted() -> None:
    training = small()
    found = cockpit.profile(
        training.model, training.losses, [HessTrace(curvature="diag_h")], repeats=1, memory=False
    )
    (note,) = found.notes
    assert note.startswith("HessTrace: BackPACK has no diag_h")
    assert "\n- HessTrace: BackPACK has no diag_h" in str(found)


# -- what it takes --------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["losses", "loss", "both"])
def test_any_kind_of_losses(outcome: str) -> None:
    training = small()

    def losses() -> Any:
        found = training.losses()
        if outcome == "both":
            return 2 * found.mean(), found
        return found if outcome == "losses" else found.mean()

    found = cockpit.profile(training.model, losses, [GradNorm(), NormTest()], repeats=1)
    assert found.batch_size == (0 if outcome == "loss" else 12)
    assert found.notes == ()


def test_schedules_are_ignored() -> None:
    training = small()
    found = cockpit.profile(
        training.model, training.losses, [GradNorm(linear(10)), GradNorm(linear(7, 3))], repeats=1
    )
    assert [cost.name for cost in found.quantities] == ["GradNorm"]
    assert [cost.need for cost in found.needs] == ["GradientNorms"]


class Power(Quantity):
    """Has an ``__init__`` of its own, and no fields."""

    def __init__(self, power: int, track_schedule: Any = linear(1)) -> None:  # noqa: B008
        super().__init__(track_schedule)
        object.__setattr__(self, "power", power)

    def compute(self, step: Any) -> float:
        TICKS.now += self.power
        return 0.0


def test_quantities_with_an_init_of_their_own(ticks: Ticks) -> None:
    training = small()
    tracked = [Power(2, linear(5)), Slow(takes=3)]
    found = cockpit.profile(
        training.model, ticking(training, ticks), tracked, repeats=1, memory=False
    )
    costs = {cost.name: cost.alone.median for cost in found.quantities}
    assert costs == {"Power": 2, "Slow3": 3}


def test_other_warnings_are_not_swallowed() -> None:
    training = small()

    def losses() -> Tensor:
        import warnings

        warnings.warn("of the user's", UserWarning, stacklevel=1)
        return training.losses()

    with pytest.warns(UserWarning, match="of the user's"):
        cockpit.profile(training.model, losses, [Loss()], repeats=1, memory=False)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"repeats": 0}, InvalidArgument, "repeats must be at least 1, got 0"),
        ({"repeats": 2.5}, InvalidType, "repeats must be an integer, got float: 2.5"),
        ({"repeats": True}, InvalidType, "repeats must be an integer, got bool: True"),
        ({"overhead": 5}, InvalidArgument, "such as 0.05, got 5"),
        ({"overhead": "5%"}, InvalidType, "a number such as 0.05 for 5 %, got str: '5%'"),
        ({"info": 3}, InvalidType, "info must be a dict of .*, got int: 3"),
        ({"losses": (1, 2)}, InvalidType, "losses must be a function .*, got tuple"),
        ({"log": "run.db", "audit": True}, InvalidArgument, "decides on audit, log by itself"),
        ({"quantities": []}, InvalidArgument, "no quantities"),
        ({"model": lambda: None}, InvalidType, "got function"),
        ({"losses": lambda: 3.0}, InvalidType, "got float"),
        ({"losses": lambda: torch.zeros(3)}, InvalidArgument, "has no graph"),
        (
            {"losses": lambda: torch.zeros(3, 4, requires_grad=True)},
            InvalidArgument,
            r"one loss for each sample, \[N\], got \[3, 4\]",
        ),
    ],
)
def test_what_it_refuses(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    training = small()
    given = {
        "model": training.model,
        "losses": training.losses,
        "quantities": [Loss()],
        **arguments,
    }
    with pytest.raises(error, match=words):
        cockpit.profile(**given)


def test_a_model_that_is_not_trained() -> None:
    model = nn.Linear(6, 3).requires_grad_(False)
    with pytest.raises(InvalidArgument, match="Linear has no parameter that is trained"):
        cockpit.profile(model, lambda: model(torch.zeros(2, 6)).sum(1), [Loss()])


def test_progress_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # taken for a terminal
    training = small()
    cockpit.profile(
        training.model, training.losses, [Loss()], repeats=1, memory=False, progress=True
    )
    out, err = capsys.readouterr()
    assert out == ""
    assert "profiling" in err


# -- intervals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ({"a": 0.001, "b": 0.002}, {"a": 1, "b": 1}),
        ({"a": 0.05}, {"a": 1}),
        ({"a": 1.0}, {"a": 20}),
        ({"a": 0.0, "b": 1.0}, {"a": 1, "b": 20}),
        ({"a": 0.01, "b": 1.0}, {"a": 1, "b": 50}),  # 4 % are left for b, that is, every 25 steps
        ({"a": 1.0, "b": 1.0, "c": -0.3}, {"a": 50, "b": 50, "c": 1}),
    ],
)
def test_intervals(costs: dict[str, float], expected: dict[str, int]) -> None:
    assert intervals(costs, 0.05) == expected


def test_intervals_keep_the_share() -> None:
    draws = random.Random(0)
    for _ in range(200):
        costs = {str(i): 10 ** draws.uniform(-5, 2) for i in range(draws.randint(1, 12))}
        every = intervals(costs, 0.05)
        assert sum(cost / every[name] for name, cost in costs.items()) <= 0.05 * (1 + 1e-9)
        ordered = sorted(costs, key=costs.__getitem__)
        assert [every[name] for name in ordered] == sorted(every.values())
        if sum(costs.values()) > 0.05:  # rounding up at most multiplies an interval by 2.5
            assert sum(cost / every[name] for name, cost in costs.items()) > 0.05 / 2.6


# -- the page -------------------------------------------------------------------------------------


def test_the_page_runs_and_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[1] / "docs" / "cost.md").read_text(encoding="utf-8")
    parts = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
    texts = [parts["Where the time goes"], parts["How far it is from the limit"]]
    code = "\n".join(c for text in texts for c in re.findall(r"```python\n(.*?)```", text, re.S))
    small = code.replace("(784, 1000, 500, 100, 10)", "(784, 5, 10)")
    assert small != code
    names: dict[str, Any] = {}
    exec(compile(small, "cost.md", "exec"), names)
    printed = capsys.readouterr().out
    (shown,) = re.findall(r"```text\n(.*?)```", texts[0], re.S)
    for line in printed.splitlines():
        if line.startswith(("quantity ", "need ", "parameter ", "plain step ", "tracked step ")):
            assert line.split()[:2] == next(
                other.split()[:2] for other in shown.splitlines() if other.startswith(line[:6])
            )
    assert {c.name for c in names["profile"].quantities} <= set(shown.split())
    assert names["bound"].ratio > 1


def test_a_busy_machine_is_told_of(ticks: Ticks) -> None:
    training = small()
    draws = random.Random(0)

    def losses() -> Tensor:
        ticks.now += draws.uniform(50, 150)
        return training.losses()

    found = cockpit.profile(training.model, losses, [Loss()], repeats=4, memory=False)
    assert "is something else running on this machine?" in " ".join(str(found).split())
    found = cockpit.profile(
        training.model, ticking(training, ticks), [Loss()], repeats=2, memory=False
    )
    assert "something else" not in str(found)
