"""The hooks on the model rest where nothing will be due; a step is lost only if it does not come as foreseen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from cockpit import BatchGradTransforms, Cockpit, open_run, schedules
from cockpit.engine.needs import MiniBatchLoss
from cockpit.engine.step import Step
from cockpit.pace import Pace
from cockpit.quantities import Alpha, GradNorm, NormTest, Quantity, UpdateSize

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
            due = {*range(0, STEPS + 1, 10), *range(0, STEPS + 1, 8)}
            ends = {step + 1 for step in range(0, STEPS, 10)}  # of Alpha
            # The first ones until the pace is known, and one before each that is due, which comes then
            # if the other one is left out.
            expected = {0, 1, 2, 3} | due | {step - 1 for step in due} | ends
            assert watched == sorted(expected & set(range(STEPS)))
    left, right = (frame.drop(columns=["time"], errors="ignore") for frame in frames)
    assert len(left) > 10
    assert left.equals(right)


@dataclass(frozen=True)
class Size(Quantity):
    """The number of samples: known although the loss is all that is asked for."""

    loss = MiniBatchLoss()

    def compute(self, step: Step) -> int:
        return step.batch_size


def test_they_rest_while_nothing_that_is_due_looks_at_layers(tmp_path):
    quantities = [Size(), GradNorm(), UpdateSize(), NormTest(schedules.linear(20))]
    watch, model = cockpit(f"{tmp_path}/run.db", quantities)
    watched = train(watch, model, range(STEPS))
    watch.close()
    assert watched == [0, 1, 2, 3, 19, 20, 39]
    run = open_run(f"{tmp_path}/run.db")
    assert [len(run.series(name)) for name in ("Size", "NormTest")] == [STEPS, 2]
    assert set(run.series("Size")) == {8}


def test_they_do_not_where_layers_tell_where_the_samples_are(tmp_path):
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.RNN(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.layer(x.expand(5, *x.shape))[0].sum(0))

    watch = Cockpit(Recurrent(), [Size()], log=f"{tmp_path}/run.db")
    watched = train(watch, watch._model, range(10))
    assert watched == list(range(10))


def test_a_loop_that_comes_by_at_some_steps_only(tmp_path):
    watch, model = cockpit(f"{tmp_path}/run.db", [NormTest(schedules.linear(40))])
    watched = train(watch, model, range(0, 400, 10))
    assert len(watched) < 24
    assert set(watch.get_output()) == set(range(0, 400, 40))


def test_a_step_that_is_left_out_costs_nothing(tmp_path):
    watch, model = cockpit(f"{tmp_path}/run.db", [NormTest(schedules.linear(10))])
    train(watch, model, [*range(9), *range(10, 19), *range(20, 25)])
    assert set(watch.get_output()) == {0, 10, 20}


def test_a_step_that_fails_and_comes_again_is_tracked(tmp_path):
    watch, model = cockpit(f"{tmp_path}/run.db", [NormTest(schedules.linear(10))])
    train(watch, model, range(10))
    loss = model(torch.randn(8, 3)).sum()
    with pytest.raises(MemoryError), watch(10, loss=loss):
        raise MemoryError
    train(watch, model, range(10, 25))
    assert set(watch.get_output()) == {0, 10, 20}


def test_a_quantity_that_is_added_in_between_is_tracked(tmp_path):
    watch, model = cockpit(f"{tmp_path}/run.db", [NormTest(schedules.linear(100))])
    train(watch, model, range(6))
    watch.add(Alpha())
    train(watch, model, range(6, 10))
    assert {6, 7, 8} <= {step for step, values in watch.get_output().items() if "Alpha" in values}


@pytest.mark.filterwarnings("ignore::cockpit.CockpitWarning")
def test_a_graph_that_was_made_while_they_rested_gives_no_value(tmp_path):
    """A part of a step's forward pass is made three steps before: it is not seen, and so the rest is not trusted."""
    watch, model = cockpit(f"{tmp_path}/run.db", [NormTest(schedules.linear(10))])
    optimizer, ahead = torch.optim.SGD(model.parameters(), lr=0.1), [torch.zeros(8)] * 3
    for step in range(32):
        losses = ahead.pop(0) + model(torch.randn(8, 3)).square().sum(1)
        loss = losses.mean()
        ahead.append(model(torch.randn(8, 3)).square().sum(1))
        optimizer.zero_grad()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        # Nothing moves: autograd would refuse the part that was made before.
    watch.close()
    run = open_run(f"{tmp_path}/run.db")
    assert list(run.series("NormTest").index) == [0, 20, 30]
    reason = run.events().query("kind == 'not-checked' and subject == 'NormTest'").iloc[0]
    assert (reason.step, "was not watched" in reason.message) == (10, True)


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
    assert pace.coming == []
    found = []
    for step in [5, 6, 7, 8, 8, 9, 12, 15, 18, 0, 1, 2, 3]:
        pace.note(step)
        found.append(pace.coming)
    assert found == [
        *([], [], [], [9, 10], [9, 10], [10, 11]),
        *([], [], [21, 24], [], [], [], [4, 5]),
    ]
