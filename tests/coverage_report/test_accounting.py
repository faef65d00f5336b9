"""After a backward pass every parameter is delivered, zero, or refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from coverage_report.networks import Elsewhere, Folded, Phase, Twice, WithFlat, random
from gradients.reference import feed, losses, one_by_one
from torch import Tensor, nn

from cockpit import Cockpit, CockpitWarning
from cockpit.engine import PerParameter
from cockpit.gradients import Zero
from cockpit.quantities import NormTest
from cockpit.quantities.quantity import Quantity
from cockpit.transforms import SquareNorms


@dataclass(frozen=True)
class MeanSquareNorm(Quantity):
    """Mean square norm of the individual gradients of each parameter."""

    norms = SquareNorms()

    def compute(self, step):
        return PerParameter((name, norms.mean()) for name, norms in step[self.norms].items())


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "elsewhere": lambda: (Elsewhere(), random(4, 3)),
    "twice": lambda: (Twice(), random(4, 3)),
    "folded": lambda: (Folded(), random(4, 2, 3)),
    "complex": lambda: (Phase(), random(4, 3)),
    "sharded": lambda: (WithFlat(), random(4, 3)),
}


def watched(model: nn.Module, loss: Callable[[], Tensor], quantity: Quantity) -> Cockpit:
    with Cockpit(model, [quantity]) as watch:
        value = loss()
        with watch(0, loss=value):
            value.backward()
    return watch


@pytest.mark.filterwarnings("ignore::cockpit.CockpitWarning")
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_every_parameter_is_right_or_named(make):
    model, x = make()
    model = model if isinstance(model, Phase) else model.double()
    watch = watched(model, lambda: losses(model(x), len(x)).mean(), MeanSquareNorm())
    run = watch.run()
    events = run.events()
    named = set(events.loc[events["kind"].isin(["not-tracked", "mismatch"]), "subject"])
    values = run.scalars().set_index("part")["value"].to_dict()
    expected = one_by_one(model, (x,), len(x))
    assert values.keys() | named == expected.keys()
    for name in values.keys() - named:
        truth = float(expected[name].flatten(1).square().sum(1).mean())
        assert values[name] == pytest.approx(truth, rel=1e-9, abs=1e-14), name


def test_a_layer_without_a_part_has_zero_gradients():
    fed = feed(Twice().double(), (random(4, 3),), 4)
    assert isinstance(fed.handles["idle.weight"], Zero)
    assert fed.handles["idle.weight"].dense().count_nonzero() == 0


def test_complex_and_sharded_parameters_are_refused_with_the_way_out():
    fed = feed(Phase(), (random(4, 3),), 4)
    assert list(fed.refused) == ["filter.weight"]
    assert "it is complex" in fed.refused["filter.weight"]
    assert "view_as_complex" in fed.refused["filter.weight"]
    fed = feed(WithFlat().double(), (random(4, 3),), 4)
    assert list(fed.refused) == ["linear.weight"]
    assert "DistributedDataParallel keeps it whole" in fed.refused["linear.weight"]


class Penalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(9, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@pytest.mark.parametrize(("name", "kind"), [("body.0.weight", "Conv1d"), ("body.2.bias", "Linear")])
def test_what_does_not_add_up_is_reported_by_layer(name, kind):
    model, x = Penalised().double(), random(4, 2, 4)
    penalised = model.get_parameter(name)
    share = torch.autograd.grad(model(x).square().sum(1).mean(), penalised)[0]
    missing = float(penalised.detach().norm() / (share + penalised.detach()).norm())

    def loss() -> Tensor:
        return model(x).square().sum(1).mean() + 0.5 * penalised.square().sum()

    with pytest.warns(CockpitWarning, match="do not add up") as warned:
        watch = watched(model, loss, NormTest())
    text = str(warned[0].message)
    layer = name.rpartition(".")[0]
    assert f"the individual gradients of {name}: those that the {kind} layer {layer} del" in text
    assert f"miss it by {missing:.2g} of its norm" in text
    events = watch.run().events()
    assert events.loc[events["kind"] == "mismatch", "subject"].tolist() == [name]


def test_what_adds_up_is_not_reported():
    model, x = Penalised().double(), random(4, 2, 4)
    watch = watched(model, lambda: model(x).square().sum(1).mean(), NormTest())
    assert "mismatch" not in set(watch.run().events()["kind"])


def test_a_backward_pass_that_reaches_no_parameter_is_said():
    model, other = nn.Linear(3, 2), nn.Parameter(torch.ones(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CockpitWarning)
        watch = watched(model, lambda: other.square().sum(), NormTest())
    events = watch.run().events()
    assert events["kind"].tolist() == ["not-checked"]
    assert "no parameter has individual gradients" in events["message"].item()
