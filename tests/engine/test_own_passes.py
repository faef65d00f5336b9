"""What the backward passes of our own compute, and what they leave out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cockpit import Cockpit
from cockpit.gradients import IndividualGradients
from cockpit.gradients.products import Products
from cockpit.quantities import HessTrace, InnerTest

N, STEPS = 6, 4


class Scaled(nn.Module):
    """A layer, and a parameter that is used beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 2), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.layer(x)


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))


def train(model: nn.Module, watch: Cockpit, *shape: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        torch.manual_seed(step)
        x, y = torch.randn(N, *shape, 3).to(next(model.parameters())), torch.randn(N, *shape, 2)
        losses = (model(x) - y).square().flatten(1).sum(1)
        optimizer.zero_grad()
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        optimizer.step()


@pytest.mark.parametrize(("make", "passes"), [(plain, 1), (Scaled, 2)])
def test_gradients_of_layers_are_not_computed_for_the_curvature(make, passes):
    """A hook on a parameter hears of the user's backward passes, and of ours only where these have to come there."""
    torch.manual_seed(0)
    model, heard = make(), []
    next(model.parameters()).register_hook(lambda grad: heard.append(1))
    with Cockpit(model, [HessTrace(curvature="diag_ggn_mc")], audit=False) as watch:
        train(model, watch)
    assert len(heard) == passes * STEPS
    assert len(watch.get_output()) == STEPS


@pytest.mark.parametrize(("dtype", "means"), [(torch.float64, 1), (torch.bfloat16, STEPS)])
def test_products_with_the_gradient_take_the_one_that_is_there(dtype, means, monkeypatch):
    """Once it is known to be their mean; one that was rounded more coarsely is computed anew."""
    counted: list[int] = []
    mean = IndividualGradients.mean

    def counting(handle: IndividualGradients) -> Tensor:
        counted.append(1)
        return mean(handle)

    torch.manual_seed(0)
    model = nn.Linear(3, 2, bias=False).to(dtype)
    monkeypatch.setattr(Products, "mean", counting)
    with Cockpit(model, [InnerTest()], audit=False) as watch:
        train(model, watch, 5)
    # One more at the first step, where they are summed and compared with the gradient.
    assert len(counted) == means + 1
