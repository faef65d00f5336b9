"""What the report says of a batch, against what is so."""

from __future__ import annotations

import random as python_random

import numpy as np
import pytest
import torch
from coverage_report.networks import Blocks, Elsewhere, Folded, Phase, Twice, cnn, random
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

import cockpit
from cockpit.coverage.ways_out import explained
from cockpit.errors import InvalidArgument, Unsupported
from cockpit.gradients import Dense, rule_for


def test_exact_parameters_and_shares_before_a_batch_norm():
    model = cnn()
    report = cockpit.inspect(model, random(4, 2, 6, 6))
    assert {row.name: row.seen for row in report.rows} == {
        "0.weight": "share",
        "0.bias": "share",
        "1.weight": "exact",
        "1.bias": "exact",
        "3.weight": "exact",
        "6.weight": "exact",
        "6.bias": "exact",
    }
    assert all(row.error < 1e-10 for row in report.rows if row.seen == "exact")
    assert report.samples == 4
    assert "Checked on a batch of 4: 5 exact, 2 share." in report.summary()
    assert "closed form, share" in str(report)


def test_in_eval_mode_all_is_exact():
    report = cockpit.inspect(cnn().eval(), random(4, 2, 6, 6))
    assert {row.seen for row in report.rows} == {"exact"}
    assert report.notes == ()


def test_a_shared_parameter_and_repeated_blocks():
    report = cockpit.inspect(Blocks().double(), torch.randint(11, (3, 5)))
    assert {row.seen for row in report.rows} == {"exact"}
    assert report["tokens.weight"].calls == 2
    assert report["layers.1.linear.weight"].calls == 1


def test_a_layer_that_is_called_twice_and_one_that_is_not():
    report = cockpit.inspect(Twice().double(), random(4, 3))
    assert (report["used.weight"].seen, report["used.weight"].calls) == ("exact", 2)
    assert any("called 2 times" in note for note in report["used.weight"].notes)
    assert (report["idle.weight"].seen, report["idle.weight"].calls) == ("unused", 0)
    assert any("its gradients are zero" in note for note in report["idle.weight"].notes)


def test_a_parameter_that_is_used_outside_of_its_layer_is_right_or_a_gap():
    report = cockpit.inspect(Elsewhere().double(), random(4, 3))
    assert report["inner.bias"].seen == "exact"
    assert report["aside.weight"].seen == "unused"
    for name in ("inner.weight", "aside.bias"):
        row = report[name]
        assert (row.seen == "exact") != (row.gap is not None), name
        assert row.seen is None or row.error < 1e-10


