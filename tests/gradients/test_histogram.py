"""Exact counting, and counting of samples that are drawn."""

from __future__ import annotations

import itertools

import pytest
import torch
from gradients.reference import counts, feed, joint_counts, one_by_one
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

from cockpit.gradients import Batch, Dense, Histogram, IndividualGradients, Zero
from cockpit.gradients.convolution import ConvolutionGradients
from cockpit.gradients.products import Products
from cockpit.gradients.rows import Rows
from cockpit.histograms import BLOCK, Bins, Drawn, counted, scale_counts
from cockpit.transforms import Histogram1d, bin_edges

few = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
numbers = st.one_of(
    st.integers(-4, 4).map(float), st.floats(width=32), st.sampled_from([0.0, -0.0, 0.5])
)


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@few
@given(st.lists(numbers, max_size=40), st.integers(1, 8))
def test_against_numpy(values, bins):
    """Values on the edges, outside of them, and not finite at all."""
    values, edges = torch.tensor(values), torch.linspace(-2, 2, bins + 1)
    found = Histogram.of(values, edges)
    assert torch.equal(found.counts, counts(values, edges))
    assert found.counts.dtype == torch.int64
    assert found.nonfinite == (~values.isfinite()).sum()
    assert found.drawn == values.numel() == found.counts.sum() + found.nonfinite


