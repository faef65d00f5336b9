"""Some steps are compared with half of the samples by themselves: what that finds, and that it disturbs nothing."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from gradients.anywhere import by_step, exact, one_by_one, refused, watched
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


def test_it_costs_one_pass_at_tracked_steps_that_are_powers_of_two(monkeypatch):
    passes = []
    run = audit.Audit.run
    monkeypatch.setattr(
        audit.Audit, "run", lambda self, *given: (passes.append(1), run(self, *given))
    )
    for steps, expected in {1: 1, 2: 2, 3: 2, 4: 3, 15: 4, 17: 5}.items():
        passes.clear()
        exact(mlp(), squares, points(), steps=steps)
        assert len(passes) == expected
    passes.clear()
    exact(mlp(), squares, points(), steps=4, audit=False)
    assert passes == []


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 33])
def test_the_half_is_neither_none_nor_all_and_splits_samples_that_mirror_each_other(n):
    drawn = [audit.half(n, seed) for seed in range(40)]
    for chosen in drawn:
        assert len(chosen) == n
        assert 1 <= int(chosen.sum()) <= n - 1
        assert (chosen ^ chosen.flip(0))[: n // 2].all()
    assert torch.stack(drawn).any(0).all()
    assert not torch.stack(drawn).all(0).any()


class Mixed(nn.Module):
    """Mixes the hidden layers of each sample with those of the sample that mirrors it."""

    def __init__(self, on=True):
        super().__init__()
        self.first, self.second, self.on = nn.Linear(5, 6), nn.Linear(6, 3), on

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        return self.second(0.6 * hidden + 0.4 * hidden.flip(0) if self.on else hidden)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_samples_that_are_mixed_while_one_is_not(n):
    assert refused(Mixed(), squares, points(n)).keys() == {"first.weight", "first.bias"}


def test_mixing_that_begins_later_is_found():
    model = Mixed(on=False)

    x = points(4)

    def each(model, step):
        model.on = step > 0
        return squares(model, x)

    seen = by_step(model, each, range(4))
    assert [len(gradients) for gradients in seen] == [4, 2, 2, 2]


class Sorted(nn.Module):
    """Sorts the samples on the way, and gives them back in the order of the input."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x):
        order = x[:, 0].argsort()
        return self.second(torch.tanh(self.first(x[order])))[order.argsort()]


def test_samples_that_are_sorted_on_the_way_are_refused_once_they_were_not_in_order():
    x = points(4)
    x = x[x[:, 0].argsort()]
    seen = by_step(Sorted(), squares, [x, x.flip(0), x, x.flip(0)])
    assert [len(gradients) for gradients in seen] == [4, 0, 0, 0]


def test_losses_beside_the_loss_are_noted_once_as_not_audited():
    model, x = mlp().double(), points()
    watch = Cockpit(model, [NormTest()])
    for step in range(3):
        losses = squares(model, x)
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses.detach()):
            loss.backward()
    watch.close()
    notes = watch.run().events().query("kind == 'layout'")
    assert notes["subject"].tolist() == ["audit"]
    assert "is not audited" in notes["message"].item()


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