class Penalising(nn.Module):
    """Adds a penalty on a weight to what a sample yields, which no layer sees."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x) + self.layer.weight.square().sum()


def test_a_penalty_inside_the_model_is_right_or_a_gap():
    report = cockpit.inspect(Penalising().double(), random(4, 3))
    assert report["layer.bias"].seen == "exact"
    weight = report["layer.weight"]
    assert (weight.seen == "exact") != (weight.gap is not None)
    assert weight.seen is None or weight.error < 1e-10


def test_samples_that_are_not_in_the_first_dimension_are_a_gap():
    report = cockpit.inspect(Folded().double(), random(4, 2, 3))
    for row in report.rows:
        assert row.seen == "exact" or "first dimension" in str(row.gap)
        assert row.seen == "exact" or "samples" in str(row.way_out)


class Misjudged(nn.Linear):
    """A layer whose rule, below, forgets a factor."""

    def forward(self, x):
        return 2 * super().forward(x)


class Shuffled(nn.Linear):
    """A layer whose rule, below, has the samples in the wrong order."""

    def forward(self, x):
        return super().forward(x)


@rule_for(Misjudged)
def misjudged(call, grads, batch):
    a, b = call.input.detach(), grads[0] * batch.scale
    weight = b.unsqueeze(2) * a.unsqueeze(1)
    return {"weight": Dense(batch, weight), "bias": Dense(batch, 2 * b)}


@rule_for(Shuffled)
def shuffled(call, grads, batch):
    a, b = call.input.detach().flip(0), grads[0].flip(0) * batch.scale
    return {"weight": Dense(batch, b.unsqueeze(2) * a.unsqueeze(1)), "bias": Dense(batch, b)}


def test_a_wrong_rule_is_found_out():
    report = cockpit.inspect(nn.Sequential(Misjudged(3, 2)).double(), random(4, 3))
    assert [row.name for row in report.gaps] == ["0.weight"]
    report = cockpit.inspect(nn.Sequential(Shuffled(3, 2)).double(), random(4, 3))
    assert [row.name for row in report.gaps] == ["0.weight", "0.bias"]
    assert "that of one sample is not the gradient of that sample's loss" in report.gaps[0].gap
    assert "batch_dim=" in report.gaps[0].way_out


def test_a_wrong_rule_behind_a_batch_norm_is_found_out():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), Shuffled(3, 2)).double()
    report = cockpit.inspect(model, random(4, 3))
    assert [row.name for row in report.gaps] == ["2.weight", "2.bias"]
    assert "not those that autograd gives sample by sample" in report.gaps[0].gap
    assert [row.seen for row in report.rows] == ["share", "share", "exact", "exact", None, None]


class Mixing(nn.Module):
    """Subtracts the mean over the samples: couples them without a layer that is known for it."""

    def forward(self, x):
        return x - x.mean(0)


def test_samples_that_are_coupled_unawares_are_a_gap():
    model = nn.Sequential(nn.Linear(3, 3), Mixing(), nn.Linear(3, 2)).double()
    report = cockpit.inspect(model, random(4, 3))
    assert [row.name for row in report.gaps] == ["0.weight", "0.bias"]
    assert "depend on each other" in report.gaps[0].gap
    assert [row.seen for row in report.rows] == [None, None, "exact", "exact"]


def test_a_part_of_the_reason_says_what_to_do():
    assert explained("it is so; do that, or this; or that") == (
        "it is so",
        "do that, or this; or that",
    )
    assert explained("its input was modified in place after the forward pass").way_out == (
        "give the layer a copy of its input, or modify it out of place"
    )
    assert "torch.func.vmap" in explained("RuntimeError: nobody knows").way_out


def test_a_gap_that_was_known_stays_and_the_rest_is_checked():
    report = cockpit.inspect(nn.Sequential(nn.Linear(3, 3).double(), Phase()), random(4, 3))
    assert [row.name for row in report.gaps] == ["1.filter.weight"]
    assert report["0.weight"].seen == "exact"
    assert report["1.linear.weight"].seen == "exact"


class Flash(nn.Module):
    """Attention whose kernel has a first derivative only."""

    def forward(self, x):
        x = x.unsqueeze(1)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(x, x, x).squeeze(1)


def test_a_missing_second_derivative_restricts_curvature():
    model = nn.Sequential(nn.Linear(3, 8), Flash(), nn.Linear(8, 2))
    report = cockpit.inspect(model, torch.randn(4, 5, 3))
    assert {row.seen for row in report.rows} == {"exact"}
    (note,) = report.notes
    assert "curvature cannot be had" in note
    assert "SDPBackend.MATH" in note
    assert cockpit.inspect(Twice().double(), random(4, 3)).notes == ()


def test_single_precision_and_mixed_precision():
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 3))
    x = torch.randn(8, 64)
    assert {row.seen for row in cockpit.inspect(model, x).rows} == {"exact"}
    with torch.autocast("cpu", torch.bfloat16):
        assert {row.seen for row in cockpit.inspect(model, x).rows} == {"exact"}
    model.to(torch.bfloat16)
    assert {row.seen for row in cockpit.inspect(model, x.bfloat16()).rows} == {"exact"}


def test_dictionaries_and_keywords():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, *, features):
            y = self.layer(features)
            return {"loss": y.mean(), "logits": y, "more": (y.sin(),)}

    report = cockpit.inspect(Named().double(), features=random(4, 3))
    assert [row.seen for row in report.rows] == ["exact", "exact"]


# -- the model is left as it is -------------------------------------------------------------------


class Drawing(nn.Module):
    """Draws from every generator there is, and replaces a buffer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        python_random.random()
        np.random.rand()  # noqa: NPY002
        x = nn.functional.dropout(self.layer(x), 0.5)
        self.mean = self.mean + x.detach().mean(0)
        return x


def test_nothing_is_changed():
    model = nn.Sequential(Drawing(), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model[2].eval()
    kept = torch.ones(2, 3)
    model[2].weight.grad = kept
    before = {name: value.clone() for name, value in model.state_dict().items()}
    buffers = {name: id(buffer) for name, buffer in model.named_buffers()}
    modes = [module.training for module in model.modules()]
    states = torch.get_rng_state(), python_random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    with torch.no_grad():
        cockpit.inspect(model, torch.randn(4, 3, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert python_random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])  # noqa: NPY002
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {name: id(buffer) for name, buffer in model.named_buffers()} == buffers
    assert [module.training for module in model.modules()] == modes
    assert model[2].weight.grad is kept
    assert torch.equal(kept, torch.ones(2, 3))
    assert all(p.grad is None for name, p in model.named_parameters() if name != "2.weight")
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_all_is_put_back_when_the_model_fails():
    class Failing(nn.Module):
        def forward(self, x):
            raise ArithmeticError("as it happens")

    model, state = nn.Sequential(nn.BatchNorm1d(3), Failing()), torch.get_rng_state()
    with pytest.raises(ArithmeticError, match="as it happens"):
        cockpit.inspect(model, torch.randn(4, 3, generator=torch.Generator()))
    assert torch.equal(model[0].running_mean, torch.zeros(3))
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(m._forward_hooks for m in model.modules())


# -- what cannot be checked -----------------------------------------------------------------------


class MeanLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x).mean()


class Reentrant(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return checkpoint(self.second, self.first(x), use_reentrant=True)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: cockpit.inspect(Twice(), torch.ones(1, 3)),
            InvalidArgument,
            "two samples or more",
        ),
        (lambda: cockpit.inspect(Twice(), 3), InvalidArgument, "no tensor with samples"),
        (lambda: cockpit.inspect(MeanLoss(), torch.ones(4, 3)), InvalidArgument, "got \\[\\]"),
        (lambda: cockpit.inspect(Reentrant(), torch.ones(4, 3)), Unsupported, "autograd.grad"),
    ],
)
def test_what_cannot_be_checked_is_said(call, error, words):
    with pytest.raises(error, match=words):
        call()
