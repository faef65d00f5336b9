"""Where the samples lie: in another dimension than the first, or flattened together with positions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from gradients.anywhere import by_step, exact, refused
from gradients.reference import agree
from torch import nn
from torchvision.models.convnext import CNBlockConfig, ConvNeXt

from cockpit import Cockpit, CockpitError
from cockpit.gradients import Batch, Dense
from cockpit.gradients.folded import Folded
from cockpit.gradients.products import Products
from cockpit.quantities import GradNorm, NormTest


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


# -- lengths that coincide, sooner or later -------------------------------------------------------


@pytest.mark.parametrize("tell", [True, False])
def test_a_length_that_becomes_that_of_the_batch(tell):
    batches = [tokens(7, 4), tokens(4, 4), tokens(9, 4), tokens(4, 4), tokens(8, 4)]
    assert [len(found) for found in by_step(Sequence(), second, batches, tell)] == [5] * 5


class Inside(Sequence):
    """Positions first, but not in the input."""

    def forward(self, index):
        return super().forward(index.T).transpose(0, 1)


@pytest.mark.parametrize("tell", [True, False])
def test_a_length_that_becomes_that_of_the_batch_inside_of_a_model(tell):
    batches = [tokens(4, 7), tokens(4, 4), tokens(4, 9)]
    assert [len(found) for found in by_step(Inside(), first, batches, tell)] == [5] * 3


def test_two_dimensions_that_fit_are_a_guess_without_an_audit():
    batches = [tokens(4, 4), tokens(4, 7), tokens(4, 4)]
    for model in (Inside(), Sequence()):
        assert [len(found) for found in by_step(model, first, batches, tell=False)] == [0, 5, 5]
    reasons = refused(Inside(), first, tokens(4, 4), tell=False)
    assert len(reasons) == 5
    for reason in reasons.values():
        assert "dimension 0 or 1, but it is not sure; give individual_losses" in reason
        assert "batch_dim=" in reason
    exact(Sequence(), first, tokens(4, 4))
    exact(Sequence(), first, tokens(4, 4), tell=False, batch_dim=0)


class Timed(nn.Module):
    """Adds what a layer makes of the positions, which are the same for all samples."""

    def __init__(self):
        super().__init__()
        self.time, self.layer = nn.Linear(1, 6), nn.Linear(6, 6)

    def forward(self, x):
        time = torch.linspace(0, 1, x.shape[1], dtype=x.dtype).unsqueeze(1)
        return self.layer(torch.tanh(x + self.time(time)))


@pytest.mark.parametrize("tell", [True, False])
def test_a_layer_that_had_no_place_for_the_samples_is_not_believed_to_have_one(tell):
    batches = [torch.randn(4, t, 6, dtype=torch.float64) for t in (3, 4, 8, 5)]
    for found in by_step(Timed(), first, batches, tell):
        assert found.keys() == {"layer.weight", "layer.bias"}


@pytest.mark.parametrize("tell", [True, False])
def test_a_parameter_that_seems_to_meet_the_samples_elsewhere(tell):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.layer = nn.Parameter(torch.rand(6)), nn.Linear(6, 6)
            self.register_buffer("table", torch.randn(9, 6))

        def forward(self, x):
            return self.layer(torch.tanh(x * (self.table[: x.shape[1]] * self.scale)))

    batches = [torch.randn(4, t, 6, dtype=torch.float64) for t in (3, 4, 3)]
    found = by_step(Scaled(), first, batches, tell)
    assert ["scale" in one for one in found] == [True, False, True]


def test_an_expert_that_gets_as_many_tokens_as_there_are_samples():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(2)])

        def forward(self, x):
            flat = x.flatten(0, 1)
            result = torch.zeros_like(flat)
            for one, chosen in zip(self.layers, (flat[:, 0] <= 0, flat[:, 0] > 0), strict=True):
                where = chosen.nonzero()[:, 0]
                result = result.index_add(0, where, torch.tanh(one(flat[where])))
            return result.view_as(x)

    def batch(count):
        x = torch.randn(4, 3, 6, dtype=torch.float64)
        first_of_all = -torch.ones(12, dtype=x.dtype)
        first_of_all[:count] = 1.0
        x[..., 0] = first_of_all.view(4, 3)
        return x

    assert by_step(Experts(), first, [batch(n) for n in (7, 4, 8, 4)]) == [{}] * 4


class Order(nn.Module):
    """Flattens samples and positions, in either order."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, x):
        flat = x.transpose(0, 1).reshape(-1, 6)
        return torch.tanh(self.layer(flat)).view(x.shape[1], len(x), -1).transpose(0, 1)


def test_positions_flattened_first_that_were_one_at_first():
    batches = [torch.randn(4, t, 6, dtype=torch.float64) for t in (1, 1, 3, 3, 1)]
    found = by_step(Order(), first, batches)
    assert [len(one) for one in found] == [2, 2, 0, 0, 2]


def test_a_last_batch_of_one_sample():
    batches = [tokens(n, 3) for n in (4, 1, 4)]
    assert [len(found) for found in by_step(Flattened(), first, batches)] == [5, 5, 5]


class Labelled(nn.Module):
    def __init__(self):
        super().__init__()
        self.labels, self.layer = nn.Embedding(9, 6), nn.Linear(6, 2)

    def forward(self, label):
        return self.layer(torch.tanh(self.labels(label)))


def test_class_labels_that_count_up():
    label = torch.tensor([3, 4])
    exact(Labelled(), first, label)
    reasons = refused(Labelled(), first, label, tell=False)
    assert reasons.keys() == {"labels.weight"}
    assert "its input counts up from 3" in reasons["labels.weight"]
    exact(Labelled(), first, torch.tensor([3, 5]), tell=False)
    found = by_step(Labelled(), first, [torch.tensor([3, 5]), label], tell=False)
    assert [len(one) for one in found] == [3, 3]


def test_the_number_of_samples_that_nothing_tells_is_noted_once():
    model = Sequence().double()
    watch = Cockpit(model, [GradNorm(), NormTest()])
    for step in range(2):
        loss = first(model, tokens(4, 7)).mean()
        with watch(step, loss=loss):
            loss.backward()
    watch.close()
    notes = watch.run().events().query("kind == 'layout'")
    assert notes["subject"].tolist() == ["samples"]
    assert "taken from the first dimension of the model's input" in notes["message"].item()


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
