"""The rule for any module: what it computes, and what it refuses rather than get wrong."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from gradients.reference import check, feed, losses, one_by_one
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from cockpit.errors import Unsupported
from cockpit.gradients import Batch, Call
from cockpit.gradients.rules import generic
from cockpit.gradients.rules.generic import no_random_numbers

few = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
how = st.fixed_dictionaries(
    {
        "reduction": st.sampled_from(["mean", "sum"]),
        "factor": st.sampled_from([1.0, 0.25]),
        "memory_budget": st.sampled_from([2**26, 500, 1]),
    }
)
batch_sizes = st.integers(1, 4)


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


class Scale(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(*shape) + 0.5)

    def forward(self, x):
        return x * self.scale


class Bias(Scale):
    def forward(self, x):
        return torch.sin(x + self.scale)


class Pairing(nn.Module):
    """Two inputs, one of them a keyword, and two outputs."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3, 2, 4))
        self.frozen = nn.Parameter(torch.rand(3), requires_grad=False)

    def forward(self, x, *, other, double=False):
        paired = torch.einsum("ni,oij,nj->no", x, self.weight, other)
        return paired * self.frozen * (2 if double else 1), {"unused": paired.sin(), "none": None}


class First(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)[0]


class Counting(Scale):
    """Updates a buffer in forward, in place and by assignment."""

    def __init__(self, *shape):
        super().__init__(*shape)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.seen = self.seen + x.detach().sum()
        return x * self.scale


class Branching(Scale):
    """Python looks at the data, so that it cannot be mapped."""

    def forward(self, x):
        rows = [row * self.scale if row.sum() > 0 else row - self.scale**2 for row in x]
        return torch.stack(rows)


@few
@given(batch_sizes, how)
def test_elementwise(n, how):
    model = nn.Sequential(Bias(2, 3), Scale(3)).double()
    check(model, (random(n, 2, 3),), n, **how)


@few
@given(batch_sizes, st.booleans(), how)
def test_two_inputs_two_outputs_and_keywords(n, double, how):
    kwargs = {"other": random(n, 4), "double": double}
    check(First(Pairing()).double(), (random(n, 2),), n, kwargs=kwargs, **how)
    check(Pairing().double(), (random(n, 2),), n, kwargs=kwargs, **how)


class Chained(Scale):
    """Outputs that are computed from each other; what arrives at the first came through the others, too."""

    def forward(self, x):
        first = torch.sin(x * self.scale)
        second = first.square() + self.scale
        return second * first, first, second


@few
@given(batch_sizes, how)
def test_outputs_that_depend_on_each_other(n, how):
    check(Chained(3).double(), (random(n, 3),), n, **how)
    check(First(Chained(3)).double(), (random(n, 3),), n, **how)


@few
@given(batch_sizes, how)
def test_torch_modules_without_a_rule(n, how):
    check(nn.ConvTranspose1d(2, 3, 2).double(), (random(n, 2, 4),), n, **how)
    check(nn.Bilinear(2, 3, 2).double(), (random(n, 2), random(n, 3)), n, **how)
    check(nn.PReLU(3).double(), (random(n, 3, 2),), n, **how)
    check(nn.InstanceNorm1d(2, affine=True).double(), (random(n, 2, 4),), n, **how)


@few
@given(batch_sizes, how)
def test_python_control_flow(n, how):
    check(Branching(3).double(), (random(n, 3),), n, **how)


def test_buffers_are_updated_once():
    model, x = Counting(3).double(), random(4, 3)
    check(model, (x,), 4)
    assert model.calls == 1
    torch.testing.assert_close(model.seen, x.sum())


@few
@given(batch_sizes, how)
def test_called_several_times(n, how):
    scale = Scale(3)
    check(nn.Sequential(scale, nn.Tanh(), scale).double(), (random(n, 3),), n, **how)


