"""The hooks on the model rest where nothing will be due; a step is lost only if it does not come as foreseen."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import nn

from cockpit import BatchGradTransforms, Cockpit, open_run, schedules
from cockpit.pace import Pace
from cockpit.quantities import Alpha, NormTest, Quantity

STEPS = 40


def train(watch: Cockpit, model: nn.Module, steps: Iterable[int], awake: bool = False) -> list[int]:
    """Train, and return the steps whose forward pass was watched."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder, watched = watch._engine.recorder, []
    assert recorder is not None
    for step in steps:
        torch.manual_seed(step)
        x, y = torch.randn(8, 3), torch.randint(2, (8,))
        if awake:
            recorder.asleep = False
        watched += [] if recorder.asleep else [step]
        losses = nn.functional.cross_entropy(model(x), y, reduction="none")
        optimizer.zero_grad()
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        optimizer.step()
    return watched


def cockpit(log: str, quantities: list[Quantity]) -> tuple[Cockpit, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    return Cockpit(model, quantities, log=log), model


def test_values_are_those_of_hooks_that_never_rest(tmp_path):
    quantities = [Alpha(schedules.linear(10)), NormTest(schedules.linear(8))]
    frames = []
    for name, awake in [("resting", False), ("awake", True)]:
        watch, model = cockpit(f"{tmp_path}/{name}.db", quantities)
        watched = train(watch, model, range(STEPS), awake)
        watch.close()
        frames.append(open_run(f"{tmp_path}/{name}.db").scalars())
        if not awake:
            # The first ones until the pace is known, and Alpha ends one step later.
            assert watched == [0, 1, 2, 3, 8, 10, 11, 16, 20, 21, 24, 30, 31, 32]
    left, right = (frame.drop(columns=["time"], errors="ignore") for frame in frames)
    assert len(left) > 10
    assert left.equals(right)


def test_a_loop_that_comes_by_at_some_steps_only(tmp_path):
    watch, model = cockpit(f"{tmp_path}/run.db", [NormTest(schedules.linear(20))])
    watched = train(watch, model, range(0, 200, 10))
    assert set(range(0, 200, 20)) <= set(watched)
    assert len(watched) < 14
    assert set(watch.get_output()) == set(range(0, 200, 20))


@pytest.mark.filterwarnings("ignore::cockpit.CockpitWarning")
def test_steps_that_do_not_come_as_foreseen(tmp_path):
    """One step is lost, and says why; from then on the hooks are awake."""
    watch, model = cockpit(f"{tmp_path}/run.db", [NormTest(schedules.linear(10))])
    watched = train(watch, model, [*range(7), *range(10, 30)])
    watch.close()
    run = open_run(f"{tmp_path}/run.db")
    assert list(run.series("NormTest").index) == [0, 20]
    reasons = run.events().query("kind == 'not-checked'")
    assert "was not watched" in reasons.iloc[0].message
    assert watched == [0, 1, 2, 3, *range(11, 30)]


def test_they_do_not_rest_where_extensions_run_along(tmp_path):
    watch, model = cockpit(f"{tmp_path}/run.db", [NormTest(schedules.linear(10))])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        losses = nn.functional.cross_entropy(
            model(torch.randn(8, 3)), torch.randint(2, (8,)), reduction="none"
        )
        extensions = (
            [BatchGradTransforms({"n": lambda g: g.square_norms()})] if step % 4 == 0 else []
        )
        optimizer.zero_grad()
        loss = losses.mean()
        with watch(step, *extensions, loss=loss, individual_losses=losses):
            loss.backward()
        if extensions:
            assert all(len(p.grad_batch_transforms["n"]) == 8 for p in model.parameters())
        optimizer.step()


def test_pace():
    pace = Pace()
    assert pace.next is None
    found = []
    for step in [5, 6, 7, 8, 8, 9, 12, 15, 18, 0, 1, 2, 3]:
        pace.note(step)
        found.append(pace.next)
    assert found == [None, None, None, 9, 9, 10, None, None, 21, None, None, None, 4]
