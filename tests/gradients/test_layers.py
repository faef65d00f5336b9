"""Layers beyond Linear, convolutions and norms: every reduction against a loop over the samples."""

from __future__ import annotations

import pytest
import torch
from gradients.reference import Gradients, check, feed, losses
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from transformers.pytorch_utils import Conv1D

from cockpit.gradients import find_rule
from cockpit.gradients.products import Products
from cockpit.gradients.rules import serving

few = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
how = st.fixed_dictionaries(
    {
        "reduction": st.sampled_from(["mean", "sum"]),
        "factor": st.sampled_from([1.0, 0.25]),
        "memory_budget": st.sampled_from([2**26, 3000, 1]),
    }
)
batch_sizes = st.integers(1, 4)
small = st.integers(1, 4)
freezing = st.sampled_from(["none", "none", "weight", "bias"])


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def frozen(module: nn.Module, which: str) -> nn.Module:
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name != which)
    return module.double()


# -- transposed convolutions ----------------------------------------------------------------------


@st.composite
def transposed_convolutions(draw):
    dims = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 2))
    each = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(dims))  # noqa: E731
    kernel, stride, dilation = each(1, 3), each(1, 3), each(1, 3)
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    layer = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1](
        groups * draw(st.integers(1, 2)),
        groups * draw(st.integers(1, 2)),
        kernel,
        stride,
        padding=tuple(draw(st.integers(0, r // 2)) for r in reach),
        output_padding=tuple(
            draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)
        ),
        groups=groups,
        bias=draw(st.booleans()),
        dilation=dilation,
    )
    return frozen(layer, draw(freezing) if layer.bias is not None else "none"), each(1, 4)


@settings(few, max_examples=40)
@given(transposed_convolutions(), batch_sizes, how)
def test_transposed_convolution(drawn, n, how):
    layer, size = drawn
    check(layer, (random(n, layer.in_channels, *size),), n, **how)


def test_transposed_convolution_with_many_positions_and_an_output_size():
    layer = nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1).double()
    fed = check(layer, (random(2, 2, 15, 14), [30, 28]), 2)
    assert fed.handles["weight"].positions == 210


def test_transposed_convolution_without_batch_dimension():
    check(nn.ConvTranspose1d(2, 3, 2).double(), (random(2, 4),), 1)


# -- bilinear, PReLU, instance normalisation, Conv1D ----------------------------------------------


@few
@given(batch_sizes, st.lists(small, max_size=2), small, small, small, freezing, how)
def test_bilinear(n, middle, first, second, outputs, freeze, how):
    layer = frozen(nn.Bilinear(first, second, outputs), freeze)
    check(layer, (random(n, *middle, first), random(n, *middle, second)), n, **how)


def test_bilinear_without_bias_and_with_keywords():
    layer = nn.Bilinear(2, 3, 4, bias=False).double()
    check(layer, (), 3, kwargs={"input1": random(3, 2), "input2": random(3, 3)})


@few
@given(batch_sizes, st.lists(small, max_size=2), small, st.booleans(), how)
def test_prelu(n, rest, channels, shared, how):
    layer = nn.PReLU(1 if shared else channels).double()
    check(layer, (random(n, channels, *rest),), n, **how)


def test_prelu_of_one_number_per_sample():
    check(nn.PReLU().double(), (random(4),), 4)


@few
@given(st.integers(1, 3), batch_sizes, small, st.booleans(), st.booleans(), freezing, how)
def test_instance_norm(dims, n, channels, train, track, freeze, how):
    kind = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[dims - 1]
    norm = frozen(kind(channels, affine=True, track_running_stats=track), freeze).train(train)
    if track:
        norm.running_mean.add_(random(channels))
        norm.running_var.mul_(1 + torch.rand(channels, dtype=torch.float64))
    check(norm, (random(n, channels, *(2, 3, 2)[:dims]),), n, **how)


def test_instance_norm_without_batch_dimension():
    check(nn.InstanceNorm2d(2, affine=True).double(), (random(2, 3, 4),), 1)


@few
@given(batch_sizes, st.lists(small, max_size=2), small, small, freezing, how)
def test_linear_layer_of_gpt2(n, middle, inputs, outputs, freeze, how):
    layer = frozen(Conv1D(outputs, inputs), freeze)
    fed = check(layer, (random(n, *middle, inputs),), n, **how)
    if freeze != "weight":
        assert type(fed.handles["weight"]) is Products


# -- bags of embeddings ---------------------------------------------------------------------------


def bag_by_bag(layer: nn.EmbeddingBag, bags, weights=None) -> Gradients:
    rows = []
    for i, bag in enumerate(bags):
        weight = None if weights is None else weights[i]
        output = layer(bag, torch.zeros(1, dtype=torch.int64), weight)
        rows.append(torch.autograd.grad(losses(output, 1).sum(), layer.weight)[0])
    return {"weight": torch.stack(rows)}


modes = st.sampled_from(["sum", "mean", "max"])


@few
@given(batch_sizes, small, modes, st.booleans(), how)
def test_embedding_bags_of_one_length(n, length, mode, padding, how):
    layer = nn.EmbeddingBag(4, 3, mode=mode, padding_idx=-1 if padding else None).double()
    index = torch.randint(4, (n, length))
    check(layer, (index,), n, bag_by_bag(layer, index), **how)


@settings(few, max_examples=30)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=4), modes, st.booleans(), st.booleans(), how
)
def test_embedding_bags_with_offsets(lengths, mode, padding, last, how):
    layer = nn.EmbeddingBag(
        5, 3, mode=mode, padding_idx=2 if padding else None, include_last_offset=last
    ).double()
    flat = torch.randint(5, (sum(lengths),))
    bags = list(flat.split(lengths))
    ends = torch.tensor(lengths).cumsum(0)
    offsets = torch.cat([ends.new_zeros(1), ends if last else ends[:-1]])
    twin = nn.EmbeddingBag(5, 3, mode=mode, padding_idx=layer.padding_idx).double()
    twin.weight = layer.weight
    expected = bag_by_bag(twin, bags)
    check(layer, (flat, offsets), len(lengths), expected, **how)