@few
@given(
    st.floats(-1e3, 1e3, width=32),
    st.floats(2**-10, 1e3, width=32),
    st.integers(1, 120),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_bins_of_equal_width_are_found_as_others_are(low, size, bins, dtype):
    """On the edges, beside them by the least possible, far outside, at zero, and between."""
    limits = low, low + size
    edges = bin_edges(limits, bins, dtype, torch.device("cpu"))
    assume((edges.diff() > 0).all())
    infinite = torch.tensor(float("inf"), dtype=dtype)
    beside = [edges.nextafter(infinite), edges.nextafter(-infinite)]
    special = torch.tensor([0.0, -0.0, 1e30, -1e30, float("nan"), float("inf"), -float("inf")])
    inside = low + size * torch.rand(500, dtype=dtype)
    values = torch.cat([edges, *beside, special.to(dtype), inside])
    assert torch.equal(Bins(edges, limits).index(values), Bins(edges).index(values))
    finite = values[values.isfinite()]
    assert torch.equal(Bins(edges, limits).index(finite), Bins(edges).index(finite))


@pytest.mark.parametrize("limits", [(1e8, 1e8 + 32), (-1e-45, 1e-45), (0.0, 3e38)])
def test_bins_as_narrow_as_rounding(limits):
    edges = bin_edges(limits, 4, torch.float32, torch.device("cpu"))
    values = torch.cat([edges, edges - 1e-45, edges + 8, torch.zeros(1)])
    assert torch.equal(Bins(edges, limits).index(values), Bins(edges).index(values))


def test_what_is_drawn_is_counted_together_as_alone():
    limits = (-2.0, 2.0)
    bins = Bins(bin_edges(limits, 10, torch.float32, torch.device("cpu")), limits)
    drawn = [
        Drawn(torch.randn(size), bins, total) for size, total in [(300, 900), (7, 7), (20, 10**12)]
    ]
    drawn[0].values[3] = float("nan")
    done = Histogram.of(torch.randn(5), bins)
    found = counted([drawn[0], done, *drawn[1:]])
    assert found[1] is done
    for item, histogram in zip(drawn, [found[0], *found[2:]], strict=True):
        alone = Histogram.of(item.values, bins).scaled_to(item.total)
        assert torch.equal(histogram.counts, alone.counts)
        assert torch.equal(histogram.nonfinite, alone.nonfinite)
        assert histogram.drawn == alone.drawn


def test_bins_are_closed_on_the_left_and_the_last_on_both_sides():
    edges = torch.tensor([0.0, 1.0, 2.0, 3.0])
    values = torch.tensor(
        [-7.0, 0.0, 1.0, 2.0, 3.0, 8.0, float("nan"), float("inf"), -float("inf")]
    )
    found = Histogram.of(values, edges)
    assert found.counts.tolist() == [2, 1, 3]
    assert found.nonfinite == 3


def test_more_values_in_a_bin_than_single_precision_can_count():
    values = torch.zeros(2**24 + BLOCK + 3)
    found = Histogram.of(values, torch.linspace(-1, 1, 4))
    assert found.counts.tolist() == [0, len(values), 0]
    zero = Zero(Batch(3), torch.Size([2**40, 7]), torch.float32, torch.device("cpu"))
    edges = torch.linspace(-2, 2, 101)
    assert zero.histogram(edges).counts.max() == 21 * 2**40
    index, rows = torch.tensor([[1], [5]]), torch.full((2, 1, 2), 1.5)
    table = Rows(Batch(2), torch.Size([2**30, 2]), index, rows)
    found = table.histogram(torch.tensor([-1.0, 1.0, 2.0]))
    assert found.counts.tolist() == [2**32 - 4, 4]
    assert found.drawn == 2**32


def test_nonfinite_gradients_are_counted_apart_in_every_handle():
    a, b = random(3, 1, 4, 1), random(3, 1, 2, 1)
    b[1, 0, 0] = float("nan")
    b[2, 0, 1] = float("inf")
    handle = Products(Batch(3), torch.Size([2, 4]), a, b)
    edges = torch.linspace(-1, 1, 6, dtype=torch.float64)
    found = handle.histogram(edges)
    assert found.nonfinite == 8
    assert found.counts.sum() == 16
    theta = random(2, 4)
    theta[0, 1] = float("nan")
    joint = handle.joint_histogram(theta, (edges, edges))
    assert joint.nonfinite == 8 + 2  # θ is NaN for two samples whose gradient there is finite
    assert joint.counts.sum() == 14
    assert handle.abs_max().isnan()
    assert handle.min_max().isnan().all()


def test_nonfinite_values_in_the_joint_histograms_of_tables():
    edges = (torch.linspace(-1, 1, 4), torch.linspace(-2, 2, 5))
    theta = torch.randn(6, 2)
    theta[1, 0] = theta[4, 1] = float("nan")
    values = torch.randn(3, 2, 2)
    values[0, 0, 0] = float("inf")
    table = Rows(Batch(3), theta.shape, torch.tensor([[1, 2], [4, 4], [0, 1]]), values)
    dense = Dense(Batch(3), table.dense())
    assert torch.equal(
        table.joint_histogram(theta, edges).counts, dense.joint_histogram(theta, edges).counts
    )
    assert (
        table.joint_histogram(theta, edges).nonfinite
        == dense.joint_histogram(theta, edges).nonfinite
    )
    zero = Zero(Batch(3), theta.shape, torch.float32, theta.device)
    dense = Dense(Batch(3), torch.zeros(3, 6, 2))
    found, expected = zero.joint_histogram(theta, edges), dense.joint_histogram(theta, edges)
    assert torch.equal(found.counts, expected.counts)
    assert found.nonfinite == expected.nonfinite == 6


def test_zero_against_dense():
    zero = Zero(Batch(3), torch.Size([2, 2]), torch.float64, torch.device("cpu"))
    dense = Dense(Batch(3), torch.zeros(3, 2, 2, dtype=torch.float64))
    theta = random(2, 2)
    for name in (
        "mean",
        "square_norms",
        "sum_of_squares",
        "gram",
        "dot_mean",
        "abs_max",
        "min_max",
    ):
        assert torch.equal(getattr(zero, name)(), getattr(dense, name)()), name
    assert torch.equal(zero.dot(theta), dense.dot(theta))
    assert torch.equal(zero.dense(), dense.dense())
    edges = torch.linspace(-1, 1, 3, dtype=torch.float64)
    assert torch.equal(zero.histogram(edges).counts, dense.histogram(edges).counts)
    assert torch.equal(
        zero.joint_histogram(theta, (edges, edges)).counts,
        joint_counts(zero.dense(), theta, (edges, edges)),
    )


# -- scaled counts --------------------------------------------------------------------------------


@few
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), st.integers(1, 10**13))
def test_scaled_counts(drawn_counts, total):
    drawn = sum(drawn_counts)
    assume(drawn)
    scaled = scale_counts(torch.tensor(drawn_counts), total, drawn)
    assert scaled.dtype == torch.int64
    assert scaled.sum() == total
    assert (scaled >= 0).all()
    for count, value in zip(drawn_counts, scaled.tolist(), strict=True):
        assert abs(value - count * total / drawn) <= 1 + 1e-15 * total


# -- drawn samples --------------------------------------------------------------------------------


def embedding_rows(seed, budget):
    torch.manual_seed(0)
    index = torch.tensor([[0, 3, 3], [5, 1, 0], [2, 2, 2], [4, 5, 1]])
    batch = Batch(4, memory_budget=budget, seed=seed)
    return Rows(batch, torch.Size([9, 4]), index, 0.5 + random(4, 3, 4))


