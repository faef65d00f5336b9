"""The hooks on the model: when they record, what they leave behind, and what is refused by name."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
from gradients.reference import agree, check, feed, listening, losses, one_by_one
from torch import nn
from torch.utils.checkpoint import checkpoint

from cockpit.gradients import Batch, Recorder


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def mlp():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def test_nothing_is_recorded_without_gradients():
    model, calls = mlp(), []
    recorder = Recorder(model)
    recorder.listen(lambda *call: calls.append(call))
    for guard in (torch.no_grad, torch.inference_mode):
        with guard():
            output = model(random(5, 3))
        assert not output._backward_hooks
    assert recorder.batch_sizes() == set()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model(random(5, 3).requires_grad_()).sum().backward()
    assert recorder.batch_size == 5
    assert calls == []


def test_the_hook_says_nothing_while_nobody_listens():
    model = mlp()
    recorder = Recorder(model)
    losses(model(random(2, 3)), 2).mean().backward()
    assert recorder.batch_size is None
    recorder.listen(lambda *call: pytest.fail("the listener has left"))
    recorder.stop()
    losses(model(random(2, 3)), 2).mean().backward()
    assert recorder.batch_size is None


def test_batch_sizes_are_those_of_graphs_that_live_and_of_the_one_that_is_pulled_back():
    model = mlp()
    recorder = Recorder(model)
    small, large = model(random(2, 3)), model(random(5, 3))
    assert recorder.batch_sizes() == {2, 5}
    recorder.listen(lambda call, grads: None)
    small.sum().backward()
    assert recorder.batch_size == 2
    recorder.listen(lambda call, grads: None)
    assert recorder.batch_size is None
    large.sum().backward()
    assert recorder.batch_size == 5
    del small, large
    assert recorder.batch_sizes() == set()


def test_hooks_are_gone_after_close():
    model = mlp()
    recorder = Recorder(model)
    output = model(random(2, 3))
    recorder.close()
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_hooks_with_kwargs
    assert not model(random(2, 3))._backward_hooks
    output.sum().backward()  # a graph from before is harmless
    recorder.close()


def test_a_dropped_recorder_keeps_nothing_alive():
    gc.collect()
    gc.disable()
    try:
        model = mlp()
        recorder = Recorder(model)
        x = random(2, 3)
        output = model(x)
        seen = [weakref.ref(thing) for thing in (model, recorder, x, output)]
        del model, recorder, x, output
        assert [reference() for reference in seen] == [None] * 4  # without the cycle collector
    finally:
        gc.enable()


def test_the_model_does_not_keep_the_recorder_alive():
    model = mlp()
    recorder = Recorder(model)
    output = model(random(2, 3))
    gone = weakref.ref(recorder)
    del recorder
    assert gone() is None
    output.sum().backward()
    assert not model(random(2, 3))._backward_hooks


def test_a_graph_dies_while_the_recorder_lives():
    gc.collect()
    gc.disable()
    try:
        model = mlp()
        recorder = Recorder(model)
        x = random(2, 3)
        output = model(x)
        losses(output, 2).sum().backward()
        seen = [weakref.ref(thing) for thing in (x, output)]
        del x, output
        assert [reference() for reference in seen] == [None, None]
        recorder.close()
    finally:
        gc.enable()


def test_the_collector_leaves_no_cycle():
    gc.collect()
    gc.disable()
    try:
        model, x = mlp(), random(2, 3)
        fed = feed(model, (x,), 2)
        fed.handles["0.weight"].dense()
        seen = [weakref.ref(x), *(weakref.ref(handle) for handle in fed.handles.values())]
        del fed, x
        assert {reference() for reference in seen} == {None}
    finally:
        gc.enable()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_of_the_model_do_not_report(copied):
    model, calls = mlp(), []
    recorder = Recorder(model)
    recorder.listen(lambda *call: calls.append(call))
    twin = copied(model)
    output = twin(random(2, 3))
    assert not output._backward_hooks
    losses(output, 2).sum().backward()
    assert calls == []
    assert recorder.batch_sizes() == set()
    losses(model(random(2, 3)), 2).sum().backward()
    assert len(calls) == 2


def test_recording_and_reducing_draw_no_global_random_numbers():
    model, x = mlp(), random(4, 3)
    state = torch.get_rng_state()
    fed = feed(model, (x,), 4)
    for handle in fed.handles.values():
        handle.sample(3)
        handle.histogram(torch.linspace(-1, 1, 5), samples=2)
    assert torch.equal(state, torch.get_rng_state())


def test_several_recorders_on_one_model():
    model, x = mlp(), random(4, 3)
    first, second = Recorder(model), Recorder(model)
    loss = losses(model(x), 4).mean()
    with (
        listening(model, first, Batch(4, 4.0)) as one,
        listening(model, second, Batch(4, 8.0)) as two,
    ):
        loss.backward()
    expected = one_by_one(model, (x,), 4)
    for name, parameter in model.named_parameters():
        agree(one.handles[name], expected[name], parameter)
        agree(two.handles[name], 2 * expected[name], parameter)


def test_parameters_arrive_without_the_accumulation_hook():
    model, x = mlp(), random(4, 3)
    recorder = Recorder(model)
    loss = losses(model(x), 4).mean()
    with listening(model, recorder, Batch(4, 4.0), early=False) as fed:
        loss.backward()
    for name, g in one_by_one(model, (x,), 4).items():
        agree(fed.handles[name], g, model.get_parameter(name))


class Outputs(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.layer, self.wrap = mlp(), wrap

    def forward(self, x):
        y = self.layer(x)
        return self.wrap(y, x)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda y, x: (y, y.sin()),
        lambda y, x: [y, None],
        lambda y, x: {"loss": y, "more": {"deep": (y.cos(),)}},
    ],
    ids=["tuple", "list", "dict"],
)
def test_kinds_of_output(wrap):
    check(Outputs(wrap), (random(3, 3),), 3)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.body = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 4), nn.Tanh())
            self.on = False

        def forward(self, x):
            x = self.first(x)
            return checkpoint(self.body, x, use_reentrant=reentrant) if self.on else self.body(x)

    model, x = Checkpointed().double(), random(3, 3)
    expected = one_by_one(model, (x,), 3)
    model.on = True
    check(model, (x,), 3, expected)


# -- refusals -------------------------------------------------------------------------------------


class Positions(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(9, 3), nn.Embedding(9, 3)
        self.make = make

    def forward(self, index):
        return torch.tanh(self.tokens(index) + self.positions(self.make(*index.shape)))


def test_positions_that_are_fed_once_for_all_samples():
    for length, make in [
        (3, lambda n, t: torch.arange(t).unsqueeze(0)),
        (3, lambda n, t: torch.arange(t)),
    ]:
        fed = feed(Positions(make).double(), (torch.randint(9, (4, length)),), 4)
        assert fed.refused.keys() == {"positions.weight"}
        assert (
            "whose first dimension is not that of the 4 samples" in fed.refused["positions.weight"]
        )
    fed = feed(Positions(lambda n, t: 2 + torch.arange(t)).double(), (torch.randint(9, (4, 4)),), 4)
    assert fed.refused.keys() == {"positions.weight"}
    assert "counts up from 2" in fed.refused["positions.weight"]
    assert "positions of shape [samples, length]" in fed.refused["positions.weight"]
    expanded = Positions(lambda n, t: torch.arange(t).expand(n, t)).double()
    check(expanded, (torch.randint(9, (4, 4)),), 4)


@pytest.mark.parametrize("layer", [nn.Linear(3, 3), nn.LayerNorm(3), nn.GroupNorm(1, 3)])
def test_first_dimension_is_not_that_of_the_samples(layer):
    class Folded(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])

    fed = feed(Folded().double(), (random(4, 2, 3),), 4)
    assert fed.refused.keys() == {"layer.weight", "layer.bias"}
    for reason in fed.refused.values():
        assert "its input has shape [8, 3], in which the 4 samples may be in dimension 0" in reason


def test_input_modified_in_place_after_the_forward_pass():
    class Overwriting(nn.Module):
        """Only the bias is trained, so that autograd has no need of the input itself."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.layer.weight.requires_grad_(False)

        def forward(self, x):
            x = 2 * x
            y = self.layer(x)
            x.zero_()
            return y + x

    fed = feed(Overwriting().double(), (random(4, 3),), 4)
    assert fed.refused == {"layer.bias": "its input was modified in place after the forward pass"}


def test_handles_know_that_their_input_was_modified_later():
    model, x = mlp(), random(4, 3)
    handle = feed(model, (x,), 4).handles["0.weight"]
    assert handle.intact
    x.add_(1)
    assert not handle.intact


def test_more_than_one_backward_pass():
    model, x = mlp(), random(4, 3)
    recorder = Recorder(model)
    loss = losses(model(x), 4).mean()
    with listening(model, recorder, Batch(4, 4.0)) as fed:
        loss.backward(retain_graph=True)
        loss.backward()
    assert fed.refused.keys() == {name for name, _ in model.named_parameters()}
    for reason in fed.refused.values():
        assert "it got gradients from more than one backward pass; run one" in reason


def test_one_refusal_leaves_the_other_parameters_alone():
    x = torch.randint(9, (4, 3))
    model = Positions(lambda n, t: torch.arange(t)).double()
    fed = feed(model, (x,), 4)
    agree(
        fed.handles["tokens.weight"],
        one_by_one(model, (x,), 4)["tokens.weight"],
        model.tokens.weight,
    )
