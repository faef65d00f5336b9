"""Models that torch.compile has compiled."""

from __future__ import annotations

import shutil
import warnings

import pytest
import torch
from gradients.anywhere import one_by_one
from torch import nn

from cockpit import BatchGradTransforms, Cockpit, CockpitWarning
from cockpit.quantities import NormTest

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch's compilers themselves


def mlp():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def squares(model, x):
    return model(x).square().sum(1)


def track(watch, called, x):
    """Return the individual gradients by the cockpit's names, and what was said."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CockpitWarning)
        for step in range(2):
            losses = squares(called, x)
            loss = losses.mean()
            dense = BatchGradTransforms({"dense": lambda g: g.dense()})
            with watch(step, dense, loss=loss, individual_losses=losses):
                loss.backward()
    found = {
        name: parameter.grad_batch_transforms["dense"]
        for name, parameter in watch.parameters.items()
        if hasattr(parameter, "grad_batch_transforms")
    }
    return found, [str(w.message) for w in caught if issubclass(w.category, CockpitWarning)]


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("given", ["compiled", "plain"])
def test_a_cockpit_that_is_made_before_the_first_call(backend, given):
    torch._dynamo.reset()
    model, x = mlp(), torch.randn(5, 3, dtype=torch.float64)
    compiled = torch.compile(model, backend=backend)
    watch = Cockpit(compiled if given == "compiled" else model)
    found, said = track(watch, compiled, x)
    watch.close()
    assert said == []
    same(found, one_by_one(model, squares, x))


def late(backend):
    """Track a model that was called before its cockpit was made."""
    torch._dynamo.reset()
    model, x = mlp(), torch.randn(5, 3, dtype=torch.float64)
    compiled = torch.compile(model, backend=backend)
    compiled(x).sum().backward()
    watch = Cockpit(compiled, [NormTest()])
    found, said = track(watch, compiled, x)
    watch.close()
    return found, said, one_by_one(model, squares, x)


def test_a_cockpit_that_is_made_after_the_first_call():
    found, said, _ = late("aot_eager")
    assert found == {}
    assert len(said) == 1
    assert "NormTest was not checked: no layer of the model was seen at work" in said[0]
    assert "compiled with torch.compile and called before" in said[0]
    assert "call torch._dynamo.reset()" in said[0]


def test_a_backend_that_leaves_the_graph_as_it_is_needs_no_hooks():
    found, said, expected = late("eager")
    assert said == []
    same(found, expected)


def test_a_reset_lets_the_hooks_in():
    torch._dynamo.reset()
    model, x = mlp(), torch.randn(5, 3, dtype=torch.float64)
    compiled = torch.compile(model, backend="aot_eager")
    compiled(x).sum().backward()
    watch = Cockpit(compiled)
    torch._dynamo.reset()
    found, said = track(watch, compiled, x)
    watch.close()
    assert said == []
    same(found, one_by_one(model, squares, x))


def test_names_are_those_of_the_model():
    model = mlp()
    watch = Cockpit(torch.compile(model, backend="eager"))
    assert list(watch.parameters) == [name for name, _ in model.named_parameters()]
    watch.close()
    model[0] = torch.compile(model[0], backend="eager")
    watch = Cockpit(model)
    assert list(watch.parameters) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    watch.close()


if shutil.which("g++"):

    def test_inductor():
        torch._dynamo.reset()
        model, x = mlp(), torch.randn(5, 3, dtype=torch.float64)
        compiled = torch.compile(model)
        watch = Cockpit(compiled)
        found, said = track(watch, compiled, x)
        watch.close()
        assert said == []
        same(found, one_by_one(model, squares, x))
