"""Every layer rule × every reduction against a loop over the samples, in double precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from gradients.reference import check, one_by_one, shares
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from cockpit.gradients import find_rule
from cockpit.gradients.products import Products
from cockpit.gradients.rules.convolution import convolution
from cockpit.gradients.rules.linear import linear

few = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))

how = st.fixed_dictionaries(
    {
        "reduction": st.sampled_from(["mean", "sum"]),
        "factor": st.sampled_from([1.0, 0.25, 1024.0]),
        "memory_budget": st.sampled_from([2**26, 3000, 1]),
    }
)
batch_sizes = st.integers(1, 4)
small = st.integers(1, 4)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def frozen(module: nn.Module, which: str) -> nn.Module:
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name != which)
    return module


freezing = st.sampled_from(["none", "none", "weight", "bias"])


# -- linear
#
# ---------------------------------------------------------------------------------------------------------


@few
@given(batch_sizes, st.lists(small, max_size=3), small, small, st.booleans(), freezing, how)
def test_linear(n, middle, inputs, outputs, bias, freeze, how):
    layer = frozen(nn.Linear(inputs, outputs, bias=bias or freeze == "weight").double(), freeze)
    check(layer, (random(n, *middle, inputs),), n, **how)


@few
@given(small, small, how)
def test_linear_without_batch_dimension(inputs, outputs, how):
    check(nn.Linear(inputs, outputs).double(), (random(inputs),), 1, **how)


@few
@given(batch_sizes, st.integers(0, 9), how)
def test_linear_on_long_sequences_and_wide_layers(n, positions, how):
    """Both sides of the choice between token Gram matrices and dense pieces."""
    check(nn.Linear(12, 9).double(), (random(n, 1 + 3 * positions, 12),), n, **how)


# -- convolutions
#
# ---------------------------------------------------------------------------------------------------


@st.composite
def convolutions(draw, largest=7):
    dims = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    each = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(dims))  # noqa: E731
    kernel, stride, dilation = each(1, 3), each(1, 3), each(1, 2)
    padding = draw(st.sampled_from(["number", "tuple", "same", "valid"]))
    if padding == "number":
        padding = draw(st.integers(0, 2))
    elif padding == "tuple":
        padding = each(0, 2)
    if padding == "same":
        stride = (1,) * dims
    freeze = draw(freezing)
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](
        groups * draw(st.integers(1, 2)),
        groups * draw(st.integers(1, 2)),
        kernel,
        stride,
        padding,
        dilation,
        groups,
        bias=draw(st.booleans()) or freeze == "weight",
        padding_mode=draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])),
    )
    reach = max(d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True))
    size = each(max(3, reach), max(3, reach) + (largest if dims < 3 else 2))
    return frozen(layer.double(), freeze), size


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@settings(few, max_examples=60)
@given(convolutions(), batch_sizes, how)
def test_convolution(drawn, n, how):
    layer, size = drawn
    check(layer, (random(n, layer.in_channels, *size),), n, **how)


@settings(few, max_examples=6)
@given(
    st.sampled_from([((240,), 5), ((17, 16), 2), ((7, 6, 7), 1)]),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(0, 1),
    how,
)
def test_convolution_with_many_positions(size, groups, dilation, padding, how):
    shape, kernel = size
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(shape) - 1]
    layer = kind(2, 4, kernel, 1, padding, dilation, groups).double()
    fed = check(layer, (random(3, 2, *shape),), 3, **how)
    assert fed.handles["weight"].positions > 200


@settings(few, max_examples=4)
@given(st.sampled_from([(201,), (19, 17)]), how)
def test_convolution_with_many_positions_and_a_remainder(shape, how):
    kind = (nn.Conv1d, nn.Conv2d)[len(shape) - 1]
    layer = kind(1, 2, 2, stride=1, dilation=2, padding=1).double()
    check(layer, (random(2, 1, *shape),), 2, **how)
    layer = kind(2, 2, 3, stride=2, padding=2).double()  # the last column is not reached
    check(layer, (random(2, 2, *(2 * s + 1 for s in shape)),), 2, **how)


def test_depthwise_convolution():
    check(nn.Conv2d(6, 12, 3, groups=6, padding=1).double(), (random(3, 6, 5, 4),), 3)


def test_convolution_without_batch_dimension():
    check(nn.Conv2d(2, 3, 2).double(), (random(2, 4, 5),), 1)


def test_convolution_with_one_output_position():
    check(nn.Conv2d(2, 4, (3, 4), groups=2).double(), (random(4, 2, 3, 4),), 4)


# -- normalisation --------------------------------------------------------------------------------


@few
@given(
    st.integers(1, 3),
    st.integers(2, 4),
    small,
    st.booleans(),
    st.booleans(),
    freezing,
    how,
    st.data(),
)
def test_batch_norm(dims, n, channels, train, track, freeze, how, data):
    kind = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1]
    norm = frozen(kind(channels, track_running_stats=track).double(), freeze)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(torch.rand_like(parameter))
        if track:
            norm.running_mean.add_(random(channels))
            norm.running_var.mul_(1 + torch.rand(channels, dtype=torch.float64))
    rest = data.draw(st.sampled_from([(), (3,)])) if dims == 1 else (2,) * dims
    model = nn.Sequential(nn.Linear(rest[-1], rest[-1]).double() if rest else nn.Identity(), norm)
    model.train(train)
    x = random(n, channels, *rest)
    before = {name: b.clone() for name, b in norm.named_buffers()}
    expected = shares(model, (x,), n)
    check(model, (x,), n, expected, **how)
    if train and track:
        assert norm.num_batches_tracked == before["num_batches_tracked"] + 1


@settings(few, max_examples=8)
@given(batch_sizes, how)
def test_batch_norm_between_layers(n, how):
    """Shares add up to the gradient, and the layers before see the coupling."""
    model = nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2)
    ).double()
    x = random(n, 2, 3, 3)
    expected = shares(model, (x,), n)
    check(model, (x,), n, expected, **how)
    factor = how["factor"] * (1 if how["reduction"] == "mean" else n)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad / factor, expected[name].mean(0))


def test_batch_norm_without_parameters():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, affine=False)).double()
    x = random(4, 3)
    check(model, (x,), 4, shares(model, (x,), 4))


@few
@given(batch_sizes, st.lists(small, max_size=2), st.integers(1, 3), st.booleans(), freezing, how)
def test_layer_norm(n, middle, dims, bias, freeze, how):
    shape = (3, 2, 2)[:dims]
    layer = nn.LayerNorm(shape, bias=bias or freeze == "weight").double()
    check(frozen(layer, freeze), (random(n, *middle, *shape),), n, **how)


@few
@given(batch_sizes, st.lists(small, max_size=3), st.integers(1, 2), st.integers(1, 3), how)
def test_group_norm(n, rest, groups, each, how):
    layer = nn.GroupNorm(groups, groups * each).double()
    x = random(n, groups * each, *rest)
    if x[0].numel() == groups:  # one value per group: torch normalises it to 0
        return
    check(layer, (x,), n, **how)


@few
@given(
    batch_sizes, st.lists(small, max_size=2), st.integers(1, 2), st.sampled_from([None, 0.1]), how
)
def test_rms_norm(n, middle, dims, eps, how):
    shape = (3, 2)[:dims]
    layer = nn.RMSNorm(shape, eps=eps).double()
    check(layer, (random(n, *middle, *shape),), n, **how)


def test_norms_without_parameters_of_their_own_are_passed_by():
    model = nn.Sequential(
        nn.Linear(4, 4), nn.LayerNorm(4, elementwise_affine=False), nn.GroupNorm(2, 4, affine=False)
    ).double()
    check(model, (random(3, 4),), 3)


# -- embeddings
#
# -----------------------------------------------------------------------------------------------------


@few
@given(
    batch_sizes,
    st.lists(small, max_size=2),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
    how,
)
def test_embedding(n, rest, vocabulary, padding, by_frequency, how):
    layer = nn.Embedding(
        vocabulary, 3, padding_idx=0 if padding else None, scale_grad_by_freq=by_frequency
    ).double()
    index = torch.randint(vocabulary, (n, *rest))
    if n > 1 and not rest:
        index[0] = index[-1] = vocabulary - 1  # not 0, 1, 2, …, which looks like positions
    expected = shares(layer, (index,), n)  # the frequency is that in the whole batch
    check(layer, (index,), n, expected, **how)


def test_embedding_of_int32():
    check(nn.Embedding(5, 2).double(), (torch.tensor([[1, 4], [1, 1]], dtype=torch.int32),), 2)


# -- calls and sharing ----------------------------------------------------------------------------


class Twice(nn.Module):
    def __init__(self, layer, times=2, between=torch.tanh):
        super().__init__()
        self.layer, self.times, self.between = layer, times, between

    def forward(self, x):
        for _ in range(self.times):
            x = self.between(self.layer(x))
        return x


@few
@given(batch_sizes, st.integers(2, 3), st.lists(small, max_size=1), how)
def test_linear_called_several_times(n, times, middle, how):
    fed = check(Twice(nn.Linear(3, 3).double(), times), (random(n, *middle, 3),), n, **how)
    assert type(fed.handles["layer.weight"]) is Products


@settings(few, max_examples=8)
@given(batch_sizes, how)
def test_convolution_called_several_times(n, how):
    check(Twice(nn.Conv2d(2, 2, 3, padding=1).double()), (random(n, 2, 3, 4),), n, **how)


@few
@given(batch_sizes, how)
def test_norms_called_several_times(n, how):
    check(Twice(nn.Sequential(nn.LayerNorm(4), nn.RMSNorm(4)).double()), (random(n, 4),), n, **how)


class Head(nn.Module):
    """An embedding and an output layer that share their weight."""

    def __init__(self, vocabulary=6, width=3):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, index):
        return self.head(torch.tanh(self.embedding(index)))


@few
@given(batch_sizes, st.integers(1, 4), how)
def test_tied_embedding(n, length, how):
    check(Head().double(), (torch.randint(6, (n, length)),), n, **how)


@few
@given(batch_sizes, st.lists(small, max_size=1), how)
def test_two_layers_with_one_weight(n, middle, how):
    first, second = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
    second.weight = first.weight
    check(nn.Sequential(first, nn.Tanh(), second).double(), (random(n, *middle, 3),), n, **how)


def test_parameter_without_a_part_in_the_loss():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(2, 3), nn.Linear(2, 3)

        def forward(self, x):
            self.unused(x)
            return self.used(x)

    check(Unused().double(), (random(3, 2),), 3)


# -- in place
#
# -------------------------------------------------------------------------------------------------------


@few
@given(batch_sizes, how)
def test_activations_in_place(n, how):
    model = nn.Sequential(
        nn.Conv2d(2, 3, 2),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(12, 4),
        nn.ReLU(inplace=True),
    )
    check(model.double(), (random(n, 2, 3, 3),), n, **how)


class Residual(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x):
        x = self.first(x)
        skip = torch.tanh(x)
        y = self.second(skip)
        y += x
        return y.relu_()


@few
@given(batch_sizes, how)
def test_residual_in_place(n, how):
    model = Residual(nn.Linear(3, 4), nn.Linear(4, 4)).double()
    check(model, (random(n, 3),), n, **how)


class AddedTo(nn.Module):
    """`x += layer(x)`, where the layer keeps no reference to x itself."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        x = self.first(x)
        x += self.norm(2 * x)
        return x


