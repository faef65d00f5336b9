"""Checkpointed parts of a model: exact, every call once, and their inputs are not kept."""

from __future__ import annotations

import weakref

import pytest
import torch
from gradients.anywhere import exact, refused, watched
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from cockpit import Cockpit
from cockpit.gradients import Recorder
from cockpit.gradients.recomputation import running_part
from cockpit.quantities import NormTest


class Checkpointed(nn.Module):
    """Two parts that may share a layer, which is called twice in the first."""

    def __init__(self, reentrant, share=True):
        super().__init__()
        shared = nn.Linear(3, 3)
        self.start = nn.Linear(3, 3)
        self.one = nn.Sequential(shared, nn.Tanh(), nn.LayerNorm(3), nn.Tanh(), shared)
        self.two = nn.Sequential(shared if share else nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
        self.reentrant = reentrant

    def forward(self, x):
        x = self.start(x)
        for part in (self.one, self.two):
            x = checkpoint(part, x, use_reentrant=self.reentrant)
        return x


def squares(model, x):
    return model(x).square().sum(1)


def points():
    return torch.randn(4, 3, dtype=torch.float64)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
def test_exact(reentrant, steps):
    model = Checkpointed(reentrant=False, share=not reentrant).double()
    x = points()
    expected = exact(model, squares, x).gradients
    model.reentrant = reentrant
    watch = Cockpit(model, [NormTest()], strict=True)
    for step in range(steps):
        losses = squares(model, x)
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
    output = watch.get_output()[steps - 1]["NormTest"]
    watch.close()
    whole = torch.cat([g.flatten(1) for g in expected.values()], 1)
    mean = whole.mean(0)
    n, total, norm = len(x), whole.square().sum(), mean.square().sum()
    assert output == pytest.approx(float(((total - n * norm) / ((n - 1) * n * norm)).sqrt()))


def test_without_early_stop():
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        exact(Checkpointed(reentrant=False), squares, points())


class OfParameters(nn.Module):
    """A module without a rule."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return torch.tanh(x @ self.weight.sin())


class Dropping(OfParameters):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.3, self.training)


class Attending(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True, **settings)

    def forward(self, x):
        return self.inner(x, x, x)[0]


class FirstOutput(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


RUN_AGAIN = {
    "no rule": (OfParameters, (4, 4)),
    "no rule, dropout": (Dropping, (4, 4)),
    "attention": (Attending, (4, 3, 4)),
    "attention, dropout": (lambda: Attending(dropout=0.3, add_bias_kv=True), (4, 3, 4)),
    "RNN": (lambda: FirstOutput(nn.RNN(4, 4, batch_first=True)), (4, 3, 4)),
    "GRU": (lambda: FirstOutput(nn.GRU(4, 4, batch_first=True)), (4, 3, 4)),
    "LSTM": (lambda: FirstOutput(nn.LSTM(4, 4, batch_first=True, bidirectional=True)), (4, 3, 4)),
    "RNN cell": (lambda: nn.RNNCell(4, 4), (4, 4)),
    "GRU cell": (lambda: nn.GRUCell(4, 4), (4, 4)),
    "LSTM cell": (lambda: FirstOutput(nn.LSTMCell(4, 4)), (4, 4)),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(4, 4)), (4, 4)),
    "spectral norm": (lambda: parametrizations.spectral_norm(nn.Linear(4, 4)).eval(), (4, 4)),
    "orthogonal": (lambda: parametrizations.orthogonal(nn.Linear(4, 4)), (4, 4)),
    "transformer layer": (
        lambda: nn.TransformerEncoderLayer(4, 2, 5, dropout=0.2, batch_first=True),
        (4, 3, 4),
    ),
}


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("kind", RUN_AGAIN)
def test_modules_that_are_run_again_at_the_end_of_a_part(kind, early_stop):
    """Their gradient arrives before their inputs, which come while every tensor saved is counted."""
    make, shape = RUN_AGAIN[kind]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.start, self.last = nn.Linear(4, 4), make()

        def forward(self, x):
            return checkpoint(self.last, self.start(x), use_reentrant=False)

    def seeded(model, x):
        torch.manual_seed(1)
        return model(x).flatten(1).square().sum(1)

    with torch.utils.checkpoint.set_checkpoint_early_stop(early_stop):
        exact(Model(), seeded, torch.randn(*shape, dtype=torch.float64))


def test_a_module_is_not_run_while_its_part_runs_again():
    model = nn.Sequential(nn.Linear(4, 4), OfParameters()).double()
    recorder, running = Recorder(model), []
    recorder.listen(lambda call, grads: running.append((call.module, running_part())))
    x = torch.randn(3, 4, dtype=torch.float64)
    checkpoint(model, x, use_reentrant=False).sum().backward()
    assert running == [(model[1], None), (model[0], None)]
    recorder.close()


def test_part_of_a_part():
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.outer, self.inner = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.Tanh())

        def part(self, x):
            return self.outer(checkpoint(self.inner, x, use_reentrant=False)).sin()

        def forward(self, x):
            return checkpoint(self.part, x, use_reentrant=False)

    exact(Nested(), squares, points())


@pytest.mark.parametrize("reentrant", [False, True])
def test_inputs_inside_are_not_kept(reentrant):
    model, inside = Checkpointed(reentrant).double(), []
    note = model.one[1].register_forward_hook(lambda m, args, out: inside.append(weakref.ref(out)))
    recorder = Recorder(model)
    arrived = []
    recorder.listen(lambda call, grads: arrived.append(call.module))
    loss = squares(model, points()).sum()
    assert [reference() for reference in inside] == [None]
    loss.backward()
    note.remove()
    assert sorted(map(id, arrived)) == sorted(
        map(id, [model.start, model.one[0], model.one[2], model.one[4], model.two[0], model.two[2]])
    )
    recorder.close()


@pytest.mark.parametrize("listens", [False, True])
def test_inputs_of_the_second_run_are_not_kept_either(listens):
    model, inside = Checkpointed(reentrant=False).double(), []
    model.one[1].register_forward_hook(lambda m, args, out: inside.append(weakref.ref(out)))
    recorder = Recorder(model)
    if listens:
        recorder.listen(lambda call, grads: None)
    loss = squares(model, points()).sum()
    loss.backward()
    assert [reference() for reference in inside] == [None, None]
    del loss
    assert recorder.calls() == []


def test_a_layer_shared_by_reentrant_parts_is_refused():
    model = Checkpointed(reentrant=False).double()
    expected = exact(model, squares, x := points()).gradients
    model.reentrant = True
    seen = watched(model, squares, x)
    assert expected.keys() - seen.gradients.keys() <= {"one.0.weight", "one.0.bias"}
    assert any(
        "one.0.weight are not tracked: it got gradients from more than" in w for w in seen.warnings
    )
    assert any("use_reentrant=False" in w for w in seen.warnings)


def test_closing_between_the_passes_is_harmless():
    model = Checkpointed(reentrant=False).double()
    recorder = Recorder(model)
    loss = squares(model, points()).sum()
    recorder.close()
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_parameter_used_in_a_checkpointed_part_itself_is_refused():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.layer = nn.Parameter(torch.rand(3)), nn.Linear(3, 3)

        def part(self, x):
            return torch.tanh(self.layer(x)) * self.scale

        def forward(self, x):
            return checkpoint(self.part, x, use_reentrant=False)

    reasons = refused(Scaled(), squares, points())
    assert reasons.keys() == {"scale"}
    assert "saved tensor hooks" in reasons["scale"]


def test_samples_that_depend_on_each_other_are_found_behind_a_checkpoint():
    class Coupled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            h = checkpoint(self.layer, x, use_reentrant=False)
            return h - h.mean(0) / 2

    reasons = refused(Coupled(), squares, points())
    assert reasons.keys() == {"layer.weight", "layer.bias"}


@pytest.mark.filterwarnings("error")
def test_a_model_with_checkpointed_parts_can_be_saved(tmp_path):
    model = Checkpointed(reentrant=False).double()
    watch = Cockpit(model, [NormTest()])
    watched(model, squares, points(), steps=1)
    torch.save(model, tmp_path / "model.pt")
    watch.close()
