"""The first tracked step is compared with one sample by itself: what that finds, and that it disturbs nothing."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from gradients.anywhere import exact, one_by_one, refused, watched
from torch import nn

from cockpit import BatchGradTransforms, Cockpit, CockpitError, CockpitWarning
from cockpit.engine import audit
from cockpit.quantities import NormTest


def mlp():
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def squares(model, x):
    return model(x).square().flatten(1).sum(1)


def points(n=6, size=5):
    return torch.randn(n, size, dtype=torch.float64)


class Shifted(nn.Module):
    """Gives each sample the output of its neighbour."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(5, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(x)).roll(1, 0))


def test_samples_that_change_places_are_refused():
    reasons = refused(Shifted(), squares, points())
    assert reasons.keys() == {"layer.weight", "layer.bias"}
    for reason in reasons.values():
        assert "one sample is not the gradient of that sample's loss" in reason
        assert "their losses depend on each other" in reason


def test_samples_that_are_coupled_are_refused_even_where_the_gradient_is_zero():
    class Centred(nn.Module):
        """The bias before it has no influence."""

        def forward(self, x):
            return x - x.mean(0)

    reasons = refused(nn.Sequential(nn.Linear(5, 4), Centred(), nn.Linear(4, 2)), squares, points())
    assert reasons.keys() == {"0.weight", "0.bias"}


def test_without_audit_the_slices_are_given():
    model = Shifted().double()
    x = points()
    seen = watched(model, squares, x, audit=False)
    assert seen.warnings == []
    expected = one_by_one(model, squares, x)["layer.weight"].roll(-1, 0)
    torch.testing.assert_close(seen.gradients["layer.weight"], expected)


def test_strict_raises():
    model, x = Shifted().double(), points()
    watch = Cockpit(model, [NormTest()], strict=True)
    losses = squares(model, x)
    loss = losses.mean()
    with (
        pytest.raises(CockpitError, match=r"layer\.weight are not tracked"),
        watch(0, loss=loss, individual_losses=losses),
    ):
        loss.backward()
    watch.close()


@pytest.mark.parametrize("how", ["sum", "weights", "factor"])
def test_reductions_weights_and_factors_are_no_mistake(how):
    model, x = mlp().double(), points()
    weights = torch.rand(6, dtype=torch.float64)
    watch = Cockpit(model, [NormTest()], strict=True)
    losses = squares(model, x)
    loss = {"sum": losses.sum(), "weights": (weights * losses).mean(), "factor": losses.mean()}[how]
    with watch(0, loss=loss, individual_losses=losses):
        (loss * 1024 if how == "factor" else loss).backward()
    watch.close()


def test_gradients_that_are_zero_are_no_mistake():
    config = torch.zeros(6, dtype=torch.float64)
    config[0] = 1.0  # the sample that is looked at has none
    exact(mlp(), lambda model, x: config * squares(model, x), points())


def test_coupled_samples_are_not_audited():
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).double()
    seen = watched(model, squares, points())
    assert seen.warnings == []
    assert len(seen.gradients) == 6


class Once(torch.autograd.Function):
    """An autograd function that must not be pulled back twice."""

    runs = 0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        Once.runs += 1
        return grad


def test_functions_of_the_user_are_run_once_a_step():
    Once.runs = 0
    seen = watched(
        mlp().double(), lambda model, x: Once.apply(squares(model, x)), points(), steps=2
    )
    assert seen.warnings == []
    assert Once.runs == 2


def test_hooks_of_the_user_on_parameters_are_called_once_a_step():
    model, calls = mlp().double(), []
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: calls.append(1))
    watched(model, squares, points(), steps=2)
    assert len(calls) == 2 * 4


def test_it_costs_one_pass_at_the_first_tracked_step(monkeypatch):
    passes = []
    run = audit.Audit.run
    monkeypatch.setattr(
        audit.Audit, "run", lambda self, *given: (passes.append(1), run(self, *given))
    )
    exact(mlp(), squares, points(), steps=4)
    assert len(passes) == 1
    exact(mlp(), squares, points(), steps=4, audit=False)
    assert len(passes) == 1


def test_what_is_taken_for_granted_is_looked_at_again_while_gradients_are_zero():
    class Late(nn.Module):
        """Its second layer, on flattened input, takes no part at first."""

        def __init__(self):
            super().__init__()
            self.first, self.second, self.gate = nn.Linear(3, 3), nn.Linear(3, 3), 0.0

        def forward(self, x):
            return self.first(x) + self.gate * self.second(x.flatten(0, 1)).view_as(x)

    model, x = Late().double(), torch.randn(4, 5, 3, dtype=torch.float64)
    watch = Cockpit(model)
    tracked = []
    for step in range(4):
        model.gate = float(step > 0)
        losses = squares(model, x)
        loss = losses.mean()
        seen = BatchGradTransforms({"dense": lambda g, step=step: tracked.append((step, g.name))})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CockpitWarning)
            with watch(step, seen, loss=loss, individual_losses=losses):
                loss.backward()
    watch.close()
    assert [step for step, name in tracked if name == "second.weight"] == [1, 2, 3]


class Tokens(nn.Module):
    """Position tables, class token, scale and tied head."""

    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(13, 6), nn.Embedding(9, 6)
        self.token, self.scale = nn.Parameter(torch.rand(1, 1, 6)), nn.Parameter(torch.rand(6))
        self.body = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Dropout(0.2))

    def forward(self, index):
        x = self.table(index) + self.places(torch.arange(index.shape[1]).unsqueeze(0))
        x = torch.cat([self.token.expand(len(index), -1, -1), x], dim=1) * self.scale
        return F.linear(self.body(x.flatten(0, 1)), self.table.weight).unflatten(
            0, (len(index), -1)
        )


def test_training_is_bit_identical():
    def train(watching):
        torch.manual_seed(0)
        model = Tokens()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        watch = Cockpit(model, [NormTest()], optimizer=optimizer) if watching else None
        for step in range(5):
            index = torch.randint(13, (4, 5))
            optimizer.zero_grad()
            losses = F.cross_entropy(model(index)[:, 1:].mT, index, reduction="none").mean(1)
            loss = losses.mean()
            if watch is None:
                loss.backward()
            else:
                with watch(step, loss=loss, individual_losses=losses):
                    loss.backward()
            optimizer.step()
        if watch is not None:
            assert len(watch.get_output()) == 5
            watch.close()
        return [p.detach().clone() for p in model.parameters()], torch.get_rng_state()

    plain, state = train(watching=False)
    seen, state_after = train(watching=True)
    assert all(torch.equal(one, other) for one, other in zip(plain, seen, strict=True))
    assert torch.equal(state, state_after)
