"""Losses that the model computes, outputs and batches of any form, and batches of any size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from loops.probe import (
    EVERYTHING,
    Follower,
    Gradients,
    Losses,
    assert_close,
    batch,
    by_samples,
    cross_entropies,
    flat,
    not_checked,
    perceptron,
)
from torch import Tensor, nn

from cockpit import Cockpit, CockpitWarning, quantities
from cockpit.quantities import Quantity


@dataclass
class Output:
    loss: Tensor | None
    logits: Tensor


class Pair(NamedTuple):
    loss: Tensor | None
    logits: Tensor


FORMS: dict[str, tuple[Callable[[Tensor | None, Tensor], Any], Callable[[Any], Tensor]]] = {
    "dataclass": (Output, lambda out: out.loss),
    "named tuple": (Pair, lambda out: out.loss),
    "tuple": (lambda loss, logits: (loss, logits), lambda out: out[0]),
    "list": (lambda loss, logits: [loss, logits], lambda out: out[0]),
    "dict": (lambda loss, logits: {"loss": loss, "logits": logits}, lambda out: out["loss"]),
    "the loss alone": (lambda loss, logits: loss, lambda out: out),
}


class WithLoss(nn.Module):
    """A model that is called with its labels, and returns its loss with the logits."""

    def __init__(self, form: str, reduction: str = "mean") -> None:
        super().__init__()
        self.net, self.form, self.reduction = perceptron(), form, reduction

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.net(inputs)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits, labels, reduction=self.reduction)
        return FORMS[self.form][0](loss, logits)


@pytest.mark.parametrize("keywords", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_outputs_of_any_form(form: str, keywords: bool) -> None:
    """Called by keywords or by position; nothing but the loss is known."""
    model = WithLoss(form)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Cockpit(model, [Gradients(), quantities.NormTest(), quantities.Loss()], optimizer=opt)
    truths = []
    for step in range(3):
        x, y = batch()
        truths.append(
            by_samples(model, lambda i, x=x, y=y: F.cross_entropy(model.net(x[i]), y[i]), len(x))
        )
        opt.zero_grad()
        out = model(inputs=x, labels=y) if keywords else model(x, y)
        loss = FORMS[form][1](out)
        with watch(step, loss=loss):
            loss.backward()
        opt.step()
    for step, (g, losses) in enumerate(truths):
        found = watch.get_output()[step]
        assert_close(found["Gradients"]["g"], g, atol=1e-12)
        assert_close(found["Loss"], losses.mean())


@pytest.mark.parametrize("beside", [True, False])
def test_a_sum_that_the_model_computes(beside: bool) -> None:
    """Told by the samples' losses, computed from the logits, or by the user."""
    model = WithLoss("dataclass", "sum")
    x, y = batch()
    g, losses = by_samples(model, lambda i: F.cross_entropy(model.net(x[i]), y[i]), len(x))
    tracked = [Gradients(), Losses()] if beside else [Gradients()]
    watch = Cockpit(model, tracked, reduction=None if beside else "sum")
    out = model(x, labels=y)
    given = {}
    if beside:
        given["individual_losses"] = F.cross_entropy(out.logits.detach(), y, reduction="none")
    with watch(0, loss=out.loss, **given):
        out.loss.backward()
    found = watch.get_output()[0]
    assert_close(found["Gradients"]["g"], g, atol=1e-12)
    assert_close(found["Gradients"]["mean"], losses.mean())
    if beside:
        assert_close(found["Losses"], losses)


