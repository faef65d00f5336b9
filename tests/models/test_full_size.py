"""Networks of torchvision in full size and single precision, N = 2, parameter by parameter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from models.brute import gradients, trained
from models.study import Keep
from torch import nn
from torchvision.models import convnext_tiny, mobilenet_v3_small, resnet18

from cockpit import Cockpit
from cockpit.quantities import GradientAlignment, InnerTest, NormTest, OrthoTest
from cockpit.transforms import Gram

TOLERANCE = 1e-4
"""Single precision has 7 digits, of which sums over some hundred thousand terms cost two."""


@pytest.mark.parametrize("make", [resnet18, convnext_tiny, mobilenet_v3_small])
def test_every_parameter_of_a_network_in_full_size(make: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    model = make(num_classes=10).eval()
    with torch.no_grad():  # scales of layers start at 1e-6 in ConvNeXt
        for parameter in model.parameters():
            if parameter.numel() == max(parameter.shape):
                parameter += 0.1 * torch.randn_like(parameter)
    kept = Keep(need=Gram())
    quantities = [NormTest(), InnerTest(), OrthoTest(), GradientAlignment(), kept]
    watch = Cockpit(model, quantities, strict=True)
    losses = F.cross_entropy(
        model(torch.randn(2, 3, 32, 32)), torch.tensor([1, 7]), reduction="none"
    )
    named, loss = trained(model), losses.mean()
    first, second = (gradients(one, list(named.values())) for one in losses)
    products = {
        name: torch.stack([(a * a).sum(), (a * b).sum(), (b * b).sum()])
        for name, a, b in zip(named, first, second, strict=True)
    }
    del first, second
    with watch(0, loss=loss, individual_losses=losses):
        loss.backward()
    watch.close()
    size = sum(p[0] + p[2] for p in products.values())
    for name, (aa, ab, bb) in products.items():
        actual, expected = kept.kept[0][name], torch.stack([aa, ab, ab, bb]).reshape(2, 2)
        error = (actual - expected).abs().max()
        assert error <= TOLERANCE * (aa + bb) / 2 + TOLERANCE**2 * size, (name, error / (aa + bb))
    aa, ab, bb = torch.stack(list(products.values())).double().sum(0)
    squared_norm = (aa + 2 * ab + bb) / 4
    along = torch.stack([aa + ab, ab + bb]) / 2  # g_i·g
    inner = (along.square().sum() - 2 * squared_norm**2) / (2 * squared_norm**2)
    norm = (aa + bb - 2 * squared_norm) / (2 * squared_norm)
    output = watch.get_output()[0]
    squares = {"NormTest": norm, "InnerTest": inner, "OrthoTest": norm - inner}
    for name, square in squares.items():  # each a difference of terms of size 1
        assert output[name] ** 2 == pytest.approx(square.item(), rel=TOLERANCE, abs=1e-6), name
    cosine = (ab / (aa * bb).sqrt()).item()
    assert output["GradientAlignment"]["mean_cosine"] == pytest.approx(cosine, rel=TOLERANCE)
