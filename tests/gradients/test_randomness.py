"""Layers that draw random numbers: the gradients of the sample losses of the very same forward pass."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from gradients.reference import Gradients, check, feed, losses
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from cockpit.errors import Unsupported
from cockpit.gradients import Batch, Call, find_rule
from cockpit.gradients.products import Products
from cockpit.gradients.stacked import Stacked

few = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
how = st.fixed_dictionaries(
    {
        "reduction": st.sampled_from(["mean", "sum"]),
        "factor": st.sampled_from([1.0, 0.25]),
        "memory_budget": st.sampled_from([2**26, 3000, 1]),
    }
)
batch_sizes = st.integers(1, 4)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def in_one_pass(model: nn.Module, args, n: int, kwargs=None) -> Gradients:
    """∇ℓ_i of the samples of one batch that is run once, with the random numbers that it draws."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    values = losses(model(*args, **(kwargs or {})), n)
    rows = [
        torch.autograd.grad(
            value, list(trained.values()), retain_graph=True, materialize_grads=True
        )
        for value in values
    ]
    return {
        name: torch.stack(column)
        for name, column in zip(trained, zip(*rows, strict=True), strict=True)
    }


def check_alike(model: nn.Module, args, n: int, **settings):
    """Check against the same forward pass, and that afterwards the random numbers go on as they would have."""
    kwargs = settings.get("kwargs")
    torch.manual_seed(1)
    expected = in_one_pass(model, args, n, kwargs)
    after = torch.get_rng_state()
    torch.manual_seed(1)
    fed = check(model, args, n, expected, **settings)
    assert torch.equal(torch.get_rng_state(), after)
    return fed


# -- modules without a rule -----------------------------------------------------------------------


class Dropping(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(*shape) + 0.5)

    def forward(self, x):
        return F.dropout(x * self.scale, 0.4, self.training) + torch.randn_like(x) * self.scale**2


class Noisy(Dropping):
    """Python looks at the data, and the samples in the reverse order draw."""

    def forward(self, x):
        drawn = [(row, torch.rand(())) for row in x.flip(0)]
        rows = [row * self.scale + u if row.sum() > 0 else row * u / self.scale for row, u in drawn]
        return torch.stack(rows).flip(0)


