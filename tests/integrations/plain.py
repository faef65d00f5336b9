"""The same trainings without a framework, and the comparison with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit import Cockpit, open_run, quantities
from cockpit.quantities import Quantity

N, STEPS = 4, 6
"""Samples of one backward pass, and number of updates."""


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def samples(n: int) -> tuple[Tensor, Tensor]:
    """Return the first n samples of what is always the same."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(100, 5, dtype=torch.float64, generator=generator)
    return x[:n], torch.randint(3, (100,), generator=generator)[:n]


def tracked() -> list[Quantity]:
    """What the comparison compares: each moment and each kind of need, with the losses of samples."""
    return [
        quantities.Alpha(),
        quantities.CABS(),
        quantities.Distance(),
        quantities.GradHist1d(bins=20),
        quantities.GradNorm(),
        quantities.GradientNoiseScale(),
        quantities.HessMaxEV(),
        quantities.InnerTest(),
        quantities.Loss(),
        quantities.NormTest(),
        quantities.UpdateRatio(),
        quantities.UpdateSize(),
    ]


def train(
    log: Path,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    chosen: list[Quantity] | None = None,
    optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer] | None = None,
    clip: float | None = None,
    model: nn.Module | None = None,
) -> nn.Module:
    """Train in a plain loop, a step for each batch, and return the model."""
    model = model or network()
    opt = (optimizer or sgd)(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)
    watch = Cockpit(model, tracked() if chosen is None else chosen, optimizer=opt, log=log)
    for step, (x, y) in enumerate(batches):
        opt.zero_grad()
        losses = F.cross_entropy(model(x), y, reduction="none")
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        watch.log(step, learning_rate=opt.param_groups[0]["lr"])
        opt.step()
        schedule.step()
    watch.close()
    return model


def sgd(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)


def numbers(log: Path, *, without: Iterable[str] = ()) -> dict[tuple, float]:
    frame = open_run(log).scalars()
    frame = frame[~frame["quantity"].isin(list(without))]
    places = [column for column in frame.columns if column != "value"]
    keys = frame[places].astype(str).itertuples(index=False, name=None)
    return dict(zip(keys, frame["value"], strict=True))


def assert_same_run(one: Path, other: Path, *, rtol: float = 1e-9, **choice: Iterable[str]) -> None:
    """Compare all numbers of two run files, and what they say was not checked."""
    a, b = numbers(one, **choice), numbers(other, **choice)
    assert sorted(a.keys() ^ b.keys()) == []
    assert len(a) > 0
    np.testing.assert_allclose(list(a.values()), [b[key] for key in a], rtol=rtol, atol=1e-3 * rtol)


def assert_same_parameters(one: nn.Module, other: nn.Module) -> None:
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
