"""Pieces under a memory budget, and what is never formed."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress

import pytest
import torch
from gradients.reference import feed, losses
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cockpit import Cockpit
from cockpit.gradients.products import Products
from cockpit.quantities import NormTest


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation returns."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self.numel = max(self.numel, value.numel())
        return result


CASES = {
    "linear": (lambda: nn.Linear(20, 30), lambda n: torch.randn(n, 20)),
    "tokens": (lambda: nn.Linear(20, 30), lambda n: torch.randn(n, 40, 20)),
    "convolution": (lambda: nn.Conv2d(4, 8, 3), lambda n: torch.randn(n, 4, 7, 7)),
    "many positions": (lambda: nn.Conv2d(4, 8, 3), lambda n: torch.randn(n, 4, 20, 20)),
    "generic": (lambda: nn.Bilinear(5, 6, 7), lambda n: (torch.randn(n, 5), torch.randn(n, 6))),
    "embedding": (lambda: nn.Embedding(50, 12), lambda n: torch.randint(50, (n, 3))),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("per_piece", [0.5, 3])
def test_pieces_respect_the_budget(case, per_piece):
    layer, inputs = CASES[case]
    layer, inputs = layer().double(), inputs(8)
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    args = tuple(a.double() if a.is_floating_point() else a for a in args)
    one = 8 * layer.weight.numel()
    budget = int(2 * per_piece * one)  # half of it is for what is computed from a piece
    handle = feed(layer, args, 8, memory_budget=budget).handles["weight"]
    pieces = list(handle.chunks())
    assert [len(piece) for _, piece in pieces] == ([3, 3, 2] if per_piece == 3 else [1] * 8)
    assert not handle.fits
    for _, piece in pieces:
        assert len(piece) == 1 or 8 * piece.numel() <= budget
    roomy = feed(layer, args, 8).handles["weight"]
    assert roomy.fits
    for name in ("square_norms", "sum_of_squares", "gram", "mean", "dot_mean", "min_max"):
        torch.testing.assert_close(getattr(handle, name)(), getattr(roomy, name)())


@pytest.mark.parametrize("n", [16, 200])
def test_nothing_as_large_as_all_gradients_is_formed(n):
    """One matrix product each: at most N·(I+O), N² or D numbers, but not N·D."""
    layer = nn.Linear(30, 20, bias=False)
    handle = feed(layer, (torch.randn(n, 30),), n).handles["weight"]
    assert type(handle) is Products
    allowed = max(n * 30, n * n if n < 100 else 0, 600, 4 * n)
    for name in ("square_norms", "sum_of_squares", "dot_mean", "abs_max", "mean", "min_max"):
        with Largest() as largest:
            getattr(handle, name)()
        assert largest.numel <= allowed < n * 600, name
    with Largest() as largest:
        handle.gram()
    assert largest.numel <= max(n * n, n * 30)
    with Largest() as largest:
        handle.dot(torch.randn(20, 30))
    assert largest.numel <= allowed


def test_tables_are_never_written_out():
    """Of a large vocabulary, only the rows that occur and one table for the sums."""
    layer = nn.Embedding(5000, 4)
    index = torch.randint(5000, (16, 5))
    handle = feed(layer, (index,), 16).handles["weight"]
    edges = torch.linspace(-1, 1, 11)
    for reduce in (
        handle.square_norms,
        handle.sum_of_squares,
        handle.mean,
        handle.dot_mean,
        handle.abs_max,
        handle.min_max,
        handle.gram,
        lambda: handle.dot(layer.weight),
        lambda: handle.histogram(edges),
        lambda: handle.histogram(edges, 100),
        lambda: handle.joint_histogram(layer.weight, (edges, edges)),
    ):
        with Largest() as largest:
            reduce()
        assert largest.numel <= 5000 * 4


def test_what_fits_is_computed_once_and_forgotten_on_release():
    layer, x = nn.Linear(4, 3).double(), torch.randn(5, 6, 4, dtype=torch.float64)
    handle = feed(layer, (x,), 5).handles["weight"]
    first = handle.dense()
    assert handle.dense() is first
    handle.release()
    assert handle.dense() is not first
    torch.testing.assert_close(handle.dense(), first)
    assert losses(layer(x), 5).shape == (5,)


# -- what goes with the graph, without the cycle collector ----------------------------------------


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x):
        h = self.first(x)
        return self.attention(h, h, h)[0], h


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.layer = nn.Linear(6, 6), nn.LSTM(6, 6, batch_first=True)

    def forward(self, x):
        h = self.first(x)
        return self.layer(h)[0], h


class Three(nn.Module):
    """Has three outputs, of which the second is computed from the first."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))

    def forward(self, x):
        return (y := x * self.weight), y.sin(), x.cos()


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.three = nn.Linear(6, 6), Three()

    def forward(self, x):
        h = self.first(x)
        y, z, _ = self.three(h)
        return y + z, h


@pytest.fixture
def counted_only():
    """References are counted, and no cycle is collected."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("make", [Attending, Recurrent, Several])
@pytest.mark.parametrize("step", ["forward only", "untracked", "tracked", "failed"])
def test_inputs_of_layers_go_with_the_graph(make, step, counted_only):
    model = make()
    watch = Cockpit(model, [NormTest()])
    for number in range(2):
        x = torch.randn(4, 3, 6)
        output, inside = model(x)
        each = output.square().mean((1, 2))
        loss = each.mean()
        seen = [weakref.ref(tensor) for tensor in (x, inside)]
        if step == "untracked":
            loss.backward()
        elif step == "tracked":
            with watch(number, loss=loss, individual_losses=each):
                loss.backward()
        elif step == "failed":
            with suppress(KeyError), watch(number, loss=loss, individual_losses=each):
                loss.backward()
                raise KeyError
        del x, output, inside, each, loss
        assert [reference() for reference in seen] == [None, None]
    watch.close()
