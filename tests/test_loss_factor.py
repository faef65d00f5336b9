"""A loss that a framework has scaled or divided before the cockpit gets to see it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from training import mlp

from cockpit import Cockpit, quantities

N = 6
CHOSEN = [
    quantities.Alpha(),
    quantities.CABS(),
    quantities.GradientNoiseScale(),
    quantities.HessMaxEV(),
    quantities.HessTrace(curvature="diag_ggn_mc"),
    quantities.Loss(),
    quantities.NormTest(),
    quantities.PerSampleOutliers(k=N),
]


def outputs(factor: Any, *, in_graph: bool = True) -> dict[int, dict[str, Any]]:
    """Train three steps on a loss with this factor on it, taken off the gradients before the update."""
    torch.manual_seed(0)
    model, inputs = mlp()
    model.double()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Cockpit(model, CHOSEN, optimizer=opt)
    for step in range(3):
        x, y = inputs(N), torch.randint(3, (N,))
        opt.zero_grad()
        losses = F.cross_entropy(model(x), y, reduction="none")
        loss = losses.mean() * factor
        given = losses if in_graph else losses.detach()
        with watch(step, loss=loss, individual_losses=given, loss_factor=factor):
            loss.backward()
        for parameter in model.parameters():
            parameter.grad /= factor
        opt.step()
    watch.close()
    return watch.get_output()


def flat(values: Any) -> list[float]:
    if isinstance(values, dict):
        return [number for key in sorted(values) for number in flat(values[key])]
    return list(np.asarray(values, dtype=float).ravel())


@pytest.mark.parametrize("in_graph", [True, False])
@pytest.mark.parametrize("factor", [1 / 3, 65536.0, torch.tensor(4096.0)], ids=str)
def test_the_values_are_those_of_the_loss_without_it(
    factor: Tensor | float, in_graph: bool
) -> None:
    found, expected = outputs(factor, in_graph=in_graph), outputs(1.0)
    assert found.keys() == expected.keys()
    for step, values in expected.items():
        assert values.keys() == found[step].keys()
        for name, value in values.items():
            np.testing.assert_allclose(
                flat(found[step][name]), flat(value), rtol=1e-8, atol=1e-12, err_msg=name
            )


@pytest.mark.parametrize("wrong", [0.0, -1.0, "two", torch.ones(2), float("nan")])
def test_what_is_no_factor(wrong: Any) -> None:
    model, inputs = mlp()
    watch = Cockpit(model, [quantities.Loss()])
    loss = model(inputs(N).float()).mean()
    with pytest.raises(ValueError, match="'loss_factor' must be a positive number or a tensor"):
        watch(0, loss=loss, loss_factor=wrong).__enter__()
