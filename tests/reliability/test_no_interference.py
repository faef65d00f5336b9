"""The training is the same to the last bit with the cockpit and without it, and nothing stays behind."""

from __future__ import annotations

import functools
import gc
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from reliability.harmless import (
    MODELS,
    WATCHES,
    Outcome,
    Training,
    Trouble,
    defaults,
    differences,
    graphs,
    running,
    surface,
    tensors,
    train,
)
from torch import Tensor, nn

from cockpit import CockpitWarning

STEPS = 40

pytestmark = pytest.mark.filterwarnings(
    # On a model with BatchNorm: exact diagonals are not defined there.
    "ignore:Step 0. (TICDiag|HessTrace) was not checked. . normalises with the statistics"
)


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    """Have torch refuse whatever is not deterministic, and fill new memory with NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@functools.cache
def plain(kind: str) -> Outcome:
    return train(kind, None, STEPS)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", WATCHES)
def test_every_bit_is_the_same(kind: str, name: str) -> None:
    watched = train(kind, WATCHES[name](), STEPS)
    assert differences(plain(kind), watched) == []
    if name != "overhead":  # which tracks as often as the time allows
        assert len(watched.output) >= STEPS // 5


def test_a_difference_would_be_seen() -> None:
    def draws(step: int, model: nn.Module) -> None:
        if step == 3:
            torch.rand(1)

    def flips(step: int, model: nn.Module) -> None:
        if step == 2:
            weight = model[0].weight.detach().view(torch.int32)
            weight[0, 0] ^= 1

    for change, first in ((draws, "step 3"), (flips, "step 2")):
        found = differences(train("mlp", None, 5), train("mlp", None, 5, Trouble(changes=change)))
        assert found
        assert found[0].startswith(first)


@pytest.mark.parametrize("name", WATCHES)
def test_nothing_global_is_changed(name: str) -> None:
    before = defaults()
    training = Training("transformer", WATCHES[name]())
    seen = []

    def backward(step: int, model: nn.Module, loss: Tensor) -> None:
        seen.append(defaults())
        loss.backward()
        seen.append(defaults())

    training.trouble.backward = backward
    seen.append(defaults())
    for _ in range(3):
        training.once()
        seen.append(defaults())
    assert training.watch is not None
    training.watch.close()
    seen.append(defaults())
    for after in seen:
        changed = [what for what, value in before.items() if after[what] != value]
        assert changed == []


class Interrupted(Exception):
    """Raised by the user's own code."""


def in_the_block(step: int, model: nn.Module, loss: Tensor) -> None:
    raise Interrupted


def in_the_backward_pass(step: int, model: nn.Module, loss: Tensor) -> None:
    def fail(grad: Tensor) -> None:
        raise Interrupted

    handle = next(model.parameters()).register_hook(fail)
    try:
        loss.backward()
    finally:
        handle.remove()


def after_the_backward_pass(step: int, model: nn.Module, loss: Tensor) -> None:
    loss.backward()
    raise Interrupted


ENDS = {
    "close": None,
    "in the block": in_the_block,
    "in the backward pass": in_the_backward_pass,
    "after the backward pass": after_the_backward_pass,
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", ["full", "doctor", "subsample"])
def test_nothing_stays_behind(kind: str, name: str, end: str) -> None:
    training = Training(kind, WATCHES[name]())
    watch, fail = training.watch, ENDS[end]
    assert watch is not None
    assert surface(training.model, training.optimizer) != training.before
    for _ in range(2):
        training.once()
    if fail is not None:
        training.trouble.backward = fail
        training.step = 5  # which is tracked
        with pytest.raises(Interrupted):
            training.once()
        training.trouble.backward = Trouble.backward
    watch.close()
    assert surface(training.model, training.optimizer) == training.before

    training.watch, calls = None, []
    with running(calls):
        training.once()
    assert calls == []


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", ["full", "health", "doctor", "subsample"])
def test_graphs_are_freed_at_once(kind: str, name: str) -> None:
    training = Training(kind, WATCHES[name]())
    seen = graphs(training)
    gc.collect()
    gc.disable()  # nothing may wait for it
    try:
        counts = []
        for step in (0, 5, 10, 15, 20):
            training.step = step
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CockpitWarning)  # steps are left out
                training.once()
            assert seen
            assert [reference() for reference in seen if reference() is not None] == []
            counts.append(tensors())
    finally:
        gc.enable()
    assert counts[-1] <= max(counts[:-1])
    assert training.watch is not None
    training.watch.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_flat() -> None:
    command = [sys.executable, "-m", "reliability.harmless", "memory", "200"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name, growth in json.loads(done.stdout).items():
        assert growth["tensors"] < 10, name
        assert growth["objects_a_step"] < 0.5, name
        assert growth["mib"] < 8, name
