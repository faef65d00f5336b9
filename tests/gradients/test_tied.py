"""A table that is looked up and multiplied with: in closed form, without a table for every sample."""

from __future__ import annotations

import pytest
import torch
from gradients.reference import listening, losses, one_by_one
from torch import Tensor, nn

from cockpit.gradients import Batch, IndividualGradients, Recorder
from cockpit.gradients.tied import Tied

N, LENGTH, VOCABULARY, WIDTH = 5, 7, 11, 4


class LanguageModel(nn.Module):
    """A head that shares the weight of the embedding, or of two, as encoder and decoder have it."""

    def __init__(self, lookups: int = 1) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(VOCABULARY, WIDTH) for _ in range(lookups))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        for embedding in self.embeddings:
            embedding.weight = self.head.weight

    def forward(self, index: Tensor) -> Tensor:
        found = sum(embedding(index.roll(k, 1)) for k, embedding in enumerate(self.embeddings))
        return self.head(torch.tanh(found).cumsum(1))


def handle_of(model: nn.Module, index: Tensor, memory_budget: int) -> IndividualGradients:
    recorder = Recorder(model)
    with listening(model, recorder, Batch(N, N, memory_budget)) as fed:
        losses(model(index), N).mean().backward()
    recorder.close()
    (handle,) = fed.handles.values()
    return handle


@pytest.mark.parametrize("memory_budget", [1, 2**26])
def test_closed_forms(memory_budget, monkeypatch):
    torch.manual_seed(0)
    model, index = LanguageModel().double(), torch.randint(VOCABULARY, (N, LENGTH))
    handle = handle_of(model, index, memory_budget)
    (dense,) = one_by_one(model, (index,), N).values()
    rows = dense.reshape(N, -1)
    assert type(handle) is Tied
    assert torch.allclose(handle.dense(), dense, rtol=1e-12)
    handle.release()

    def never(samples: slice) -> Tensor:
        raise AssertionError("a table was formed for a sample")

    monkeypatch.setattr(handle, "piece", never)
    assert torch.allclose(handle.square_norms(), rows.square().sum(1), rtol=1e-12)
    assert torch.allclose(handle.dot_mean(), rows @ rows.mean(0), rtol=1e-11)
    for count in (1, 60, rows.numel()):
        drawn = handle.sample(count)
        assert torch.allclose(drawn.values, rows[:, drawn.locate()], rtol=1e-11)
        assert len(drawn.locate().unique()) == drawn.values.shape[1]


def test_parts_that_cancel_each_other_have_no_negative_norm():
    torch.manual_seed(0)
    handle = handle_of(LanguageModel(), torch.randint(VOCABULARY, (N, LENGTH)), 2**26)
    assert isinstance(handle, Tied)
    handle.rows.rows.copy_(-handle.products.dense()[handle.rows.owner, handle.rows.index])
    norms = handle.square_norms()
    assert (norms >= 0).all()
    assert torch.allclose(norms, handle.dense().square().sum((1, 2)), rtol=1e-3, atol=1e-4)


def test_a_table_that_is_looked_up_twice_is_served_as_well():
    torch.manual_seed(0)
    model, index = LanguageModel(lookups=2).double(), torch.randint(VOCABULARY, (N, LENGTH))
    handle = handle_of(model, index, 2**26)
    (dense,) = one_by_one(model, (index,), N).values()
    assert torch.allclose(handle.square_norms(), dense.square().sum((1, 2)), rtol=1e-12)
