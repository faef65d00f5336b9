"""The arithmetic lower bound: against formulas, against counted brute force, and against what really runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cockpit import Cockpit, configuration
from cockpit.errors import InvalidArgument
from cockpit.profiling import LowerBound, lower_bound
from cockpit.quantities import (
    ActivationStats,
    GradHist1d,
    GradNorm,
    HessianSpectrum,
    HessMaxEV,
    HessTrace,
    InnerTest,
    Loss,
    NormTest,
    Quantity,
    TICDiag,
)

N = 8
MLP_WEIGHTS = [(6, 20), (20, 10), (10, 3)]


class Attending(nn.Module):
    """A language model in small."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 12)
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)
        self.norm = nn.LayerNorm(12)
        self.head = nn.Linear(12, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.norm(x)).mean(1)


def mlp() -> tuple[nn.Module, Tensor]:
    layers = [m for i, o in MLP_WEIGHTS for m in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers[:-1]), torch.randn(N, 6)


def cnn() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 25, 3)
    )
    return model, torch.randn(N, 2, 9, 9)


def attending() -> tuple[nn.Module, Tensor]:
    return Attending(), torch.randint(11, (N, 7))


MODELS = {"mlp": mlp, "cnn": cnn, "attending": attending}


def problem(name: str) -> tuple[nn.Module, Callable[[], Tensor]]:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    y = torch.randint(3, (N,))
    return model, lambda: F.cross_entropy(model(x), y, reduction="none")


def _matrix_vector(matrix: Any, vector: Any, *args: Any, **kwargs: Any) -> int:
    return 2 * matrix[0] * matrix[1]


def counted(work: Callable[[], Any]) -> float:
    """Return the multiply-adds of products and convolutions, by PyTorch's own counter."""
    more = {torch.ops.aten.mv: _matrix_vector}  # which it leaves out
    counting = FlopCounterMode(display=False, custom_mapping=more)
    with sdpa_kernel(SDPBackend.MATH), counting as counter:
        work()
    return counter.get_total_flops() / 2


def bound(name: str, *quantities: Quantity, **arguments: Any) -> LowerBound:
    return lower_bound(*problem(name), list(quantities), **arguments)


# -- the plain step -------------------------------------------------------------------------------


def test_the_plain_step_by_hand() -> None:
    products = [N * i * o for i, o in MLP_WEIGHTS]
    found = bound("mlp", Loss())
    assert found.forward == sum(products)
    assert found.backward == 2 * sum(products) - products[0]  # the data need no gradient
    assert found.ratio == float(found) == 1
    conv, linear = N * 25 * 6 * 2 * 9, N * 150 * 3
    found = bound("cnn", Loss())
    assert (found.forward, found.backward) == (conv + linear, conv + 2 * linear)
    t, e = 7, 12
    weights, scores = N * t * e * (4 * e + 3), 2 * N * t * t * e
    found = bound("attending", Loss())
    assert (found.forward, found.backward) == (weights + scores, 2 * (weights + scores))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind: Any) -> None:
    gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[kind]
    model, x = kind(5, 6, batch_first=True), torch.randn(N, 7, 5)
    found = lower_bound(model, lambda: model(x)[0].flatten(1).mean(1), [Loss()])
    assert found.forward == N * 7 * gates * 6 * (5 + 6)
    assert 1.3 * found.forward < found.backward <= 2 * found.forward


# -- statistics of individual gradients -----------------------------------------------------------


def elements(pairs: list[tuple[int, int]]) -> int:
    return sum(N * i * o for i, o in pairs)


BIASES = N * (20 + 10 + 3)


def test_statistics_of_dense_layers_by_hand() -> None:
    extra = bound("mlp", NormTest(), InnerTest(), TICDiag(), GradNorm()).extra
    assert extra["SquareNorms"] == sum(N * (i + o) for i, o in MLP_WEIGHTS) + BIASES
    pairs = [N * N * (i + o) / 2 for i, o in MLP_WEIGHTS]
    along = [N * i * o + N * min(i, o) for i, o in MLP_WEIGHTS]
    assert extra["DotMean"] == sum(map(min, pairs, along)) + BIASES
    assert extra["SumOfSquares"] == elements(MLP_WEIGHTS) + BIASES
    assert extra["GradientNorms"] == sum(i * o + o for i, o in MLP_WEIGHTS)
    to_outputs = elements(MLP_WEIGHTS) - N * 6 * 20
    assert extra["SampledDiagonal"] == to_outputs + elements(MLP_WEIGHTS) + BIASES


def test_statistics_of_positions_by_hand() -> None:
    """Of few positions by their Gram matrices, of many from dense pieces, which then serve all."""
    t, e = 7, 12
    extra = bound("attending", NormTest()).extra
    inside = [(e, 3 * e), (e, e), (e, 3)]
    grams = [N * t * t * (i + o) / 2 for i, o in inside]
    dense = [N * t * i * o + N * i * o for i, o in inside]
    assert [gram < piece for gram, piece in zip(grams, dense, strict=True)] == [True, True, False]
    vectors = N * (3 * e + e + 2 * e + 3) + N * t * e  # with the rows of the embedding
    products = [N * t * (i * o + min(i, o)) for i, o in inside]
    both = [
        min(gram + along, N * t * i * o + 2 * N * i * o)
        for gram, along, (i, o) in zip(grams, products, inside, strict=True)
    ]
    assert sum(extra.values()) == sum(both) + 2 * vectors


