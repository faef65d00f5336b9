"""Layers whose weight is computed from parameters, against a loop over samples."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from gradients.reference import check, feed
from gradients.test_randomness import Attending, check_alike, few, how, in_one_pass, random
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.nn.utils import spectral_norm as old_spectral_norm
from torch.nn.utils import weight_norm as old_weight_norm

from cockpit.gradients.pulled import PulledBack


def old_style_weight_norm(layer, name="weight"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return old_weight_norm(layer, name)


class LowRank(nn.Module):
    """W + BA, as a parametrization."""

    def __init__(self, rows, *rest):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.rand(2, *rest)), nn.Parameter(torch.rand(rows, 2))

    def forward(self, weight):
        return weight + torch.tensordot(self.b, self.a, 1)


def lora(layer):
    layer.weight.requires_grad_(False)
    parametrize.register_parametrization(layer, "weight", LowRank(*layer.weight.shape))
    return layer


def pruned(layer):
    return prune.random_unstructured(layer, "weight", 0.5)


CHANGES = [
    parametrizations.weight_norm,
    parametrizations.spectral_norm,
    parametrizations.orthogonal,
    old_style_weight_norm,
    old_spectral_norm,
    lora,
    pruned,
]
LAYERS = [
    (nn.Linear(3, 4), (3,)),
    (nn.Linear(3, 4, bias=False), (2, 3)),
    (nn.Conv1d(2, 3, 2), (2, 4)),
    (nn.ConvTranspose1d(3, 2, 2), (3, 4)),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=str)
@pytest.mark.parametrize("train", [True, False])
def test_layers(change, layer, shape, train):
    model = lambda: nn.Sequential(nn.Tanh(), change(copy.deepcopy(layer).double())).train(train)  # noqa: E731
    fed = check_like_twin(model, random(4, *shape))
    assert any(isinstance(handle, PulledBack) for handle in fed.handles.values())


def check_like_twin(build, x, **settings):
    """Check against one forward pass of a twin, which takes the same steps of its power iterations."""
    n = len(x)
    torch.manual_seed(0)
    model = build().double()
    torch.manual_seed(0)
    twin = build().double()
    torch.manual_seed(1)
    expected = in_one_pass(twin, (x,), n)
    torch.manual_seed(1)
    fed = check(model, (x,), n, expected, **settings)
    for mine, theirs in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(mine, theirs)  # as after the forward pass alone
    return fed


@few
@given(st.sampled_from(CHANGES), how)
def test_scales_and_memory_budgets(change, how):
    build = lambda: nn.Sequential(change(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2))  # noqa: E731
    check_like_twin(build, random(3, 3), **how)


@pytest.mark.parametrize("change", [parametrizations.spectral_norm, old_spectral_norm])
def test_called_twice_with_different_power_iterations(change):
    """As a discriminator is, on real and on generated samples."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = change(nn.Linear(3, 3))

        def forward(self, x):
            return self.layer(torch.tanh(self.layer(x)))

    check_like_twin(Twice, random(4, 3))


def test_parts_of_parametrizations_that_are_frozen_and_parameters_that_are_shared():
    first = parametrizations.weight_norm(nn.Linear(3, 3))
    first.parametrizations.weight.original0.requires_grad_(False)
    second = parametrizations.weight_norm(nn.Linear(3, 3, bias=False))
    second.parametrizations.weight.original1 = first.parametrizations.weight.original1
    model = nn.Sequential(first, nn.Tanh(), second).double()
    check(model, (random(3, 3),), 3)


def test_several_parametrizations_of_one_layer():
    class Squared(nn.Module):
        def forward(self, value):
            return value.square()

    layer = parametrizations.weight_norm(nn.Linear(3, 4))
    parametrize.register_parametrization(layer, "weight", Squared())
    parametrize.register_parametrization(layer, "bias", Squared())
    check(nn.Sequential(layer).double(), (random(4, 3),), 4)


def test_module_without_a_rule():
    class Doubled(nn.Linear):
        def forward(self, x):
            return F.linear(x, 2 * self.weight, self.bias)

    for change in (parametrizations.weight_norm, old_style_weight_norm):
        check_like_twin(lambda change=change: nn.Sequential(change(Doubled(3, 2))), random(4, 3))


@pytest.mark.parametrize("change", [parametrizations.weight_norm, old_style_weight_norm])
def test_recurrent_layer(change):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = change(nn.GRU(3, 4, batch_first=True), name="weight_hh_l0")

        def forward(self, x):
            return self.layer(x)[0]

    check_like_twin(Last, random(3, 4, 3))


@pytest.mark.parametrize("train", [True, False])
def test_attention_with_projections_of_unit_norm(train):
    class Itself(Attending):
        def forward(self, x):
            return super().forward(x, x, x)

    def build():
        model = Itself(dropout=0.3, batch_first=True).train(train)
        parametrizations.spectral_norm(model.attention.out_proj)
        parametrizations.weight_norm(model.attention, "in_proj_weight")
        return model

    check_like_twin(build, random(3, 4, 4))


def test_adapters_of_plain_layers():
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(4, 4)
            self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)
            self.base.requires_grad_(False)
            self.drop = nn.Dropout(0.3)

        def forward(self, x):
            return self.base(x) + 0.5 * self.up(self.down(self.drop(x)))

    check_alike(nn.Sequential(Adapted(), nn.Tanh(), Adapted()).double(), (random(3, 2, 4),), 3)


# -- refused by name ------------------------------------------------------------------------------


def refusal(model, x):
    refused = feed(model.double(), (x,), len(x)).refused
    assert len(refused) == 1
    return next(iter(refused.values()))


def test_parametrization_with_a_state_of_its_own():
    class Drifting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, weight):
            self.count += 1
            return weight * self.count

    layer = nn.Linear(3, 2, bias=False)
    parametrize.register_parametrization(layer, "weight", Drifting())
    assert "changes its buffers whenever it runs" in refusal(nn.Sequential(layer), random(3, 3))


def test_parametrization_that_draws_random_numbers():
    class Dropping(nn.Module):
        def forward(self, weight):
            return F.dropout(weight)

    layer = nn.Linear(3, 2, bias=False)
    parametrize.register_parametrization(layer, "weight", Dropping())
    assert "draws random numbers" in refusal(nn.Sequential(layer), random(3, 3))


def test_buffer_that_was_modified_between_forward_and_backward():
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("shift", torch.rand(2, 3))

        def forward(self, weight):
            return weight + self.shift

    layer = nn.Linear(3, 2, bias=False)
    parametrize.register_parametrization(layer, "weight", shifted := Shifted())
    model = nn.Sequential(layer).double()
    check(model, (random(3, 3),), 3)
    fed = feed(model, (random(3, 3),), 3, between=lambda: shifted.shift.mul_(2))
    (reason,) = fed.refused.values()
    assert "its buffer parametrizations.weight.0.shift was modified" in reason


def test_spectral_norms_inside_of_a_module_that_has_to_be_run_again():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.rand(3))
            self.layer = parametrizations.spectral_norm(nn.Linear(3, 3)).requires_grad_(False)

        def forward(self, x):
            return self.layer(x * self.scale) * self.scale

    assert "power iteration" in refusal(Outer(), random(3, 3))
    check(Outer().double().eval(), (random(3, 3),), 3)