def linear(seed, budget):
    torch.manual_seed(0)
    batch = Batch(4, memory_budget=budget, seed=seed)
    return Products(batch, torch.Size([6, 5]), random(4, 1, 5, 1), random(4, 1, 6, 1))


def tokens(seed, budget):
    torch.manual_seed(0)
    batch = Batch(4, memory_budget=budget, seed=seed)
    return Products(batch, torch.Size([6, 5]), random(4, 1, 5, 3), random(4, 1, 6, 3))


def convolution(seed, budget):
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 6, (2, 3), groups=2).double()
    batch = Batch(4, memory_budget=budget, seed=seed)
    return ConvolutionGradients(batch, layer, random(4, 4, 4, 4), random(4, 6, 3, 2))


def dense(seed, budget):
    torch.manual_seed(0)
    return Dense(Batch(4, memory_budget=budget, seed=seed), random(4, 7, 6))


class Plain(IndividualGradients):
    """Nothing but `piece`."""

    def __init__(self, batch, values):
        super().__init__(batch, values.shape[1:], values.dtype, values.device)
        self.values = values

    def piece(self, samples):
        return self.values[samples]


def plain(seed, budget):
    torch.manual_seed(0)
    return Plain(Batch(4, memory_budget=budget, seed=seed), random(4, 7, 6))


@pytest.mark.parametrize("budget", [2**26, 1])
@pytest.mark.parametrize("make", [embedding_rows, linear, tokens, convolution, dense, plain])
def test_sampled_histogram(make, budget):
    """The counts sum to the total, and are right on average over seeds."""
    edges = torch.linspace(-2, 2, 5, dtype=torch.float64) + 0.0123
    samples, seeds = 24, 400
    g = make(0, budget).dense()
    exact = counts(g, edges).double()
    found = [make(seed, budget).histogram(edges, samples) for seed in range(seeds)]
    for histogram in found:
        assert histogram.counts.sum() + histogram.nonfinite == g.numel()
        assert histogram.drawn > 0
    if make is not embedding_rows:  # there, the zeros need not be drawn
        assert {histogram.drawn for histogram in found} != {g.numel()}
        assert all(histogram.drawn <= 1.5 * samples for histogram in found)
    table = torch.stack([histogram.counts for histogram in found]).double()  # [seeds, bins]
    error = (table.mean(0) - exact).abs()
    assert (error <= 4 * table.std(0) / seeds**0.5 + 0.5).all(), (table.mean(0), exact)
    assert torch.equal(make(3, budget).histogram(edges, samples).counts, found[3].counts)


@pytest.mark.parametrize("make", [embedding_rows, linear, tokens, convolution, dense, plain])
def test_as_many_samples_as_values_count_all(make):
    edges = torch.linspace(-2, 2, 5, dtype=torch.float64) + 0.0123
    handle = make(0, 2**26)
    found = handle.histogram(edges, handle.total)
    assert found.drawn == handle.total
    assert torch.equal(found.counts, counts(handle.dense(), edges))


@few
@given(
    st.integers(1, 8),
    st.lists(st.integers(1, 1000), min_size=1, max_size=12),
    st.integers(12, 20_000),
)
def test_quota(n, sizes, samples):
    """Small parameters in full, the others with even shares of the rest."""
    quota = Batch(n, sizes=sizes).quota(samples)
    totals = [n * size for size in sizes]
    taken = sum(min(total, quota) for total in totals)
    if sum(totals) <= samples:
        assert quota >= max(totals)
    else:
        assert samples - len(sizes) < taken <= samples


def test_quota_without_known_sizes_is_everything():
    assert Batch(4).quota(100) == 100


def test_transform():
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    x = random(3, 5)
    expected = one_by_one(model, (x,), 3)
    sizes = tuple(p.numel() for p in model.parameters())
    fed = feed(model, (x,), 3, sizes=sizes)
    edges = bin_edges((-1, 1), 9, torch.float64, torch.device("cpu"))
    drawn = 0
    for name, handle in fed.handles.items():
        assert torch.equal(Histogram1d(9, (-1, 1))(handle).counts, counts(expected[name], edges))
        sampled = Histogram1d(9, (-1, 1), samples=90)(handle)
        assert sampled.counts.sum() == expected[name].numel()
        drawn += sampled.drawn
    assert drawn <= 90
    assert list(itertools.accumulate(sizes))[-1] * 3 > 90