@few
@given(batch_sizes, small, st.booleans(), how)
def test_embedding_bags_with_weights(n, length, flat, how):
    layer = nn.EmbeddingBag(4, 3, mode="sum").double()
    index, weights = torch.randint(4, (n, length)), random(n, length)
    expected = bag_by_bag(layer, index, weights)
    if flat:
        args = index.reshape(-1), torch.arange(0, n * length, length), weights.reshape(-1)
    else:
        args = index, None, weights
    check(layer, args, n, expected, **how)


def test_embedding_bags_scaled_by_frequency():
    """The frequency is that in the whole batch."""
    layer = nn.EmbeddingBag(4, 3, mode="sum", scale_grad_by_freq=True).double()
    index = torch.tensor([[0, 1, 1], [1, 2, 3]])
    plain = nn.EmbeddingBag(4, 3, mode="sum").double()
    plain.weight = layer.weight
    frequency = torch.tensor([1.0, 3, 1, 1]).double().reshape(1, 4, 1)
    expected = {"weight": bag_by_bag(plain, index)["weight"] / frequency}
    check(layer, (index,), 2, expected)
    fed = feed(layer, (index,), 2)
    torch.testing.assert_close(fed.handles["weight"].mean(), layer.weight.grad / 2)


def test_other_bags_than_samples_are_refused():
    class Paired(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(4, 3)

        def forward(self, index):
            return self.bag(index.reshape(-1, 2)).reshape(len(index), -1)

    fed = feed(Paired().double(), (torch.randint(4, (3, 4)),), 3)
    assert "6 bags for 3 samples" in fed.refused["bag.weight"]


# -- called several times, shared -----------------------------------------------------------------


class Twice(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.ConvTranspose1d(2, 2, 3, padding=1), (2, 4)),
        (nn.PReLU(2), (2, 3)),
        (nn.InstanceNorm1d(2, affine=True), (2, 3)),
        (Conv1D(3, 3), (2, 3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_called_twice(layer, shape):
    check(Twice(layer).double(), (random(3, *shape),), 3)


def test_weight_shared_by_a_linear_layer_and_its_mirror_image():
    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(4, 3), Conv1D(4, 3)
            self.decoder.weight = self.encoder.weight

        def forward(self, x):
            return self.decoder(torch.tanh(self.encoder(x)))

    check(Autoencoder().double(), (random(3, 2, 4),), 3)


def test_a_class_of_another_library_is_found_by_its_name_and_only_if_it_computes_the_same():
    class Scaled(Conv1D):
        def forward(self, x):
            return 2 * super().forward(x)

    assert find_rule(Conv1D(2, 3)) is not None
    assert find_rule(Scaled(2, 3)) is None
    check(Scaled(2, 3).double(), (random(2, 3),), 2)


@pytest.mark.parametrize(
    ("module", "phrase"),
    [
        (nn.Linear(1, 1), "closed form (linear)"),
        (nn.ConvTranspose2d(1, 1, 1), "closed form (transposed_convolution)"),
        (Conv1D(1, 1), "closed form (transposed_linear)"),
        (nn.InstanceNorm1d(1, affine=True), "dense (instance_norm)"),
        (nn.MultiheadAttention(2, 1), "closed form, run again (attention)"),
        (
            nn.utils.parametrizations.weight_norm(nn.Linear(1, 1)),
            "closed form, pulled back (linear)",
        ),
        (Twice(nn.PReLU()), "replayed (generic)"),
    ],
)
def test_what_serves_a_module_is_said_in_a_phrase(module, phrase):
    assert serving(module) == phrase
