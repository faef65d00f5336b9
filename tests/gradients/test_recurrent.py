"""Recurrent layers and cells against the gradients of the sample losses of the very same forward pass."""

from __future__ import annotations

import pytest
import torch
from gradients.reference import feed
from gradients.test_randomness import batch_sizes, check_alike, few, how, random
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from cockpit.errors import Unsupported
from cockpit.gradients import Batch, Call, find_rule
from cockpit.gradients.products import Products


class Running(nn.Module):
    """A recurrent layer in any layout; samples come and go in the first dimension."""

    def __init__(self, kind, lengths=None, enforce_sorted=False, **settings):
        super().__init__()
        self.layer, self.lengths, self.sorted = kind(3, 4, **settings), lengths, enforce_sorted

    def forward(self, x, *state):
        turn = (lambda x: x) if self.layer.batch_first else (lambda x: x.transpose(0, 1))
        x, state = turn(x), tuple(value.transpose(0, 1) for value in state)
        if self.lengths is not None:
            lengths = torch.tensor(self.lengths)
            x = pack_padded_sequence(x, lengths, self.layer.batch_first, self.sorted)
        given = (x,) if not state else (x, state if len(state) == 2 else state[0])
        output, last = self.layer(*given)
        if isinstance(output, PackedSequence):
            output = pad_packed_sequence(output, self.layer.batch_first)[0]
        last = last if isinstance(last, tuple) else (last,)
        return [turn(output), *(value.transpose(0, 1) for value in last)]


@st.composite
def layers(draw, lengths=None):
    kind = draw(st.sampled_from([nn.RNN, nn.LSTM, nn.GRU]))
    more = {}
    if kind is nn.RNN:
        more = {"nonlinearity": draw(st.sampled_from(["tanh", "relu"]))}
    if kind is nn.LSTM:
        more = {"proj_size": draw(st.sampled_from([0, 2]))}
    count = draw(st.integers(1, 3))
    model = Running(
        kind,
        lengths,
        num_layers=count,
        dropout=draw(st.sampled_from([0.0, 0.4])) if count > 1 else 0.0,
        bidirectional=draw(st.booleans()),
        batch_first=draw(st.booleans()),
        bias=draw(st.booleans()),
        **more,
    )
    return model.double().train(draw(st.booleans()))


def states(model, n):
    layer = model.layer
    rows = layer.num_layers * (2 if layer.bidirectional else 1)
    hidden = random(n, rows, layer.proj_size or 4)
    return (hidden, random(n, rows, 4)) if layer.mode == "LSTM" else (hidden,)


@settings(few, max_examples=30)
@given(layers(), batch_sizes, st.integers(1, 4), st.booleans(), how)
def test_layers(model, n, length, given_state, how):
    state = states(model, n) if given_state else ()
    fed = check_alike(model, (random(n, length, 3), *state), n, **how)
    assert type(fed.handles["layer.weight_ih_l0"]) is Products
    assert type(fed.handles["layer.weight_hh_l0"]) is Products


@settings(few, max_examples=20)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data(), st.booleans(), how)
def test_packed_sequences(lengths, data, given_state, how):
    model = data.draw(layers(lengths))
    n = len(lengths)
    state = states(model, n) if given_state else ()
    check_alike(model, (random(n, max(lengths), 3), *state), n, **how)


def test_packed_sequences_that_are_sorted():
    model = Running(nn.LSTM, [4, 2, 1], True, bidirectional=True, batch_first=True).double()
    check_alike(model, (random(3, 4, 3),), 3)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_layer_without_batch_dimension(kind):
    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = kind(3, 4, num_layers=2, dropout=0.3, batch_first=True)

        def forward(self, x):
            output, last = self.layer(x)
            return [output, last[0], last[1]] if isinstance(last, tuple) else [output, last]

    check_alike(Single().double(), (random(5, 3),), 1)


class Stepping(nn.Module):
    def __init__(self, cell, state=True):
        super().__init__()
        self.cell, self.head, self.state = cell, nn.Linear(4, 2), state

    def forward(self, x):
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state) if self.state else self.cell(step)
        return self.head(state[0] if isinstance(state, tuple) else state)


@few
@given(
    st.sampled_from(["tanh", "relu", "LSTM", "GRU"]),
    batch_sizes,
    st.integers(1, 3),
    st.booleans(),
    how,
)
def test_cells(kind, n, length, bias, how):
    if kind in ("LSTM", "GRU"):
        cell = getattr(nn, f"{kind}Cell")(3, 4, bias=bias)
    else:
        cell = nn.RNNCell(3, 4, bias=bias, nonlinearity=kind)
    fed = check_alike(Stepping(cell).double(), (random(n, length, 3),), n, **how)
    assert type(fed.handles["cell.weight_ih"]) is Products  # the steps are joined
    assert fed.handles["cell.weight_hh"].positions == length


def test_cell_without_state_and_without_batch_dimension():
    check_alike(Stepping(nn.GRUCell(3, 4), state=False).double(), (random(3, 1, 3),), 3)
    check_alike(nn.LSTMCell(3, 4).double(), (random(3), (random(4), random(4))), 1)


def test_frozen_parts_shared_weights_and_several_calls():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.GRU(3, 3, batch_first=True), nn.GRU(3, 3, batch_first=True)
            self.second.weight_hh_l0 = self.first.weight_hh_l0
            self.first.weight_ih_l0.requires_grad_(False)
            self.first.bias_hh_l0.requires_grad_(False)

        def forward(self, x):
            x = self.first(self.first(x)[0])[0]
            return self.second(x)[0]

    check_alike(Twice().double(), (random(3, 4, 3),), 3)


def test_samples_in_the_wrong_dimension_are_refused_with_the_way_out():
    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(3, 2)

        def forward(self, x):
            return self.layer(x)[0]

    refused = feed(Wrong().double(), (random(4, 5, 3),), 4).refused
    assert len(refused) == 4
    assert all("5 sequences or rows" in r and "batch_first" in r for r in refused.values())


def test_dropout_of_an_unknown_random_state_is_refused_with_the_way_out():
    module, x = nn.LSTM(3, 2, num_layers=2, dropout=0.3), torch.randn(5, 4, 3)
    with pytest.raises(Unsupported, match=r"stack single layers with nn\.Dropout between them"):
        find_rule(module)(Call.of(module, (x,), {}), (torch.randn(5, 4, 2), None, None), Batch(4))


def test_single_precision():
    torch.manual_seed(0)
    model, x = Running(nn.LSTM, num_layers=2, dropout=0.2, batch_first=True), torch.randn(3, 5, 3)
    torch.manual_seed(1)
    fed = feed(model, (x,), 3)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(fed.handles[name].mean(), parameter.grad)
