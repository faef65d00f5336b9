"""Where the samples lie: in another dimension than the first, or flattened together with positions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from gradients.anywhere import exact, refused
from gradients.reference import agree
from torch import nn
from torchvision.models.convnext import CNBlockConfig, ConvNeXt

from cockpit import Cockpit, CockpitError
from cockpit.gradients import Batch, Dense
from cockpit.gradients.folded import Folded
from cockpit.gradients.products import Products


def tokens(*shape):
    return torch.randint(13, shape)


class Sequence(nn.Module):
    """Position by position, `[T, N]` or `[N, T]` alike."""

    def __init__(self, end=None):
        super().__init__()
        self.table, self.layer = nn.Embedding(13, 6), nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.end = end or nn.Identity()

    def forward(self, index):
        return self.end(self.norm(torch.tanh(self.layer(self.table(index)))))


def second(model, *args):
    """Losses of samples in the second dimension."""
    output = model(*args)
    return (output.square() + output.sin()).sum((0, 2))


def first(model, *args):
    output = model(*args)
    return (output.square() + output.sin()).flatten(1).sum(1)


# -- the second dimension -------------------------------------------------------------------------


def test_samples_in_the_second_dimension_are_found():
    exact(Sequence(), second, tokens(7, 4))
    exact(Sequence(), second, tokens(7, 4), tell=False)
    exact(Sequence(), second, tokens(8, 4))


def test_samples_in_the_second_dimension_of_a_square_input():
    reasons = refused(Sequence(), second, tokens(4, 4))
    assert len(reasons) == 5
    for reason in reasons.values():
        assert "the samples lie elsewhere than they were taken to" in reason
        assert "Cockpit(..., batch_dim=)" in reason
    exact(Sequence(), second, tokens(4, 4), batch_dim=1)
    exact(Sequence(), second, tokens(4, 4), batch_dim=1, tell=False)


class Recurrent(Sequence):
    """A recurrent layer says where the samples lie, by its settings."""

    def __init__(self, batch_first=False):
        super().__init__()
        self.recurrent = nn.LSTM(6, 6, batch_first=batch_first)

    def forward(self, index):
        return self.layer(self.recurrent(self.norm(self.table(index)))[0])


def test_a_recurrent_layer_tells_how_many_samples_there_are():
    exact(Recurrent(), second, tokens(7, 4), tell=None)
    exact(Recurrent(batch_first=True), first, tokens(7, 4), tell=None)


def test_a_recurrent_layer_makes_a_square_input_doubtful():
    reasons = refused(Recurrent(), second, tokens(4, 4), tell=None)
    known = dict(Recurrent().recurrent.named_parameters(prefix="recurrent"))
    assert reasons.keys() == dict(Recurrent().named_parameters()).keys() - known.keys()
    assert "dimension 0 or 1, but it is not sure" in reasons["table.weight"]
    exact(Recurrent(), second, tokens(4, 4), tell=None, batch_dim=1)
    exact(Recurrent(batch_first=True), first, tokens(4, 4), tell=None)


def test_offsets_tell_how_many_samples_there_are():
    class Bags(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.layer = nn.EmbeddingBag(13, 6), nn.Linear(6, 3)

        def forward(self, text, offsets):
            return self.layer(self.table(text, offsets))

    exact(Bags(), first, tokens(9), torch.tensor([0, 2, 5]), tell=None)


def test_positions_first_inside_of_a_model():
    class Inside(Sequence):
        def forward(self, index):
            return super().forward(index.T).transpose(0, 1)

    exact(Inside(), first, tokens(4, 7))
    exact(Inside(), first, tokens(4, 7), tell=False)
    assert refused(Inside(), first, tokens(4, 4)).keys() == dict(Inside().named_parameters()).keys()


def test_positions_and_scales_beside_samples_in_the_second_dimension():
    class Positions(Sequence):
        def __init__(self):
            super().__init__()
            self.places = nn.Embedding(9, 6)
            self.scale = nn.Parameter(torch.rand(6))

        def forward(self, index):
            where = self.places(torch.arange(len(index))).unsqueeze(1)
            return self.norm(self.scale * self.layer(self.table(index) + where))

    exact(Positions(), second, tokens(7, 4))
    exact(Positions(), second, tokens(4, 4), batch_dim=1)


@pytest.mark.parametrize("batch_dim", [2, -1, True, "first"])
def test_a_dimension_that_cannot_be(batch_dim):
    with pytest.raises(CockpitError, match="batch_dim must be 0 or 1, or None to see by oneself"):
        Cockpit(Sequence(), batch_dim=batch_dim)


# -- flattened ------------------------------------------------------------------------------------


class Flattened(nn.Module):
    def __init__(self, positions_first=False):
        super().__init__()
        self.table, self.body = nn.Embedding(13, 6), nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6))
        self.positions_first = positions_first

    def forward(self, index):
        x = self.table(index)
        if self.positions_first:
            x = x.transpose(0, 1)
        return self.body(x.reshape(-1, 6)).view_as(x).transpose(0, int(self.positions_first))


def test_samples_and_positions_flattened():
    exact(Flattened(), first, tokens(4, 7))
    exact(Flattened(), first, tokens(4, 4))


def test_flattened_the_other_way_round():
    reasons = refused(Flattened(positions_first=True), first, tokens(4, 7))
    assert set(reasons) == {"body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"}
    exact(Flattened(), second, tokens(7, 4))


def test_flattened_without_an_audit():
    for how in ({"tell": False}, {"audit": False}):
        reasons = refused(Flattened(), first, tokens(4, 7), **how)
        assert set(reasons) == {"body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"}
        reason = reasons["body.0.weight"]
        assert "its input has shape [28, 6], in which the 4 samples may be in dimension 0" in reason
        assert "the 4 samples may be in dimension 0, flattened sample by sample" in reason
        assert "batch_dim=" in reason
        exact(Flattened(), first, tokens(4, 7), batch_dim=0, **how)


class Frames(nn.Module):
    """A video, whose frames go through convolutions one by one."""

    def __init__(self):
        super().__init__()
        self.frame = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.PReLU(4), nn.Flatten(), nn.Linear(16, 3)
        )

    def forward(self, x):
        return self.frame(x.flatten(0, 1)).unflatten(0, x.shape[:2]).mean(1)


@pytest.mark.parametrize("memory_budget", [2**26, 2000, 1])
def test_frames_of_videos(memory_budget):
    x = torch.randn(3, 4, 2, 4, 4, dtype=torch.float64)
    exact(Frames(), first, x, memory_budget=memory_budget)


@pytest.mark.parametrize("memory_budget", [2**26, 200, 1])
def test_every_reduction_of_folded_entries(memory_budget):
    values = torch.randn(12, 3, 2, dtype=torch.float64)
    entries, batch = Batch(12, memory_budget=memory_budget), Batch(4, memory_budget=memory_budget)
    expected = values.unflatten(0, (4, 3)).sum(1)
    agree(Folded(batch, Dense(entries, values), 3), expected, torch.rand(3, 2))
    a, b = (torch.randn(12, 1, size, 1, dtype=torch.float64) for size in (2, 3))
    dense = torch.einsum("ngit,ngot->noi", a, b).unflatten(0, (4, 3)).sum(1)
    agree(Folded(batch, Products(entries, torch.Size([3, 2]), a, b), 3), dense, torch.rand(3, 2))


# -- other habits ---------------------------------------------------------------------------------


def test_in_place_activations_frozen_parts_and_several_calls():
    class Habits(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.twice = nn.Linear(5, 6), nn.Linear(6, 6)
            self.frozen = nn.Linear(6, 6).requires_grad_(False)
            self.norm, self.shared = nn.LayerNorm(6), nn.Linear(6, 6)
            self.norm.bias.requires_grad_(False)
            self.shared.weight = self.twice.weight
            self.act = nn.ReLU(inplace=True)

        def forward(self, x):
            x = self.act(self.first(x))
            x = self.act(self.twice(self.frozen(x))) + x
            x = self.norm(F.relu(self.twice(x), inplace=True))
            x = x + self.shared(x)
            x.mul_(2)
            return x

    exact(Habits(), first, torch.randn(4, 5, dtype=torch.float64))


def test_scales_of_images_and_layers_that_permute_them():
    model = ConvNeXt(
        [CNBlockConfig(4, 8, 1), CNBlockConfig(8, None, 1)],
        stochastic_depth_prob=0.0,
        num_classes=3,
    )
    exact(model, first, torch.randn(4, 3, 16, 16, dtype=torch.float64))
