"""Parameters that a model uses itself: the uses are found in the graph, and nothing is run again."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torchvision
from gradients.anywhere import exact, refused
from torch import nn

from cockpit.gradients.rules.generic import Replay

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _never_replayed(monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("a module is run again")

    monkeypatch.setattr(Replay, "__init__", fail)


def per_sample(model, *args):
    output = model(*args)
    return (output.square() + torch.sin(output)).flatten(1).sum(1)


def tokens(*shape):
    return torch.randint(13, shape)


def images(n=4, size=16):
    return torch.randn(n, 3, size, size, dtype=torch.float64)


def next_token(model, index):
    logits = model(index)
    logits = getattr(logits, "logits", logits)
    losses = F.cross_entropy(logits.flatten(0, 1), index.flatten(), reduction="none")
    return losses.unflatten(0, index.shape).mean(1)


# -- models of libraries --------------------------------------------------------------------------


@pytest.mark.parametrize("length", [7, 4], ids=["longer", "as long as the batch"])
def test_gpt2_with_its_positions_and_tied_head(length):
    config = transformers.GPT2Config(
        n_layer=1, n_embd=8, n_head=2, vocab_size=13, n_positions=9, bos_token_id=0, eos_token_id=0,
        attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,
    )  # fmt: skip
    seen = exact(transformers.GPT2LMHeadModel(config), next_token, tokens(4, length))
    assert seen.kinds["transformer.wpe.weight"] == "Rows"


def test_t5_with_relative_positions():
    config = transformers.T5Config(
        vocab_size=13, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_decoder_layers=1, num_heads=2,
        dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip

    def losses(model, index):
        logits = model(input_ids=index, labels=index).logits
        return F.cross_entropy(logits.mT, index, reduction="none").mean(1)

    exact(transformers.T5ForConditionalGeneration(config), losses, tokens(4, 7))


def test_bert():
    config = transformers.BertConfig(
        num_hidden_layers=1, hidden_size=8, num_attention_heads=2, intermediate_size=8, vocab_size=13,
        max_position_embeddings=9, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    exact(
        transformers.BertModel(config),
        lambda model, x: model(x).pooler_output.square().sum(1),
        tokens(4, 7),
    )


@pytest.mark.parametrize("n", [1, 2, 4, 5])
def test_vision_transformer_with_class_token_and_positions(n):
    model = torchvision.models.VisionTransformer(16, 8, 1, 2, 8, 16, num_classes=5)
    nn.init.normal_(model.heads.head.weight)
    nn.init.normal_(model.class_token)
    for parameter in (model.class_token, model.encoder.pos_embedding):
        parameter.requires_grad_(n > 1)  # one sample is served by running the module again
    model.eval()
    exact(model, per_sample, images(n))


def test_swin_transformer_with_layers_used_as_functions_on_windows():
    model = torchvision.models.SwinTransformer(
        [4, 4], 8, [1, 1], [2, 2], [2, 2], num_classes=3, stochastic_depth_prob=0.0
    )
    exact(model, per_sample, images())


# -- operations -----------------------------------------------------------------------------------


class Using(nn.Module):
    """Features of tokens, `[N, T, 6]`, with a parameter used in some way."""

    def __init__(self, shape, use, length=5):
        super().__init__()
        self.table, self.head = nn.Embedding(13, 6), nn.Linear(6, 3)
        self.own = nn.Parameter(torch.rand(shape) + 0.5)
        self.use = use

    def forward(self, index):
        return self.head(torch.tanh(self.use(self.table(index), self.own)))


USES = {
    "added": ((5, 6), lambda x, p: x + p),
    "added twice": ((5, 6), lambda x, p: (x + p).sin() + p),
    "some of a table": ((9, 6), lambda x, p: x + p[: x.shape[1]]),
    "a row": ((3, 6), lambda x, p: x - 2 * x.sub(p[1], alpha=3)),
    "chosen rows": ((3, 6), lambda x, p: x + p[torch.tensor([2, 0, 2, 1, 0])]),
    "transposed": ((6, 5), lambda x, p: x + p.t()),
    "viewed": ((30,), lambda x, p: x + p.view(1, 5, 6)),
    "scale": ((6,), lambda x, p: x * p),
    "scale of positions": ((5, 1), lambda x, p: p * x),
    "softplus": ((6,), lambda x, p: x * F.softplus(p)),
    "masked": ((5, 6), lambda x, p: x + torch.where(torch.ones(5, 6).triu().bool(), p, 0.5)),
    "sigmoid of a number": ((), lambda x, p: x * torch.sigmoid(p)),
    "expanded": ((1, 1, 6), lambda x, p: torch.cat([p.expand(len(x), -1, -1), x], dim=1)),
    "expanded partly": ((1, 6), lambda x, p: torch.cat([p.expand(len(x), 2, -1), x], dim=1)),
    "repeated": ((1, 2, 6), lambda x, p: torch.cat([x, p.repeat(len(x), 1, 1)], dim=1)),
    "matrix": ((6, 6), lambda x, p: x @ p),
    "transposed matrix": ((6, 6), lambda x, p: x @ p.T),
    "linear with a bias": ((7, 6), lambda x, p: F.linear(x, p[:6], p[6])),
    "of flattened": ((6, 6), lambda x, p: F.linear(x.reshape(-1, 6), p).view_as(x)),
    "in place": ((6,), lambda x, p: (2 * x).add_(p)),
}


@pytest.mark.parametrize("case", USES)
def test_uses(case):
    shape, use = USES[case]
    exact(Using(shape, use), per_sample, tokens(4, 5))


@pytest.mark.parametrize("case", ["added", "some of a table", "scale", "expanded"])
def test_uses_where_there_are_as_many_positions_as_samples(case):
    shape, use = USES[case]
    exact(Using(shape, use), per_sample, tokens(5, 5))


def test_a_scale_of_positions_that_are_as_many_as_samples():
    exact(Using((5, 1), lambda x, p: x * p), per_sample, tokens(5, 5))


class Tied(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.table, self.body = nn.Embedding(13, 6), nn.Linear(6, 6)
        self.positions = nn.Embedding(9, 6)
        self.how = how
        if how == "assigned":
            self.head = nn.Linear(6, 13, bias=False)
            self.head.weight = self.table.weight

    def forward(self, index):
        where = torch.arange(index.shape[1])
        where = where if self.how == "one dimension" else where.unsqueeze(0)
        x = torch.tanh(self.body(self.table(index) + self.positions(where)))
        if self.how == "assigned":
            return self.head(x)
        return x @ self.table.weight.T if self.how == "product" else F.linear(x, self.table.weight)


@pytest.mark.parametrize("how", ["assigned", "product", "functional", "one dimension"])
@pytest.mark.parametrize("length", [5, 4, 8])
def test_tied_heads_and_positions(how, length):
    exact(Tied(how), next_token, tokens(4, length))


def test_parameter_of_a_layer_that_is_also_used_by_the_model():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return torch.tanh(self.layer(x)) @ self.layer.weight + self.layer.bias.sigmoid()

    exact(Both(), per_sample, torch.randn(5, 4, dtype=torch.float64))


# -- what is not served ---------------------------------------------------------------------------


def test_a_matrix_is_confirmed_or_refused():
    reasons = refused(Tied("functional"), next_token, tokens(4, 5), tell=False)
    assert reasons.keys() == {"table.weight"}
    assert "operation (Mm) whose output has shape [20, 13]" in reasons["table.weight"]
    assert "give individual_losses that the loss is made from" in reasons["table.weight"]


def test_a_product_of_parameters_is_not_taken_for_one_with_samples():
    class LowRank(nn.Module):
        """Its matrix has twice as many rows as there are samples."""

        def __init__(self):
            super().__init__()
            self.left, self.right = (nn.Parameter(torch.rand(8, 2)) for _ in range(2))

        def forward(self, x):
            return x @ (self.left @ self.right.T)

    reasons = refused(LowRank(), per_sample, torch.randn(4, 8, dtype=torch.float64), tell=False)
    assert "right" in reasons


def test_nothing_of_the_graph_is_kept():
    import gc
    import weakref

    from cockpit import Cockpit
    from cockpit.quantities import NormTest

    model = Tied("functional")
    watch = Cockpit(model, [NormTest()])
    gc.collect()
    gc.disable()
    try:
        losses = next_token(model, tokens(4, 5))
        loss = losses.mean()
        with watch(0, loss=loss, individual_losses=losses):
            loss.backward()
        node = weakref.ref(loss)
        del loss, losses
        assert node() is None
        assert watch._engine.recorder.calls() == []
    finally:
        gc.enable()
        watch.close()
