"""`BatchGradTransforms` inside plain BackPACK, on an extended model."""

from __future__ import annotations

import pytest
import torch
from backpack import backpack, extend, extensions
from gradients.reference import close
from torch import nn

from cockpit.errors import InvalidArgument, InvalidType
from cockpit.gradients import BatchGradTransforms
from cockpit.transforms import Dense, SquareNorms

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def cnn():
    return nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.ReLU(), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(12, 4)
    ).double()


def by_loop(model, loss_module, x, y):
    """∇ℓ_i from batches of one, whose mean and sum are the same."""
    trained = [p for p in model.parameters() if p.requires_grad]
    rows = [
        torch.autograd.grad(loss_module(model(x[i : i + 1]), y[i : i + 1]), trained)
        for i in range(len(x))
    ]
    return [torch.stack(column) for column in zip(*rows, strict=True)]


DENSE = {"dense": Dense(), "norms": SquareNorms()}


def agree(model, expected):
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter, g in zip(trained, expected, strict=True):
        results = parameter.grad_batch_transforms
        assert results.keys() == DENSE.keys()
        close(results["dense"], g, 1e-9)
        close(results["norms"], g.flatten(1).square().sum(1), 1e-9)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("factor", [1.0, 0.125])
def test_loss_module(reduction, factor):
    model, loss_module = cnn(), nn.CrossEntropyLoss(reduction=reduction)
    x, y = random(5, 2, 3, 3), torch.randint(4, (5,))
    expected = by_loop(model, loss_module, x, y)
    extend(model), extend(loss_module)
    with backpack(BatchGradTransforms(DENSE)):
        (factor * loss_module(model(x), y)).backward()
    agree(model, expected)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_functional_loss_takes_the_reduction_that_is_given(reduction):
    model = cnn()
    x, y = random(5, 2, 3, 3), torch.randint(4, (5,))
    expected = by_loop(model, nn.functional.cross_entropy, x, y)
    extend(model)
    with backpack(BatchGradTransforms(DENSE, reduction=reduction)):
        nn.functional.cross_entropy(model(x), y, reduction=reduction).backward()
    agree(model, expected)


def test_one_object_for_several_passes():
    """Neither results nor what was seen of the loss leak from one backward pass into the next."""
    model, x, y = cnn(), random(4, 2, 3, 3), torch.randint(4, (4,))
    summed = nn.CrossEntropyLoss(reduction="sum")
    expected = by_loop(model, summed, x, y)
    extend(model), extend(summed)
    extension = BatchGradTransforms(DENSE)
    with backpack(extension):
        (3 * summed(model(x), y)).backward()
        agree(model, expected)
        nn.functional.cross_entropy(model(x), y).backward()
        agree(model, expected)
        half = by_loop(model, nn.functional.cross_entropy, x[:2], y[:2])
    with backpack(extension):
        nn.functional.cross_entropy(model(x[:2]), y[:2]).backward()
    agree(model, half)


def test_pass_after_one_that_failed():
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise KeyboardInterrupt

    model, x, y = cnn(), random(4, 2, 3, 3), torch.randint(4, (4,))
    expected = by_loop(model, nn.functional.cross_entropy, x, y)
    extend(model)
    extension = BatchGradTransforms(DENSE)
    hidden = Failing.apply(model[:3](x + 1))
    loss = nn.functional.cross_entropy(model[3:](hidden), y)
    with pytest.raises(KeyboardInterrupt), backpack(extension):
        loss.backward()
    with backpack(extension):
        nn.functional.cross_entropy(model(x), y).backward()
    agree(model, expected)


def test_shared_parameter():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    model = nn.Sequential(first, nn.Tanh(), second).double()
    x, y = random(4, 3), random(4, 3)
    loss_module = nn.MSELoss()
    expected = by_loop(model, loss_module, x, y)
    extend(model), extend(loss_module)
    with backpack(BatchGradTransforms(DENSE)):
        loss_module(model(x), y).backward()
    agree(model, expected)


def test_frozen_parameter_and_batch_norm():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double().eval()
    model[0].weight.requires_grad_(False)
    x, y = random(4, 3), torch.randint(2, (4,))
    expected = by_loop(model, nn.functional.cross_entropy, x, y)
    extend(model)
    with backpack(BatchGradTransforms(DENSE)):
        nn.functional.cross_entropy(model(x), y).backward()
    agree(model, expected)
    assert not hasattr(model[0].weight, "grad_batch_transforms")


def test_refuses_a_module_whose_arguments_may_not_all_be_known():
    """BackPACK would not tell a mask, given by keyword, and the gradients would be those without it."""
    attention = extend(nn.MultiheadAttention(4, 2, batch_first=True).double())
    x, mask = random(3, 5, 4), torch.rand(3, 5) < 0.5
    with (
        backpack(BatchGradTransforms(DENSE)),
        pytest.raises(InvalidArgument, match=r"may have been called with key_padding_mask="),
    ):
        attention(x, x, x, key_padding_mask=mask)[0].sum().backward()


def test_agrees_with_backpack():
    model = extend(nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 4)).double())
    loss_module = extend(nn.CrossEntropyLoss())
    x, y = random(5, 2, 3, 3), torch.randint(4, (5,))
    with backpack(BatchGradTransforms(DENSE), extensions.BatchGrad()):
        loss_module(model(x), y).backward()
    agree(model, [5 * p.grad_batch for p in model.parameters()])


def test_refuses_a_module_that_is_called_twice():
    layer = nn.Linear(3, 3).double()
    model = extend(nn.Sequential(layer, nn.Tanh(), layer))
    for retained in (False, True):  # BackPACK then keeps the last input for both
        with (
            pytest.raises(InvalidArgument, match=r"\[3, 3\].*BackPACK remembers only that of a m"),
            backpack(BatchGradTransforms(DENSE), retain_graph=retained),
        ):
            model(random(2, 3)).sum().backward()


def test_refuses_losses_of_different_scales():
    model, first, second = extend(cnn()), extend(nn.MSELoss()), extend(nn.L1Loss())
    out = model(random(2, 2, 3, 3))
    loss = first(out, random(2, 4)) + 0.1 * second(out, random(2, 4))
    with (
        pytest.raises(InvalidArgument, match="two loss modules with different factors"),
        backpack(BatchGradTransforms(DENSE)),
    ):
        loss.backward()


def test_arguments():
    with pytest.raises(InvalidType, match=r"dict from names to functions.*got 'a': 3"):
        BatchGradTransforms({"a": 3})
    with pytest.raises(InvalidArgument, match="reduction must be 'mean' or 'sum', got 'max'"):
        BatchGradTransforms({}, reduction="max")
