"""Statistics that look at a part of large tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit import Cockpit, configuration
from cockpit.errors import InvalidArgument
from cockpit.presets import quantities_cls_for_configuration
from cockpit.quantities import (
    ActivationStats,
    GradientNoiseScale,
    LostUpdates,
    Quantity,
    UpdateSize,
)
from cockpit.quantities.activation_stats import moments
from cockpit.quantities.spacing import SAMPLES, spaced_elements, spaced_samples
from cockpit.transforms import Deviation


@pytest.mark.parametrize(
    ("shape", "units", "left"),
    [
        ((128, 1000), 1, (32, 1000)),
        ((128, 8, 28, 28), 1, (16, 8, 7, 28)),
        ((32, 64, 512), 2, (16, 4, 512)),
        ((20, 50_000), 1, (10, 50_000)),  # no fewer samples, whatever they take
        ((4, 100), 1, (4, 100)),
        ((100_000,), 0, (100_000,)),
    ],
)
def test_samples_go_first_and_units_stay(
    shape: tuple[int, ...], units: int, left: tuple[int, ...]
) -> None:
    h = torch.arange(shape[0], dtype=torch.float32).view(-1, *(1 for _ in shape[1:])).expand(shape)
    part = spaced_samples(h, units, 2**15)
    assert part.shape == left
    if units > 0:
        kept = part.reshape(len(part), -1)[:, 0]
        assert len(kept) >= min(SAMPLES // 2, shape[0])
        assert len(set(kept.diff().tolist())) <= 1  # evenly spaced, and from the first to the last
        assert kept[0] <= shape[0] / len(kept)
        assert kept[-1] >= shape[0] * (1 - 1 / len(kept)) - 1


def test_elements_come_from_all_columns() -> None:
    table = torch.arange(64.0).expand(1000, 64)
    assert set(spaced_elements(table, 1000).tolist()) == set(range(64))
    assert len(spaced_elements(table, 1000)) <= 1000
    assert spaced_elements(table, None).numel() == spaced_elements(table, 64_000).numel() == 64_000


def test_moments_of_a_part_are_exact_for_it() -> None:
    h = torch.randn(128, 1000, dtype=torch.float64).relu()
    h[:, :300] = 0  # dead
    part = spaced_samples(h, 1, 2**15)
    seen = moments(part.contiguous(), 1, 0.025)
    assert seen[0] == pytest.approx(float(part.mean()), rel=1e-12)
    assert seen[4] == pytest.approx(float((part == 0).double().mean()), rel=1e-12)
    assert seen[6] == pytest.approx(0.3, rel=1e-12)


def train(
    quantities: list[Quantity],
    steps: int = 3,
    zero: bool = True,
    look: bool = False,
    **settings: Any,
) -> Any:
    """Train a convolutional network, and return the values and, if one wants to look, the individual gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 5)).double()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    truth = []
    with Cockpit(model, quantities, optimizer=opt, strict=True, **settings) as watch:
        for step in range(steps):
            x, y = torch.randn(24, 2, 6, 6, dtype=torch.float64), torch.randint(5, (24,))
            if zero:
                opt.zero_grad()
            losses = F.cross_entropy(model(x), y, reduction="none")
            if look:
                truth.append(individual(model, x, y))
            loss = losses.mean()
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            opt.step()
        return watch.get_output(), truth


def individual(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the individual gradients, one sample after the other, `[N, D]`."""
    rows = []
    for i in range(len(x)):
        loss = F.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        rows.append(
            torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, [*model.parameters()])])
        )
    return torch.stack(rows)


@pytest.mark.parametrize("zero", [True, False], ids=["zeroed", "accumulated"])
def test_the_noise_scale_is_exact_where_all_samples_are_looked_at(zero: bool) -> None:
    output, truth = train([GradientNoiseScale()], zero=zero, look=True)
    for step, g in enumerate(
        truth
    ):  # from the second step on the gradient is that of the parameter
        value = output[step]["GradientNoiseScale"]
        trace, mean = g.var(0).sum(), g.mean(0)
        assert value["trace"] == pytest.approx(float(trace), rel=1e-9)
        assert value["noise_share"] == pytest.approx(float(trace / 24 / mean.square().sum()))
        square = mean.square().sum() - trace / 24
        assert value["squared_norm"] == pytest.approx(float(square), rel=1e-9)


def test_drawn_samples_estimate_the_deviation_without_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cockpit.gradients.handle.FEW", 0)  # otherwise all of so few are looked at
    _, truth = train([], steps=2, look=True)
    traces, signals = [], []
    for seed in range(40):
        values = train([GradientNoiseScale(samples=6)], steps=2, seed=seed)[0]
        value = values[1]["GradientNoiseScale"]
        traces.append(value["trace"])
        signals.append(value["squared_norm"] + value["trace"] / 24)
    mean, exact = truth[1].mean(0), float(truth[1].var(0).sum())
    assert signals == pytest.approx([float(mean.square().sum())] * len(signals), rel=1e-9)
    spread = torch.tensor(traces).std() / len(traces) ** 0.5
    assert len(set(traces)) > 20
    assert abs(sum(traces) / len(traces) - exact) < 4 * float(spread)


@pytest.mark.parametrize("make", [ActivationStats, LostUpdates])
def test_a_part_has_elements(make: Any) -> None:
    with pytest.raises(
        InvalidArgument, match="needs elements of at least 1, or None for all, got 0"
    ):
        make(elements=0)


def test_a_draw_has_samples() -> None:
    with pytest.raises(
        InvalidArgument, match="needs samples of at least 1, or None for all, got 0"
    ):
        GradientNoiseScale(samples=0)


def test_the_doctors_set_draws_samples_and_can_be_had_as_classes() -> None:
    (noise,) = (q for q in configuration("health") if isinstance(q, GradientNoiseScale))
    assert noise.needs() == (Deviation(16),)
    assert quantities_cls_for_configuration("health") == [type(q) for q in configuration("health")]


def test_an_update_that_never_came_has_lost_nothing() -> None:
    model = nn.Linear(3, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Cockpit(model, [UpdateSize(), LostUpdates()], optimizer=opt)
    for step in range(2):
        loss = model(torch.randn(4, 3)).square().mean()
        with watch(step, loss=loss):
            loss.backward()
        if step == 0:
            opt.step()
    watch.close()  # and warns of nothing
    first, last = (watch.get_output()[step] for step in (0, 1))
    assert set(first) == {"UpdateSize", "LostUpdates"}
    assert last == {"UpdateSize": [0, 0]}
