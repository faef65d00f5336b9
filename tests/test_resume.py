"""A run that was killed and resumed from a checkpoint has the log of one that was not."""

import subprocess
import sys
from pathlib import Path

import pytest
import resumable
import torch
from torch import nn

from cockpit import Cockpit, CockpitError, CockpitWarning, open_run, quantities
from cockpit.errors import InvalidArgument
from cockpit.log import RunFile


def events_of(path):
    with RunFile(path) as file:
        return [(event.step, event.kind, event.subject, event.message) for event in file.events()]


def values_of(path):
    """All values, bit for bit, by series and step."""
    with RunFile(path) as file:
        series = {
            one.id: (one.quantity, one.key, one.parameter, one.detail) for one in file.series()
        }
        scalars = [
            (series[i], int(s), float(v).hex()) for i, s, v in zip(*file.scalars(), strict=True)
        ]
        arrays = [(series[one.id], step, array.tolist()) for one, step, array in file.arrays()]
        return sorted(scalars), sorted(arrays), file.steps()[0].tolist()


def killed_and_resumed(folder, checkpoint_at, kill_at, with_optimizer):
    arguments = [str(folder), str(checkpoint_at), str(kill_at), str(with_optimizer)]
    script = Path(resumable.__file__)
    ended = subprocess.run([sys.executable, str(script), *arguments], cwd=script.parent.parent)
    assert ended.returncode == -9
    resumable.train(folder, with_optimizer=with_optimizer)


@pytest.mark.parametrize("with_optimizer", [True, False])
@pytest.mark.parametrize(("checkpoint_at", "kill_at"), [(5, 9), (6, 7)])
def test_a_resumed_run_has_the_log_of_one_that_was_not_interrupted(
    tmp_path, checkpoint_at, kill_at, with_optimizer
):
    (tmp_path / "whole").mkdir()
    (tmp_path / "resumed").mkdir()
    resumable.train(tmp_path / "whole", with_optimizer=with_optimizer)
    killed_and_resumed(tmp_path / "resumed", checkpoint_at, kill_at, with_optimizer)
    whole, resumed = (tmp_path / name / "run.db" for name in ("whole", "resumed"))
    for expected, actual in zip(values_of(whole), values_of(resumed), strict=True):
        assert actual == expected
        assert len(expected) > resumable.STEPS / 2
    assert events_of(resumed) == events_of(whole)
    tracked = {row[0][0] for row in values_of(whole)[0]}
    assert tracked >= {"Alpha", "HessMaxEV", "DirectionalCurvature", "Distance", "train_loss"}


def test_the_state_is_plain_data(tmp_path):
    resumable.train(tmp_path, checkpoint_at=4)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["cockpit"]
    assert state["last_tracked"] == 4
    assert any(entry["name"] == "Alpha" for entry in state["engine"]["pending"]["waiting"])


def make(tmp_path, **more):
    model = nn.Linear(2, 1)
    return model, Cockpit(model, [quantities.Loss()], log=tmp_path / "run.db", **more)


def step_of(model, watch, step):
    loss = model(torch.randn(4, 2)).square().mean()
    with watch(step, loss=loss):
        loss.backward()


def test_a_step_must_be_over_when_the_state_is_taken(tmp_path):
    model, watch = make(tmp_path)
    loss = model(torch.randn(4, 2)).square().mean()
    with watch(0, loss=loss):
        with pytest.raises(CockpitError, match="Step 0 is still open"):
            watch.state_dict()
        loss.backward()
    watch.close()


def test_a_state_is_loaded_before_the_first_step_only(tmp_path):
    model, watch = make(tmp_path)
    step_of(model, watch, 0)
    with pytest.raises(CockpitError, match="before the first step"):
        watch.load_state_dict(watch.state_dict())
    watch.close()


def test_a_state_of_another_version_is_refused(tmp_path):
    _, watch = make(tmp_path)
    with pytest.raises(InvalidArgument, match="version 99"):
        watch.load_state_dict({"version": 99})
    watch.close()


def test_another_run_file_is_left_alone_with_a_warning(tmp_path):
    model, watch = make(tmp_path)
    step_of(model, watch, 0)
    state = watch.state_dict()
    watch.close()
    _, other = make(tmp_path)  # without resume: a new file
    with pytest.warns(CockpitWarning, match="resume=True"):
        other.load_state_dict(state)
    other.close()
    assert open_run(tmp_path / "run.db").scalars().empty


def test_a_resumed_file_goes_on_without_a_state(tmp_path):
    model, watch = make(tmp_path)
    step_of(model, watch, 0)
    watch.close()
    model, watch = make(tmp_path, resume=True)
    step_of(model, watch, 1)
    watch.close()
    assert list(open_run(tmp_path / "run.db").series("Loss").index) == [0, 1]