class Token(nn.Module):
    """A parameter of the whole model beside its layers, as in vision transformers."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.rand(1, 1, 4))
        self.body = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        return self.head(self.body(x)[:, 0])


@few
@given(batch_sizes, how)
def test_parameter_of_the_whole_model_and_attention(n, how):
    check(Token().double(), (random(n, 3, 4),), n, **how)


def test_attention_that_returns_its_weights():
    attention = nn.MultiheadAttention(4, 2, batch_first=True).double()
    check(attention, (random(3, 2, 4),) * 3, 3)
    plain = nn.MultiheadAttention(4, 2, batch_first=True, bias=False, kdim=3, vdim=2).double()
    check(First(plain), (random(2, 3, 4), random(2, 5, 3), random(2, 5, 2)), 2)


def test_recurrent():
    class Last(First):
        def forward(self, x):
            return self.module(x)[0][:, -1]

    check(Last(nn.GRU(3, 2, batch_first=True)).double(), (random(3, 4, 3),), 3)
    check(First(nn.LSTM(2, 3, batch_first=True)).double(), (random(3, 4, 2),), 3)


# -- sharing --------------------------------------------------------------------------------------


class SharedWithChild(nn.Module):
    """The layer's part comes from the layer, and only the rest from the module itself."""

    def __init__(self):
        super().__init__()
        self.child = nn.Linear(3, 3, bias=False)
        self.weight = self.child.weight
        self.again = self.weight

    def forward(self, x):
        return torch.tanh(self.child(x)) @ self.weight + x @ self.again


@few
@given(batch_sizes, how)
def test_parameter_shared_with_a_submodule(n, how):
    check(SharedWithChild().double(), (random(n, 3),), n, **how)