class Tagger(nn.Module):
    """A label for each token; those of the padding are ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.block = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Output:
        padding = labels == -100
        logits = self.head(self.block(self.embed(input_ids), src_key_padding_mask=padding))
        return Output(F.cross_entropy(logits.transpose(1, 2), labels), logits)


@pytest.mark.parametrize("connected", [True, False])
def test_ignored_tokens_weight_the_samples(connected: bool) -> None:
    """A mean over all tokens is a weighted mean over the samples: those with more tokens count more."""
    torch.manual_seed(0)
    model = Tagger().double()
    lengths = torch.tensor([5, 2, 4, 1])
    tokens = torch.randint(9, (4, 5))
    labels = torch.randint(3, (4, 5))
    labels = labels.where(torch.arange(5) < lengths[:, None], -100)

    def share(i: int) -> Tensor:
        """N × the share of sample i in the loss."""
        logits = model(tokens[i : i + 1], labels[i : i + 1]).logits
        loss = F.cross_entropy(logits.transpose(1, 2), labels[i : i + 1], reduction="sum")
        return 4 * loss / lengths.sum()

    g, shares = by_samples(model, share, 4)
    tracked: list[Quantity] = [Gradients(), Losses()] if connected else [Gradients()]
    watch = Cockpit(model, tracked)
    out = model(input_ids=tokens, labels=labels)
    loss, given = out.loss, {}
    if connected:
        each = F.cross_entropy(out.logits.transpose(1, 2), labels, reduction="none").sum(1)
        loss, given = each.sum() / lengths.sum(), {"individual_losses": each / lengths}
        loss = (given["individual_losses"] * lengths).sum() / lengths.sum()
    with watch(0, loss=loss, **given):
        loss.backward()
    found = watch.get_output()[0]
    assert_close(found["Gradients"]["g"], g, atol=1e-12)
    assert_close(
        found["Gradients"]["g"].mean(0), flat(p.grad for p in model.parameters()), atol=1e-12
    )
    if connected:
        assert_close(found["Losses"], shares)
        assert_close(found["Gradients"]["mean"], out.loss)


def test_hugging_face() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=11,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=3,
    )
    model = transformers.BertForSequenceClassification(config).double().train()
    # Its gradient is zero but for rounding: the softmax does not see what all keys have in common.
    model.bert.encoder.layer[0].attention.self.key.bias.requires_grad_(False)
    lengths = torch.tensor([6, 3, 5, 4])
    mask = (torch.arange(6) < lengths[:, None]).long()
    inputs = {"input_ids": torch.randint(11, (4, 6)), "attention_mask": mask}
    labels = torch.tensor([0, 2, 1, 1])
    g, losses = by_samples(
        model,
        lambda i: (
            model(**{k: v[i : i + 1] for k, v in inputs.items()}, labels=labels[i : i + 1]).loss
        ),
        4,
    )
    watch = Cockpit(model, [Gradients()])
    out = model(**inputs, labels=labels)
    with watch(0, loss=out.loss):
        out.loss.backward()
    found = watch.get_output()[0]["Gradients"]
    assert_close(found["g"], g, rtol=1e-7, atol=1e-10)
    assert_close(found["mean"], losses.mean())


def test_a_last_batch_that_is_smaller() -> None:
    model = perceptron()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, truth = Cockpit(model, EVERYTHING, optimizer=opt), Follower(model)
    for step, size in enumerate((6, 6, 2, 6)):
        x, y = batch(size)
        truth.before(step, x, y)
        opt.zero_grad()
        losses = cross_entropies(model, x, y)
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        opt.step()
        truth.after(step)
    truth.check(watch)


@pytest.mark.parametrize("given", [True, False])
def test_an_empty_batch_is_refused_and_does_not_stop_the_training(given: bool) -> None:
    model = perceptron()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    tracked = [Gradients(), quantities.NormTest(), quantities.UpdateSize()]
    watch = Cockpit(model, tracked, optimizer=opt)
    for step, size in enumerate((4, 0, 4)):
        x, y = batch(size)
        expected = flat(model.parameters()) if size == 0 else None
        opt.zero_grad()
        losses = cross_entropies(model, x, y)
        loss = losses.sum()
        more = {"individual_losses": losses} if given else {}
        if size:
            with watch(step, loss=loss, **more):
                loss.backward()
        else:
            with (
                pytest.warns(CockpitWarning, match="the batch has no samples"),
                watch(step, loss=loss, **more),
            ):
                loss.backward()
        opt.step()
        if expected is not None:
            assert torch.equal(expected, flat(model.parameters()))
    output = watch.get_output()
    assert output[1]["UpdateSize"] == [0.0] * 6
    assert set(not_checked(watch)) == {"Gradients", "NormTest"}
    assert all("NormTest" in output[step] for step in (0, 2))
