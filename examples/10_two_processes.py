"""Two processes, one run file.

Are the numbers of two processes those of one process on the joined batch?

Run it with ``python examples/10_two_processes.py``. Two processes train one network in
``DistributedDataParallel``, each on its half of every batch; afterwards, one process trains it on
whole batches. It takes less than a minute, and writes two run files and the picture
``runs/two_processes.png``; ``--help`` lists the options. With several machines or GPUs the loop is
the same, and started by ``torchrun``.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from cockpit import Cockpit, CockpitPlotter, open_run
from cockpit.demo import fashion_mnist
from cockpit.quantities import Alpha, GradNorm, Loss, NormTest

BATCH_SIZE, PROCESSES = 64, 2


def train(rank: int, processes: int, steps: int, path: Path) -> None:
    """Train on this process's share of the batches, and watch it."""
    torch.set_num_threads(1)
    images = fashion_mnist()
    torch.manual_seed(0)  # the same weights and batches in every process
    model: nn.Module = nn.Sequential(
        nn.Flatten(), nn.Linear(28 * 28, 32), nn.Tanh(), nn.Linear(32, 10)
    )
    model = DistributedDataParallel(model) if processes > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quantities = [Loss(), GradNorm(), NormTest(), Alpha()]
    with Cockpit(model, quantities, optimizer=optimizer, log=path) as watch:  # in every process
        for step in range(steps):
            batch = torch.randint(len(images.x_train), (BATCH_SIZE,)).chunk(processes)[rank]
            optimizer.zero_grad()
            outputs = model(images.x_train[batch])
            losses = nn.functional.cross_entropy(outputs, images.y_train[batch], reduction="none")
            loss = losses.mean()
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            optimizer.step()


def process(rank: int, steps: int, path: Path, meeting_point: str) -> None:
    """Be one of several processes."""
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # which is there without a network, too
    store = dist.FileStore(meeting_point, PROCESSES)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=PROCESSES)
    train(rank, PROCESSES, steps, path)
    dist.destroy_process_group()


def main() -> None:
    """Train with two processes and with one, print how far apart the numbers are."""
    parser = argparse.ArgumentParser(description="Two processes, one run file.")
    parser.add_argument("--steps", type=int, default=50, help="of each training (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder (%(default)s)")
    options = parser.parse_args()
    two, one = options.out / "two_processes.db", options.out / "two_processes_one.db"

    print("Are the numbers of two processes those of one process on the joined batch?")
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        meeting_point = str(Path(folder) / "store")
        spawn(process, (options.steps, two, meeting_point), nprocs=PROCESSES)
    train(0, 1, options.steps, one)

    worst = 0.0
    for name in ("Loss", "GradNorm", "NormTest", "Alpha"):
        joined, single = (open_run(path).series(name) for path in (two, one))
        assert joined.index.equals(single.index)
        apart = float(np.max(np.abs(joined - single) / np.maximum(1, np.abs(single))))
        print(f"  {name:8} of {len(joined)} steps: at most {apart:.1e} apart")
        worst = max(worst, apart)
    print("Yes, up to rounding." if worst < 1e-2 else "No, something is wrong.")

    CockpitPlotter().plot(two, show_plot=False, save_plot=True, savename="two_processes")
    print(f"Pictures: {two.with_suffix('.png')}")


if __name__ == "__main__":
    main()