class ChildTwice(nn.Module):
    """One layer under two names."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(3))
        self.first = nn.Linear(3, 3)
        self.second = self.first

    def forward(self, x):
        return self.second(torch.tanh(self.first(x * self.scale)))


def test_layer_with_two_names_is_left_as_it_was():
    model = ChildTwice().double()
    before = model.first.weight
    check(model, (random(3, 3),), 3)
    assert model.first.weight is before
    assert model.second.weight is before


def test_one_tensor_returned_twice_counts_once():
    class Both(Scale):
        def forward(self, x):
            y = x * self.scale
            return y, y

    check(Both(3).double(), (random(3, 3),), 3)


# -- refused rather than wrong --------------------------------------------------------------------


def reasons(model, args, n, **kwargs):
    fed = feed(model, args, n, **kwargs)
    assert not fed.refused.keys() & fed.handles.keys()
    return fed.refused


def test_parameters_used_without_a_call_of_their_module():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.other = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.other(F.linear(x, self.layer.weight))

    found = reasons(Functional().double(), (random(2, 3),), 2)
    assert found.keys() == {"layer.weight"}
    assert (
        "did not come through the output of the module that it belongs to" in found["layer.weight"]
    )


def test_output_of_another_kind():
    @dataclass
    class Output:
        y: torch.Tensor

    class Wrapping(Scale):
        def forward(self, x):
            return Output(x * self.scale)

    class Unwrapping(First):
        def forward(self, x):
            return self.module(x).y

    found = reasons(Unwrapping(Wrapping(3)).double(), (random(2, 3),), 2)
    assert "the output is no tensor, tuple, list or dict" in found["module.scale"]


def test_batch_norm_inside():
    class Normalized(Scale):
        def __init__(self):
            super().__init__(3, 1)
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x):
            return self.norm(x * self.scale + x.square())

    model = Normalized().double()
    found = reasons(model, (random(4, 3, 5),), 4)
    assert found.keys() == {"scale"}
    assert "does not depend on that sample alone" in found["scale"]
    check(model.eval(), (random(4, 3, 5),), 4)


def test_samples_in_the_second_dimension_that_are_as_many_as_the_first():
    class Running(Scale):
        def forward(self, x):
            return (x * self.scale).cumsum(0)

    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Running(3)

        def forward(self, x):
            return self.layer(x.transpose(0, 1)).transpose(0, 1)

    found = reasons(TimeFirst().double(), (random(4, 4, 3),), 4)
    assert "the samples are not in the first dimension" in found["layer.scale"]
    found = reasons(TimeFirst().double(), (random(4, 5, 3),), 4)
    assert "do not have the 4 samples" in found["layer.scale"]


def test_parameter_that_is_returned_as_it_is_gets_no_hooks():
    class Queries(Scale):
        def forward(self):
            return self.scale

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.queries = Queries(3)

        def forward(self, x):
            return x * self.queries()

    model = Model().double()
    assert reasons(model, (random(2, 3),), 2).keys() == {"queries.scale"}
    assert not model.queries.scale._backward_hooks


def test_random_numbers_of_an_unknown_state_are_refused_and_leave_the_global_state_alone():
    class Dropping(Scale):
        def forward(self, x):
            return F.dropout(x * self.scale, training=self.training)

    class DroppingByLoop(Branching):
        def forward(self, x):
            return F.dropout(super().forward(x), training=self.training)

    x, grad = random(4, 3), random(4, 3)
    for module in (Dropping(3).double(), DroppingByLoop(3).double()):
        state = torch.get_rng_state()
        with pytest.raises(Unsupported, match="the random state of its forward pass is not known"):
            generic(Call.of(module, (x,), {}), (grad,), Batch(4))
        assert torch.equal(torch.get_rng_state(), state)
        check(module.eval(), (x,), 4)


def test_switched_between_forward_and_backward():
    model = Scale(3).double()
    found = reasons(model, (random(2, 3),), 2, between=model.eval)
    assert "switched between train and eval mode" in found["scale"]


class Context(nn.Module):
    """Calls a layer with a buffer and an attribute that another one calls it with next."""

    def __init__(self, name, values):
        super().__init__()
        self.layer, self.name, self.values = Reading(), name, values

    def forward(self, x):
        for value in self.values:
            setattr(self.layer, self.name, value)
            x = self.layer(x)
        return x


class Reading(Scale):
    def __init__(self):
        super().__init__(3)
        self.factor = 1.0
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, x):
        return torch.tanh(x * self.scale.sin() + self.shift) * self.factor


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("factor", (2.0, 3.0)),
        ("factor", (torch.tensor(2.0), torch.tensor(3.0))),
        ("factor", (1.0, None)),
        ("shift", (torch.ones(3), torch.zeros(3))),
    ],
)
def test_what_a_forward_read_and_is_not_there_any_more(name, values):
    model = Context(name, values[:1]).double()
    check(model, (random(4, 3),), 4)
    model = Context(name, values).double()
    if values[-1] is None:
        model.values = values[:1]
        found = reasons(model, (random(4, 3),), 4, between=lambda: setattr(model.layer, name, None))
    else:
        found = reasons(model, (random(4, 3),), 4)
    assert f"its {name} was changed after its forward" in found["layer.scale"]


def test_buffers_modified_in_place_after_the_forward():
    model = Reading().double()
    found = reasons(model, (random(4, 3),), 4, between=lambda: model.shift.add_(1))
    assert "its shift was changed after its forward" in found["scale"]


def test_tensors_in_containers_modified_in_place_after_the_forward():
    class OfList(Scale):
        def forward(self, xs):
            return torch.where(xs[0] > 0, self.scale, self.scale.sin())

    class Model(nn.Module):
        def __init__(self, change):
            super().__init__()
            self.layer, self.change = OfList(3), change

        def forward(self, x):
            given = [x.clone()]
            y = self.layer(given)
            self.change(given)
            return y.sin()

    def replace(given):
        given[0] = given[0] + 1

    check(Model(lambda given: None).double(), (random(4, 3),), 4)
    for change in (lambda given: given[0].zero_(), replace):
        found = reasons(Model(change).double(), (random(4, 3),), 4)
        assert "its input was modified in place" in found["layer.scale"]


def test_a_forward_that_computes_with_what_it_changes():
    class Decaying(Reading):
        def forward(self, x):
            y = super().forward(x + 1)
            self.shift = self.shift + 0.5
            return y

    class InPlace(Reading):
        def forward(self, x):
            self.shift += 0.5
            return super().forward(x)

    class Counting(Reading):
        def forward(self, x):
            self.factor += 1
            return super().forward(x)

    for kind in (Decaying, InPlace, Counting):
        found = reasons(kind().double(), (random(4, 3),), 4)
        assert (
            "its forward changes a buffer or an attribute that it computes with" in found["scale"]
        )


def test_attributes_are_left_as_the_forward_left_them():
    class Caching(Scale):
        def forward(self, x):
            self.last = x * self.scale
            return self.last.sin()

    model, x = Caching(3).double(), random(4, 3)
    check(model, (x,), 4)
    torch.testing.assert_close(model.last, x * model.scale)


def test_caches_and_counters_of_several_calls():
    class Caching(Counting):
        def forward(self, x):
            self.last = super().forward(x)
            self.times = getattr(self, "times", 0) + 1
            return self.last.sin()

    layer = Caching(3)
    check(nn.Sequential(layer, nn.Tanh(), layer).double(), (random(4, 3),), 4)

    class Remembering(Scale):
        """Computes with what it left at its last call."""

        def forward(self, x):
            self.last = getattr(self, "last", torch.ones(())).cos()
            return (x * self.scale).sin() * self.last

    layer = Remembering(3)
    found = reasons(nn.Sequential(layer, nn.Tanh(), layer).double(), (random(4, 3),), 4)
    assert "its forward changes a buffer or an attribute" in found["0.scale"]


def in_place(kind):
    """A module that adds to its input in place, and another one whose backward needs that sum."""

    class Adding(Scale):
        def forward(self, x):
            x.add_(1.0)
            y = torch.logcumsumexp(x * self.scale, 1)
            return {
                "plain": lambda: y,
                "dropout": lambda: F.dropout(y, 0.5, self.training),
                "two outputs": lambda: (y, y * self.scale.sin()),
            }[kind]()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), Adding(3)

        def forward(self, x):
            return self.second(self.first(x) * 1.0)

    return Model().double()


@pytest.mark.parametrize("kind", ["plain", "dropout", "two outputs"])
def test_inputs_modified_in_place_by_the_forward(kind):
    """The gradients of the user are as without us."""
    model, x = in_place(kind), random(4, 3)
    torch.manual_seed(1)
    losses(model(x), 4).mean().backward()
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()
    torch.manual_seed(1)
    found = reasons(model, (x,), 4)
    assert found.keys() == {"second.scale"}
    assert "its forward modifies its input in place" in found["second.scale"]
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, grad)


def test_parameters_normalized_in_the_forward_are_not_touched_again():
    class Normalized(Scale):
        def forward(self, x):
            with torch.no_grad():
                self.scale /= self.scale.norm()
            return (x * self.scale).sin()

    model = Normalized(3).double()
    seen = []
    feed(model, (random(4, 3),), 4, between=lambda: seen.append(model.scale.detach().clone()))
    assert torch.equal(model.scale, seen[0])


def test_reasons_say_what_is_the_matter():
    class Others(Scale):
        """Reads what belongs to the samples and is not among its arguments."""

        def forward(self, x):
            return x * self.scale.sin() + self.context[0]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Others(3)

        def forward(self, x):
            self.layer.context = [x]
            return self.layer(x)

    found = reasons(Model().double(), (random(4, 3),), 4)
    assert (
        "reads what belongs to the samples and is not among its arguments" in found["layer.scale"]
    )

    class Once(Scale):
        def forward(self, x):
            return x * self.scale + self.given.pop()

    model = Once(3).double()
    model.given = [1.0]
    found = reasons(model, (random(4, 3),), 4)
    assert "cannot be run again on its arguments alone" in found["scale"]
    assert "IndexError" in found["scale"]


def test_random_numbers_leave_the_state_where_it_was():
    x = random(2)
    between = torch.get_rng_state()
    with pytest.raises(Unsupported, match="draws random numbers"), no_random_numbers(x):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), between)
    with pytest.raises(ValueError, match="probability"), no_random_numbers(x):
        F.dropout(torch.rand(3), 2.0)
    assert torch.equal(torch.get_rng_state(), between)


def test_loop_and_map_agree():
    torch.manual_seed(0)
    x, branching = random(4, 3), Branching(3).double()
    expected = one_by_one(branching, (x,), 4)["scale"]
    torch.testing.assert_close(feed(branching, (x,), 4).handles["scale"].dense(), expected)