def test_drawn_elements_take_their_positions() -> None:
    conv, linear = 25, 1
    drawn = 40  # of four parameters, ten of each
    extra = bound("cnn", GradHist1d(samples=drawn)).extra
    assert extra["Histogram1d"] == 10 * conv + 10 * linear
    dense = bound("cnn", GradHist1d(samples=None)).extra
    assert sum(dense.values()) == N * 25 * 6 * 2 * 9 + N * 150 * 3


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("label", ["economy", "business"])
def test_a_tracked_step_takes_at_least_as_much(name: str, label: str) -> None:
    """What the counter hears of a tracked step: products and convolutions, and nothing elementwise."""
    model, losses = problem(name)
    found = lower_bound(model, losses, label)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Cockpit(model, configuration(label), optimizer=optimizer, audit=False)

    def step(number: int) -> None:
        optimizer.zero_grad()
        of_samples = losses()
        loss = of_samples.mean()
        with watch(number, loss=loss, individual_losses=of_samples):
            loss.backward()
        optimizer.step()

    step(0)
    really = counted(lambda: step(1))
    watch.close()
    elementwise = sum(
        found.extra.get(n, 0) for n in ("DistanceFromStart", "GradientNorms", "UpdateNorms")
    )
    # Gradients that are written out are squared element by element.
    squared = [n for n in ("SquareNorms", "SumOfSquares", "SampledDiagonal") if n in found.extra]
    elementwise += len(squared) * N * sum(p.numel() for p in model.parameters())
    # Biases, norm layers and rows of embeddings are not multiplied as matrices, and small.
    vectors = N * sum(p.numel() for p in model.parameters() if p.dim() < 2) + N * 7 * 12
    small = elementwise + len(found.extra) * vectors
    assert found.plain + sum(found.extra.values()) - small <= really


# -- curvature ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "attending"])
def test_products_with_the_hessian_as_counted(name: str) -> None:
    model, losses = problem(name)
    trained = list(model.parameters())
    with sdpa_kernel(SDPBackend.MATH):
        gradient = torch.autograd.grad(losses().mean(), trained, create_graph=True)
    vectors = [torch.ones_like(p) for p in trained]
    one = counted(lambda: torch.autograd.grad(gradient, trained, vectors, allow_unused=True))
    found = lower_bound(model, losses, [HessTrace(curvature="hutchinson", probes=10)])
    assert found.extra["HessianTrace"] == 10 * one
    again = lower_bound(model, losses, [HessTrace(curvature="hutch++", probes=4)])
    assert again.extra["HessianTrace"] == 8 * one


def test_products_with_the_ggn_as_counted() -> None:
    """A product with the Jacobian, written out layer by layer, and a backward pass."""
    found = bound("mlp", HessianSpectrum(matrix="ggn", probes=1, steps=5))
    weights = [torch.randn(o, i) for i, o in MLP_WEIGHTS]

    def tangents() -> None:
        value, tangent = torch.randn(N, 6), None
        for weight in weights:
            moved = value @ torch.ones_like(weight).T
            value, tangent = (
                value @ weight.T,
                moved if tangent is None else moved + tangent @ weight.T,
            )

    values = found.forward  # are there already
    assert found.extra["SpectralDensity"] == 5 * (counted(tangents) - values + found.backward)


def test_how_many_products_a_search_takes() -> None:
    least = bound("mlp", HessMaxEV()).extra["Extremes"]
    assert bound("mlp", HessMaxEV(), products={"HessMaxEV": 6}).extra["Extremes"] == 2 * least
    half = bound("mlp", HessMaxEV(max_samples=N // 2)).extra["Extremes"]
    assert half == least / 2


# -- the report -----------------------------------------------------------------------------------


def test_what_is_not_known_is_named() -> None:
    found = bound("mlp", ActivationStats(), NormTest())
    assert found.not_counted == ("OutputMoments",)
    assert "not counted: OutputMoments" in str(found)


def test_the_report() -> None:
    found = bound("mlp", NormTest())
    assert found.ratio == 1 + sum(found.extra.values()) / (found.forward + found.backward)
    assert json.loads(json.dumps(found.to_dict()))["ratio"] == found.ratio
    assert str(found).startswith(f"{found.ratio:.2f}x a plain step, at least")


def test_nothing_is_changed() -> None:
    model, losses = problem("mlp")
    losses().sum().backward()
    grads = [p.grad for p in model.parameters()]
    values = [g.clone() for g in grads]
    state = torch.get_rng_state()
    lower_bound(model, losses, "full")
    assert all(p.grad is g for p, g in zip(model.parameters(), grads, strict=True))
    assert all(map(torch.equal, grads, values))
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_step_without_products() -> None:
    weight = nn.Parameter(torch.ones(3))

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

    model = Scale()
    with pytest.raises(InvalidArgument, match="no arithmetic to compare with"):
        lower_bound(model, lambda: model(torch.ones(2, 3)).sum(1), [Loss()])
