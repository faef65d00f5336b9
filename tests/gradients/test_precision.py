"""Single precision, half precision and autocast."""

from __future__ import annotations

import pytest
import torch
from gradients.reference import agree, close, feed, listening, losses, one_by_one
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cockpit.gradients import Batch, Recorder


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4) + 0.5)

    def forward(self, x):
        return torch.tanh(x * self.scale)


def network():
    return nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 4), nn.LayerNorm(4),
        Scale(), nn.RMSNorm(4), nn.Linear(4, 3),
    )  # fmt: skip


def test_single_precision():
    torch.manual_seed(0)
    model, x = network(), torch.randn(5, 2, 6)
    fed = feed(model, (x,), 5)
    exact = one_by_one(model.double(), (x.double(),), 5)
    for name, g in exact.items():
        handle = fed.handles[name]
        assert handle.dtype == torch.float32
        close(handle.dense().double(), g, 1e-4)
        close(handle.square_norms().double(), g.flatten(1).square().sum(1), 1e-4)
        close(handle.gram().double(), g.flatten(1) @ g.flatten(1).T, 1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(3, 4), (3,)),
        (nn.Linear(3, 4), (5, 3)),
        (nn.Conv1d(3, 4, 2), (3, 5)),
        (nn.LayerNorm(3), (3,)),
        (nn.GroupNorm(1, 3), (3, 4)),
        (nn.BatchNorm1d(3), (3, 4)),
        (nn.RMSNorm(3), (3,)),
        (Scale(), (4,)),
        (nn.Embedding(5, 3), None),
    ],
    ids=str,
)
def test_low_precision_is_promoted(layer, shape, dtype):
    """From the low-precision input and upstream gradient on, everything is in single precision."""
    layer = layer.to(dtype)
    x = torch.randint(5, (4, 2)) if shape is None else torch.randn(4, *shape).to(dtype)
    upstream = []
    hook = layer.register_forward_hook(lambda m, i, o: o.register_hook(upstream.append) and None)
    fed = feed(layer, (x,), 4)
    hook.remove()
    exact = layer.double()
    if isinstance(exact, nn.RMSNorm) and exact.eps is None:
        exact.eps = torch.finfo(torch.float32).eps  # of the precision that torch computes in
    output = exact(x if shape is None else x.double())
    for name, handle in fed.handles.items():
        assert handle.dtype == torch.float32
        rows = []
        for i in range(4):
            masked = torch.zeros_like(output)
            masked[i] = upstream[0][i].double()
            (row,) = torch.autograd.grad(
                output, exact.get_parameter(name), masked, retain_graph=True
            )
            rows.append(4 * row)
        g = torch.stack(rows)
        assert handle.square_norms().dtype == torch.float32
        close(handle.dense().double(), g, 1e-5)


class NoLowPrecision(TorchDispatchMode):
    """Fails if an operation on single-precision tensors returns low precision."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and "empty" not in str(function):
                assert value.dtype not in (torch.bfloat16, torch.float16), function
        return result


@pytest.mark.parametrize("backward_too", [False, True])
def test_autocast(backward_too):
    torch.manual_seed(0)
    model, x = network(), torch.randn(5, 2, 6)
    exact = one_by_one(model, (x,), 5)
    recorder = Recorder(model)
    with torch.autocast("cpu", torch.bfloat16):
        loss = losses(model(x), 5).mean()
    with (
        listening(model, recorder, Batch(5, 5.0)) as fed,
        torch.autocast("cpu", torch.bfloat16, enabled=backward_too),
    ):
        loss.backward()
    assert fed.refused == {}
    for name, g in exact.items():
        handle = fed.handles[name]
        assert handle.dtype == torch.float32
        close(handle.dense(), g, 0.1)
        # What is computed from a handle agrees with it in single precision, not in half.
        rows = handle.dense().double()
        with NoLowPrecision():
            norms, gram, mean = handle.square_norms(), handle.gram(), handle.mean()
        close(norms.double(), rows.flatten(1).square().sum(1), 1e-5)
        close(gram.double(), rows.flatten(1) @ rows.flatten(1).T, 1e-5)
        close(mean.double(), rows.mean(0), 1e-5, rows.abs().max())


def test_callbacks_under_autocast_compute_in_full_precision():
    """Reductions run inside of the user's backward pass."""
    from cockpit.gradients import Collector

    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4)), torch.randn(6, 16)
    found = {}
    collector = Collector(
        lambda call: Batch(6, 6.0), lambda p, g: found.update({p: (g.gram(), g.dense())})
    )
    recorder = Recorder(model)
    loss = losses(model(x), 6).mean()
    recorder.listen(collector.add)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(collector.complete)
    with torch.autocast("cpu", torch.bfloat16):
        loss.backward()
    for gram, dense in found.values():
        rows = dense.flatten(1).double()
        close(gram.double(), rows @ rows.T, 1e-5)
    assert len(found) == 4


def test_mixed_precision_within_a_model():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2).double()

        def forward(self, x):
            return self.second(torch.tanh(self.first(x)).double())

    torch.manual_seed(0)
    model, x = Mixed(), torch.randn(4, 3)
    exact = one_by_one(model, (x,), 4)
    fed = feed(model, (x,), 4)
    for name, g in exact.items():
        assert fed.handles[name].dtype == g.dtype
        close(fed.handles[name].dense(), g, 1e-5)
    agree(fed.handles["second.weight"], exact["second.weight"], model.second.weight, 1e-6)