class Token(nn.Module):
    """A parameter of the whole model beside its layers, with dropout in all of them."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.rand(1, 1, 4))
        self.drop = nn.Dropout(0.3)
        self.body = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.3, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        return self.head(self.body(self.drop(x))[:, 0])


@few
@given(batch_sizes, st.sampled_from([Dropping, Noisy]), how)
def test_modules_that_draw(n, kind, how):
    check_alike(
        nn.Sequential(kind(3), nn.Linear(3, 3), kind(3)).double(), (random(n, 3),), n, **how
    )


class Chained(Dropping):
    """Outputs that are computed from each other; what arrives at the first came through the other, too."""

    def forward(self, x):
        first = F.dropout(x * self.scale, 0.4, self.training)
        return F.dropout(first * self.scale.sin(), 0.4, self.training), first


@few
@given(batch_sizes, how)
def test_outputs_that_depend_on_each_other(n, how):
    check_alike(Chained(3).double(), (random(n, 3),), n, **how)


def test_module_that_draws_called_twice():
    layer = Dropping(3)
    check_alike(nn.Sequential(layer, nn.Tanh(), layer).double(), (random(4, 3),), 4)


@settings(few, max_examples=5)
@given(batch_sizes, how)
def test_parameter_of_a_whole_model_with_dropout(n, how):
    check_alike(Token().double(), (random(n, 3, 4),), n, **how)


def test_drawing_module_that_couples_samples_is_refused():
    class Centred(Dropping):
        def forward(self, x):
            y = F.dropout(x * self.scale)
            return y - y.mean(0)

    class Indexed(nn.Module):
        """The coupling does not show in any gradient by the input, which is one of indices."""

        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.rand(5, 3))

        def forward(self, index):
            y = F.dropout(self.table[index])
            return y - y.sum(0)

    for model, x in ((Centred(3), random(4, 3)), (Indexed(), torch.tensor([0, 1, 2, 4]))):
        refused = feed(model.double(), (x,), 4).refused
        assert len(refused) == 1
        assert "does not depend on that sample alone" in next(iter(refused.values()))


def test_numbers_from_a_source_of_its_own_are_refused():
    class Own(Dropping):
        def __init__(self, *shape):
            super().__init__(*shape)
            self.generator = torch.Generator()

        def forward(self, x):
            return x * self.scale * torch.rand(x.shape, generator=self.generator)

    refused = feed(Own(3).double(), (random(4, 3),), 4).refused
    assert "draws random numbers" in refused["scale"]


def test_other_numbers_than_the_first_time_are_refused():
    class Growing(Dropping):
        """Draws more numbers each time that it is called."""

        calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.scale * torch.rand(self.calls, len(x), 3).prod(0)

    refused = feed(Growing(3).double(), (random(4, 3),), 4).refused
    assert "does not draw the random numbers that its forward drew" in refused["scale"]


def test_eval_mode_keeps_no_random_state():
    model = nn.Sequential(Dropping(3)).double().eval()
    torch.manual_seed(0)
    refused = feed(model, (random(4, 3),), 4).refused
    assert "the random state of its forward pass is not known" in refused["0.scale"]


# -- attention ------------------------------------------------------------------------------------


class Attending(nn.Module):
    """Attention in any layout; samples come and go in the first dimension."""

    def __init__(self, weights=True, average=True, **settings):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, **settings)
        self.weights, self.average = weights, average
        with torch.no_grad():
            for parameter in self.attention.parameters():
                parameter.copy_(torch.randn_like(parameter) / 2)

    def forward(self, query, key, value, padding=None, *, mask=None, causal=False):
        turn = (lambda x: x) if self.attention.batch_first else (lambda x: x.transpose(0, 1))
        turned = {id(x): turn(x) for x in (query, key, value)}  # the same object stays the same
        output, weights = self.attention(
            *(turned[id(x)] for x in (query, key, value)),
            key_padding_mask=padding,
            attn_mask=mask,
            need_weights=self.weights,
            average_attn_weights=self.average,
            is_causal=causal,
        )
        return [turn(output)] if weights is None else [turn(output), weights]


@st.composite
def attentions(draw, dropout):
    same = draw(st.booleans())
    settings = {
        "dropout": draw(st.sampled_from([0.0, 0.3])) if dropout is None else dropout,
        "bias": draw(st.booleans()),
        "add_bias_kv": draw(st.booleans()),
        "add_zero_attn": draw(st.booleans()),
        "batch_first": draw(st.booleans()),
        "kdim": None if same else 3,
        "vdim": None if same else 5,
        "weights": draw(st.booleans()),
        "average": draw(st.booleans()),
    }
    return Attending(**settings).double()


masks = st.sampled_from([None, "boolean", "additive", "per head", "causal"])


def mask_of(kind, n, target, source):
    if kind is None:
        return None
    if kind == "boolean":
        mask = torch.rand(target, source) < 0.4
        return mask.index_fill(1, torch.tensor([0]), False)
    if kind == "causal":
        return nn.Transformer.generate_square_subsequent_mask(target, dtype=torch.float64)
    return random(*((n * 2, target, source) if kind == "per head" else (target, source)))


@settings(few, max_examples=40)
@given(attentions(None), batch_sizes, st.booleans(), masks, st.booleans(), how)
def test_attention(model, n, itself, mask, pad, how):
    attention = model.attention
    kdim, vdim = attention.kdim, attention.vdim
    target = 3
    source = 3 if mask == "causal" else 5
    if itself and kdim == vdim == 4:
        query = key = value = random(n, target, 4)
        source = target
    else:
        query, key, value = random(n, target, 4), random(n, source, kdim), random(n, source, vdim)
        if kdim == vdim == 4 and itself is False and pad:
            value = key
    padding = torch.rand(n, source) < 0.3 if pad else None
    if pad:
        padding[:, 0] = False
        if mask not in (None, "boolean"):
            padding = torch.zeros(n, source, dtype=torch.float64).masked_fill(padding, -1e3)
    kwargs = {"mask": mask_of(mask, n, target, source), "causal": mask == "causal"}
    fed = check_alike(model, (query, key, value, padding), n, kwargs=kwargs, **how)
    for name, handle in fed.handles.items():
        if handle.shape.numel() > 12:
            assert isinstance(handle, Products | Stacked), name


def test_attention_without_batch_dimension():
    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, dropout=0.3, add_bias_kv=True)

        def forward(self, x):
            output, weights = self.attention(x, x, x)
            return [output, weights]

    check_alike(Single().double(), (random(3, 4),), 1)


@pytest.mark.parametrize("output", [0, 1])
def test_attention_of_which_one_output_is_used(output):
    class Part(Attending):
        def forward(self, x):
            return super().forward(x, x, x)[output]

    check_alike(Part(dropout=0.3, batch_first=True).double(), (random(3, 4, 4),), 3)


@pytest.mark.parametrize("trained", ["in_proj_weight", "in_proj_bias", "out_proj", "none of it"])
def test_attention_of_which_parts_are_frozen(trained):
    model = nn.Sequential(nn.Linear(4, 4), Itself(dropout=0.3, batch_first=True)).double()
    for name, parameter in model[1].named_parameters():
        parameter.requires_grad_(trained in name)
    check_alike(model, (random(3, 4, 4),), 3)


class Itself(Attending):
    def forward(self, x):
        return super().forward(x, x, x)[0]


def test_attention_called_twice():
    layer = Itself(dropout=0.3, batch_first=True)
    check_alike(nn.Sequential(layer, nn.Tanh(), layer).double(), (random(3, 4, 4),), 3)


@pytest.mark.parametrize("batch_first", [False, True])
def test_samples_in_the_wrong_dimension_are_refused(batch_first):
    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first)

        def forward(self, x):
            return self.attention(x.transpose(0, 1), *[x.transpose(0, 1)] * 2)[0].transpose(0, 1)

    if batch_first:
        refused = feed(Wrong().double(), (random(3, 5, 4),), 3).refused
        assert len(refused) == 4
        assert all("not that of the 3 samples" in reason for reason in refused.values())
    else:
        check_alike(Wrong().double(), (random(3, 5, 4),), 3)


class Translator(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        settings = {"d_model": 4, "nhead": 2, "dim_feedforward": 5, "batch_first": batch_first}
        self.encoder = nn.TransformerEncoderLayer(**settings, dropout=0.2)
        self.decoder = nn.TransformerDecoderLayer(**settings, dropout=0.2)
        self.batch_first = batch_first

    def forward(self, x, y):
        if not self.batch_first:
            x, y = x.transpose(0, 1), y.transpose(0, 1)
        output = self.decoder(y, self.encoder(x))
        return output if self.batch_first else output.transpose(0, 1)


@pytest.mark.parametrize("train", [True, False])
def test_transformer_layers(train):
    model = Translator(batch_first=True).double().train(train)
    check_alike(model, (random(3, 5, 4), random(3, 2, 4)), 3)


def test_attention_whose_random_state_is_not_known_is_refused_by_name():
    module, x = nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True), torch.randn(3, 2, 4)
    call = Call.of(module, (x, x, x), {})
    with pytest.raises(Unsupported, match=r"drops attention weights.*set its dropout to 0"):
        find_rule(module)(call, (torch.randn(3, 2, 4), None), Batch(3))
