"""Gradient scalers, autocast and low precision."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from loops.probe import (
    EVERYTHING,
    Follower,
    Gradients,
    Update,
    assert_close,
    batch,
    cross_entropies,
    flat,
    perceptron,
)
from torch import Tensor, nn

from cockpit import Cockpit, quantities

STATISTICS = [
    quantities.NormTest(),
    quantities.InnerTest(),
    quantities.OrthoTest(),
    quantities.GradientNoiseScale(),
    quantities.PerSampleOutliers(),
    quantities.GradHist1d(samples=None),
    quantities.GradNorm(),
    quantities.Loss(),
    quantities.CABS(),
    quantities.Alpha(),
    quantities.UpdateSize(),
    quantities.AdamStaleness(),
    quantities.LostUpdates(),
]


def scaler_of(scale: float) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)


def train(scaled: bool, clip: bool, fused: bool) -> dict[int, dict[str, Any]]:
    model = perceptron()
    opt = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
    scaler = scaler_of(2.0**10)
    watch = Cockpit(model, STATISTICS, optimizer=opt)
    for step in range(4):
        opt.zero_grad()
        losses = cross_entropies(model, *batch())
        loss = losses.mean()
        with watch(
            step,
            loss=loss,
            individual_losses=losses,
            grad_scaler=scaler if scaled else None,
        ):
            (scaler.scale(loss) if scaled else loss).backward()
        if scaled and clip:
            scaler.unscale_(opt)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        if scaled:
            scaler.step(opt)
            scaler.update()
        else:
            opt.step()
    assert not scaled or scaler.get_scale() == 2.0**12
    return watch.get_output()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_a_gradient_scaler_changes_nothing(clip: bool, fused: bool) -> None:
    plain, scaled = train(False, clip, fused), train(True, clip, fused)
    for step, values in plain.items():
        assert scaled[step].keys() == values.keys()
        for name, value in values.items():
            same(scaled[step][name], value, name)


def same(found: Any, expected: Any, name: str) -> None:
    if isinstance(expected, dict):
        [same(found[key], expected[key], name) for key in expected]
    elif isinstance(expected, list | tuple):
        [same(one, other, name) for one, other in zip(found, expected, strict=True)]
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-9, err_msg=name)


def test_without_the_scaler_the_gradient_norm_is_that_of_the_scaled_gradient() -> None:
    """Nothing distinguishes a scaler's factor from a weight on the loss, so it has to be given."""
    model = perceptron()
    watch = Cockpit(model, [quantities.GradNorm()])
    scaler = scaler_of(512.0)
    loss = cross_entropies(model, *batch()).mean()
    with watch(0, loss=loss):
        scaler.scale(loss).backward()
    norms = torch.stack([p.grad.norm() for p in model.parameters()])
    assert_close(watch.get_output()[0]["GradNorm"], norms)


def test_a_step_that_is_skipped_after_an_overflow() -> None:
    """The parameters stay; what overflowed is not finite; the steps after it are right."""
    model = perceptron().float()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-110)
    tracked = [*EVERYTHING, quantities.NormTest(), quantities.NonFinite()]
    watch = Cockpit(model, tracked, optimizer=opt)
    skipped = []
    for step in range(4):
        x, y = batch()
        before = flat(model.parameters())
        opt.zero_grad()
        losses = 100 * cross_entropies(model, x.float(), y)
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses, grad_scaler=scaler):
            scaler.scale(loss).backward()
        finite = all(p.grad.isfinite().all() for p in model.parameters())
        scaler.step(opt)
        scaler.update()
        moved = not torch.equal(before, flat(model.parameters()))
        assert moved == finite
        if not finite:
            skipped.append(step)
    output = watch.get_output()
    assert skipped == [0]
    assert output[0]["UpdateSize"] == [0.0] * 6
    assert output[0]["Alpha"] == -1
    assert np.all(output[0]["Update"]["d"] == 0)
    assert not np.isfinite(output[0]["Gradients"]["g"]).all()
    assert not math.isfinite(output[0]["NormTest"])
    for step in (1, 2):
        assert np.isfinite(output[step]["Gradients"]["g"]).all()
        assert min(output[step]["UpdateSize"]) > 0
        assert math.isfinite(output[step]["Alpha"])
    assert output[1]["Gradients"]["mean"] > 0


def relative(found: Any, expected: Tensor) -> float:
    found = torch.as_tensor(np.asarray(found, dtype=np.float64))
    return float((found - expected).norm() / expected.norm())