def test_added_in_place():
    check(AddedTo().double(), (random(4, 3),), 4)


# -- which rule
#
# -----------------------------------------------------------------------------------------------------


class Renamed(nn.Linear):
    """The same computation."""


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * F.linear(x, self.weight, self.bias)


class Standardized(nn.Conv2d):
    """Weight standardisation: `forward` is the parent's, what it calls is not."""

    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, weight - weight.mean((1, 2, 3), keepdim=True), bias)


def test_subclasses_use_the_rule_only_if_they_compute_the_same():
    assert find_rule(nn.Linear(1, 1)) is linear
    assert find_rule(Renamed(1, 1)) is linear
    assert find_rule(Doubled(1, 1)) is None
    assert find_rule(nn.Conv2d(1, 1, 1)) is convolution
    assert find_rule(Standardized(1, 1, 1)) is None
    check(Renamed(3, 2).double(), (random(3, 3),), 3)
    check(Doubled(3, 2).double(), (random(3, 3),), 3)
    check(Standardized(2, 3, 2).double(), (random(3, 2, 4, 3),), 3)


def test_forward_replaced_on_one_object():
    layer = nn.Linear(3, 2).double()
    layer.forward = lambda x: 3 * F.linear(x, layer.weight, layer.bias)
    assert find_rule(layer) is None
    # The closure reads the layer, so a copy of it will not do for the reference.
    x = random(3, 3)
    same = Tripled(3, 2).double()
    same.load_state_dict(layer.state_dict())
    check(layer, (x,), 3, one_by_one(same, (x,), 3))


class Tripled(nn.Linear):
    def forward(self, x):
        return 3 * F.linear(x, self.weight, self.bias)
