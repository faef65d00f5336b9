"""A training that saves checkpoints, can be killed, and goes on from a checkpoint; run as a script."""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

import cockpit
from cockpit import Cockpit, quantities, schedules
from cockpit.quantities import bin_adaptation

STEPS = 12


def tracked():
    every, third = schedules.linear(1), schedules.linear(3)
    return [
        quantities.Loss(every),
        quantities.Alpha(every),
        quantities.GradNorm(every),
        quantities.Distance(every),
        quantities.UpdateSize(every),
        quantities.NormTest(third),
        quantities.GradHist1d(every, adapt=bin_adaptation.GradAbsMax()),
        quantities.HessMaxEV(third),
        quantities.DirectionalCurvature(third),
        quantities.HessTrace(every),
        quantities.ActivationStats(third),
    ]


def train(folder, checkpoint_at=None, kill_at=None, *, with_optimizer=True):
    """Train to the end, from the checkpoint that is in `folder` if there is one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    given = optimizer if with_optimizer else None
    x, y = torch.randn(STEPS, 10, 6), torch.randint(3, (STEPS, 10))
    watch = Cockpit(model, tracked(), optimizer=given, log=Path(folder, "run.db"), resume=True)
    first, saved = 0, Path(folder, "checkpoint.pt")
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        watch.load_state_dict(state["cockpit"])
        torch.set_rng_state(state["random"])
        first = state["step"] + 1
    for step in range(first, STEPS):
        if step == kill_at:
            watch._writer.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        losses = nn.functional.cross_entropy(model(x[step]), y[step], reduction="none")
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        optimizer.step()
        watch.log(step, train_loss=loss.item())
        if step == checkpoint_at:
            state = {
                "step": step,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "cockpit": watch.state_dict(),
                "random": torch.get_rng_state(),
            }
            torch.save(state, saved)
    watch.close()
    return cockpit.open_run(watch.path)


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), with_optimizer=sys.argv[4] == "True")