PRECISIONS = {"bfloat16": (torch.bfloat16, 2**-8), "float16": (torch.float16, 2**-11)}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", PRECISIONS)
def test_autocast(name: str, inside: bool) -> None:
    """The layers compute in low precision: what differs from the loop over samples is its rounding."""
    dtype, digits = PRECISIONS[name]
    model = perceptron().float()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    watch = Cockpit(model, EVERYTHING, optimizer=opt)

    def autocast() -> AbstractContextManager[Any]:
        return torch.autocast("cpu", dtype=dtype)

    for step in range(3):
        x, y = batch(16)
        x = x.float()
        rows = []
        for i in range(len(y)):
            with autocast():
                one = cross_entropies(model, x[i : i + 1], y[i : i + 1]).mean()
            grads = torch.autograd.grad(one * 256, list(model.parameters()))
            rows.append(flat(grads).double() / 256)
        truth = torch.stack(rows)
        opt.zero_grad()
        with autocast():
            losses = cross_entropies(model, x, y)
            loss = losses.mean()
        before = flat(model.parameters())
        with (
            autocast() if inside else nullcontext(),
            watch(step, loss=loss, individual_losses=losses, grad_scaler=scaler),
        ):
            scaler.scale(loss).backward()
        gradient = flat(p.grad for p in model.parameters()).double() / 256
        scaler.step(opt)
        scaler.update()
        d = (flat(model.parameters()) - before).double()
        found = watch.get_output()[step]
        assert found["Gradients"]["g"].dtype == np.float32
        assert relative(found["Gradients"]["g"], truth) < 4 * digits
        assert relative(found["Gradients"]["g"].mean(0), gradient) < 4 * digits
        assert relative(found["Update"]["d"], d) < 1e-6
        products = torch.as_tensor(found["Gradients"]["g"]).double() @ d
        assert relative(found["Update"]["g·d"], products) < 1e-5
    assert all(math.isfinite(watch.get_output()[step]["Alpha"]) for step in (0, 1))


def test_weights_in_bfloat16() -> None:
    model = perceptron().to(torch.bfloat16)
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    watch = Cockpit(model, [*EVERYTHING, quantities.NormTest()], optimizer=opt)
    for step in range(3):
        x, y = batch(16)
        x = x.bfloat16()
        rows = []
        for i in range(len(y)):
            one = cross_entropies(model, x[i : i + 1], y[i : i + 1]).mean()
            rows.append(flat(torch.autograd.grad(one, list(model.parameters()))).double())
        truth = torch.stack(rows)
        opt.zero_grad()
        losses = cross_entropies(model, x, y)
        loss = losses.mean()
        before = flat(model.parameters()).double()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        opt.step()
        d = flat(model.parameters()).double() - before
        found = watch.get_output()[step]
        assert relative(found["Gradients"]["g"], truth) < 4 * 2**-8
        assert relative(found["Update"]["d"], d) < 2**-8
        n, total = len(y), float((truth**2).sum())
        squared = float((truth.mean(0) ** 2).sum())
        norm_test = math.sqrt((total - n * squared) / ((n - 1) * n * squared))
        assert found["NormTest"] == pytest.approx(norm_test, rel=4 * 2**-8)


def test_a_scaler_that_is_switched_off() -> None:
    model = perceptron()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    watch, truth = (
        Cockpit(model, [*EVERYTHING, quantities.GradNorm()], optimizer=opt),
        Follower(model),
    )
    for step in range(3):
        x, y = batch()
        truth.before(step, x, y)
        opt.zero_grad()
        losses = cross_entropies(model, x, y)
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses, grad_scaler=scaler):
            scaler.scale(loss).backward()
        norms = torch.stack([p.grad.norm() for p in model.parameters()])
        scaler.step(opt)
        scaler.update()
        truth.after(step)
        assert_close(watch.get_output()[step]["GradNorm"], norms)
    truth.check(watch)


def test_what_is_no_scaler_is_named() -> None:
    model = perceptron()
    watch = Cockpit(model, [quantities.GradNorm(), Gradients(), Update()])
    loss = cross_entropies(model, *batch()).mean()
    with (
        pytest.raises(TypeError, match=r"'grad_scaler' must be a .*GradScaler.*float: 2\.0"),
        watch(0, loss=loss, grad_scaler=2.0),
    ):
        raise AssertionError("not entered")
