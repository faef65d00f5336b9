"""Loops with Accelerate, against a plain loop over the same batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from integrations.plain import (
    STEPS,
    N,
    assert_same_run,
    hooks,
    network,
    samples,
    sgd,
    tracked,
    train,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cockpit import CockpitError, CockpitWarning, open_run, quantities
from cockpit.integrations.accelerate import AcceleratedCockpit, watchable


@pytest.fixture(autouse=True)
def _forget_the_accelerator() -> Iterator[None]:
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def run(
    accelerator: Accelerator,
    log: Path,
    n: int,
    *,
    clip: float | None = None,
    epochs: int = 1,
    chosen: list | None = None,
) -> nn.Module:
    model = network()
    data = DataLoader(TensorDataset(*samples(n)), batch_size=N)
    model, opt, data = accelerator.prepare(model, sgd(model.parameters()), data)
    schedule = torch.optim.lr_scheduler.StepLR(opt.optimizer, 2, 0.5)
    chosen = tracked() if chosen is None else chosen
    watch = AcceleratedCockpit(accelerator, model, chosen, optimizer=opt, log=log)
    step = 0
    for _ in range(epochs):
        for x, y in data:
            with accelerator.accumulate(model):
                losses = F.cross_entropy(model(x), y, reduction="none")
                loss = losses.mean()
                with watch(step, loss=loss, individual_losses=losses):
                    accelerator.backward(loss)
                if accelerator.sync_gradients:
                    if clip is not None:
                        accelerator.clip_grad_norm_(model.parameters(), clip)
                    watch.log(step, learning_rate=opt.param_groups[0]["lr"])
                opt.step()
                opt.zero_grad()
                if accelerator.sync_gradients:
                    schedule.step()
            step += accelerator.sync_gradients
    watch.close()
    return model


def batches(n: int, size: int) -> zip:
    x, y = samples(n)
    return zip(x.split(size), y.split(size), strict=True)


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("passes", [1, 2, 3])
def test_the_numbers_are_those_of_a_plain_loop(
    tmp_path: Path, passes: int, clip: float | None
) -> None:
    chosen = [q for q in tracked() if passes == 1 or q.name != "HessMaxEV"]
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=passes)
    log = tmp_path / "accelerate.db"
    model = run(accelerator, log, N * passes * STEPS, clip=clip, chosen=chosen)
    train(tmp_path / "plain.db", batches(N * passes * STEPS, N * passes), clip=clip, chosen=chosen)
    assert_same_run(log, tmp_path / "plain.db")
    assert hooks(model) == 0


def test_the_last_batches_of_an_epoch_may_be_fewer(tmp_path: Path) -> None:
    """Accelerate divides by the number of a full accumulation; mean values do not show it."""
    chosen = [quantities.Loss(), quantities.NormTest()]
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    run(accelerator, tmp_path / "run.db", 6 * N, epochs=2, chosen=chosen)
    found = open_run(tmp_path / "run.db")
    assert list(found.series("NormTest").index) == [0, 1, 2, 3]
    plain = train(tmp_path / "plain.db", batches(4 * N, 4 * N), chosen=[])
    x, y = (part[4 * N :] for part in samples(6 * N))
    assert found.series("Loss")[1] == pytest.approx(F.cross_entropy(plain(x), y).item())


def test_bfloat16(tmp_path: Path) -> None:
    chosen = [quantities.Loss(), quantities.NormTest()]
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    run(accelerator, tmp_path / "run.db", 2 * N * STEPS, chosen=chosen)
    train(tmp_path / "plain.db", batches(2 * N * STEPS, 2 * N), chosen=chosen)
    found, expected = open_run(tmp_path / "run.db"), open_run(tmp_path / "plain.db")
    for name in ("Loss", "NormTest"):
        assert list(found.series(name)) == pytest.approx(list(expected.series(name)), rel=0.1)


def test_an_exception_leaves_the_next_step_clean(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = network()
    model, opt = accelerator.prepare(model, sgd(model.parameters()))
    watch = AcceleratedCockpit(accelerator, model, [quantities.Loss()], optimizer=opt)
    x, y = samples(N)

    def step(number: int, *, fail: bool = False) -> None:
        for k in range(2):
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                with watch(number, loss=loss):
                    if fail and k == 1:
                        raise RuntimeError("as planned")
                    accelerator.backward(loss)

    step(0)
    with pytest.raises(RuntimeError, match="as planned"):
        step(1, fail=True)
    step(2)
    watch.close()
    assert set(watch.get_output()) == {0, 2}


def test_a_step_that_ends_sooner_than_foreseen_is_not_checked(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model = accelerator.prepare(network())
    watch = AcceleratedCockpit(accelerator, model, [quantities.Loss()])
    x, y = samples(N)

    def one(step: int, *, last: bool) -> None:
        accelerator.gradient_state._set_sync_gradients(last)
        loss = F.cross_entropy(model(x), y)
        with watch(step, loss=loss):
            accelerator.backward(loss)

    one(0, last=False)
    one(0, last=True)
    with pytest.warns(CockpitWarning, match="Step 0 was not checked: only 1 of 3 micro-batches"):
        one(1, last=False)
    one(1, last=False)
    one(1, last=True)
    assert set(watch.get_output()) == {1}


def test_spread_parameters_are_refused() -> None:
    spread = SimpleNamespace(distributed_type=SimpleNamespace(name="FSDP"))
    with pytest.raises(CockpitError, match="needs whole parameters, which Accelerate's FSDP"):
        watchable(spread, network())
