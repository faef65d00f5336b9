"""Gradients that arrive at several outputs of one module: they are reported once, when nothing is missing."""

from __future__ import annotations

from itertools import combinations
from threading import Thread

import pytest
import torch
from gradients.reference import agree, check, listening, losses, one_by_one
from torch import nn

from cockpit.gradients import Batch, Recorder

N = 4


class Three(nn.Module):
    """Has three outputs, made by `how`."""

    def __init__(self, how):
        super().__init__()
        self.weight, self.how = nn.Parameter(torch.randn(3)), how

    def forward(self, x):
        return self.how(x * self.weight, x)


class Chosen(nn.Module):
    """Only some of the outputs get a gradient."""

    def __init__(self, how, chosen):
        super().__init__()
        self.first, self.three = nn.Linear(3, 3), Three(how)
        self.chosen = chosen

    def forward(self, x):
        outputs = self.three(torch.tanh(self.first(x)))
        return [outputs[place] for place in self.chosen]


OUTPUTS = {
    "apart": lambda y, x: (y.sin(), y.cos(), x * y),
    "chained": lambda y, x: (y, z := y.sin(), z * x),
    "chained backwards": lambda y, x: ((z := y.sin()) * x, z, y),
    "of one node": lambda y, x: torch.stack([y, y.sin(), x * y]).unbind(),
    "of two nodes": lambda y, x: (*torch.stack([y, x]).unbind(), y.exp()),
    "one twice": lambda y, x: (y, y, y.sin()),
    "one without a graph": lambda y, x: (y, x.detach().cos(), y.sin()),
}
SUBSETS = [chosen for size in (1, 2, 3) for chosen in combinations(range(3), size)]


def random():
    return torch.randn(N, 3, dtype=torch.float64)


@pytest.mark.parametrize("how", OUTPUTS)
def test_some_or_all_outputs_get_gradients(how):
    for chosen in SUBSETS:
        if how == "one without a graph" and chosen == (1,):
            continue
        check(Chosen(OUTPUTS[how], chosen).double(), (random(),), N)


@pytest.mark.parametrize("how", OUTPUTS)
def test_each_backward_pass_reports_a_call_once(how):
    model = Three(OUTPUTS[how]).double()
    recorder, reported = Recorder(model), []
    loss = sum(output.sum() for output in model(random()))
    recorder.listen(lambda call, grads: reported.append(grads))
    for passes in (1, 2):
        loss.backward(retain_graph=passes == 1)
        assert len(reported) == passes
    assert [g is None for g in reported[0]] == [g is None for g in reported[1]]


def test_only_outputs_that_a_pass_asks_for_are_waited_for():
    model, x = Three(OUTPUTS["apart"]).double(), random()
    recorder, reported = Recorder(model), []
    outputs = model(x)
    recorder.listen(lambda call, grads: reported.append([g is not None for g in grads]))
    torch.autograd.grad(outputs[1].sum(), model.weight, retain_graph=True)
    torch.autograd.grad(sum(o.sum() for o in outputs), outputs[0], retain_graph=True)
    torch.autograd.grad(sum(o.sum() for o in outputs), model.weight)
    assert reported == [[False, True, False], [True, False, False], [True, True, True]]


def test_an_output_that_the_engine_comes_to_last_is_a_further_part():
    """Nodes made in a new thread have low numbers, and the engine leaves them for the end."""
    model, x = Chosen(OUTPUTS["apart"], (0, 1)).double(), random()
    recorder, arrived = Recorder(model), []
    outputs = model(x)
    thread = Thread(target=lambda: outputs.append(outputs.pop().view_as(x)))
    thread.start()
    thread.join()
    with listening(model, recorder, Batch(N, float(N))) as fed:
        collect = recorder.sink

        def sink(call, grads):
            if call.module is model.three:
                arrived.append([grad is not None for grad in grads])
            collect(call, grads)

        recorder.sink = sink
        losses(outputs, N).mean().backward()
    assert arrived == [[True, False, False], [False, True, False]]
    for name, g in one_by_one(model, (x,), N).items():
        agree(fed.handles[name], g, model.get_parameter(name))
