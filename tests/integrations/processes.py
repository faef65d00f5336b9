"""Two processes that train with each framework, and what they report."""

from __future__ import annotations

import logging
import multiprocessing
import os
import socket
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from integrations import test_accelerate, test_lightning, test_transformers
from integrations.plain import STEPS, N, network, samples, tracked
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from cockpit import CockpitError, quantities
from cockpit.integrations.accelerate import AcceleratedCockpit
from cockpit.integrations.lightning import CockpitCallback
from cockpit.quantities import Quantity

WORLD = 2
PASSES = (1, 2)
"""Backward passes of a step; all but the last one come without synchronisation."""

PRELOADED = [
    "cockpit.integrations.accelerate",
    "cockpit.integrations.lightning",
    "cockpit.integrations.transformers",
    "transformers.models.gpt2.modeling_gpt2",
    "torch._dynamo",
]
"""What takes long to load, and is loaded once for all processes."""

Report = dict[str, Any]


def of_networks(passes: int) -> list[Quantity]:
    """What is compared of the small network."""
    if passes > 1:
        return [quantity for quantity in tracked() if quantity.name != "HessMaxEV"]
    by_outputs = [quantities.HessMaxEV(matrix="ggn"), quantities.KroneckerSpectrum()]
    return [*tracked(), *by_outputs, quantities.ActivationStats()]


def of_gpt() -> list[Quantity]:
    """What is compared of the small language model."""
    return [*test_transformers.tracked(), quantities.Alpha(), quantities.CABS()]


def samples_of(passes: int, steps: int, n: int = N) -> int:
    """Return how many samples a training has, of all processes together."""
    return n * WORLD * passes * steps


# -- the start ------------------------------------------------------------------------------------


def started(folder: Path) -> list[Report]:
    """Train in two processes; return what each has reported, in the order of their ranks."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start_processes(_process, (port, folder), nprocs=WORLD, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(WORLD)]


def _process(rank: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    # As torchrun leaves them; the loopback interface is there without a network, too.
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(WORLD),
        "LOCAL_WORLD_SIZE": str(WORLD),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCHELASTIC_RUN_ID": "none",
        "HF_HUB_OFFLINE": "1",
    }
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    own = folder / str(rank)  # so that it is seen who writes
    own.mkdir()
    report: Report = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for work in (accelerated, with_lightning, with_transformers):
            work(own, report)
    report["written"] = sorted(path.name for path in own.glob("*.db"))
    torch.save(report, folder / f"{rank}.pt")
    dist.destroy_process_group()


def _parameters(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def _raised(function: Callable[[], Any]) -> str:
    try:
        function()
    except CockpitError as error:
        return str(error)
    return "nothing was raised"


# -- the frameworks -------------------------------------------------------------------------------


def accelerated(folder: Path, report: Report) -> None:
    """Train with Accelerate."""
    for passes in PASSES:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=passes)
        log = folder / f"accelerate-{passes}.db"
        n, chosen = samples_of(passes, STEPS), of_networks(passes)
        watched = test_accelerate.run(accelerator, log, n, chosen=chosen)
        report[f"accelerate, {passes}"] = _parameters(watched)
    report["not prepared"] = _raised(lambda: AcceleratedCockpit(accelerator, network()))


class Scaled(test_lightning.Classifier):
    """Has a parameter of its own, beside those of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


def with_lightning(folder: Path, report: Report) -> None:
    """Train with Lightning, one time from a checkpoint on."""

    def fit(model: nn.Module, n: int, *callbacks: Any, path: Any = None, **more: Any) -> None:
        # The sampler that Lightning would put there itself shuffles.
        more |= {"strategy": "ddp", "devices": WORLD, "use_distributed_sampler": False}
        data = TensorDataset(*samples(n))
        loader = DataLoader(data, N, sampler=DistributedSampler(data, shuffle=False))
        trainer = test_lightning.trainer(folder, *callbacks, **more)
        trainer.fit(model, loader, ckpt_path=path)

    for passes in PASSES:
        n, more = samples_of(passes, STEPS), {"accumulate_grad_batches": passes}
        watch = CockpitCallback(of_networks(passes), log=folder / f"lightning-{passes}.db")
        models = test_lightning.Classifier(), test_lightning.Classifier()
        fit(models[0], n, watch, **more)
        fit(models[1], n, **more)
        report[f"lightning, {passes}"] = _parameters(models[0])
        report[f"lightning, {passes}, unwatched"] = _parameters(models[1])
        report["hooks"] = test_lightning.hooks(models[0])
    own = Scaled()
    watch = CockpitCallback([quantities.NormTest()], log=folder / "lightning-own.db")
    fit(own, samples_of(1, STEPS), watch)

    fit(test_lightning.Manual(folder / "lightning-manual.db"), samples_of(1, STEPS))
    log, epoch = folder / "lightning-resumed.db", samples_of(1, STEPS // 2)
    saving = ModelCheckpoint(folder.parent / "saved", "{step}", every_n_train_steps=STEPS // 2)
    watches = [CockpitCallback(tracked(), log=log) for _ in range(2)]
    fit(test_lightning.Classifier(), epoch, saving, watches[0])
    path = folder.parent / "saved" / f"step={STEPS // 2}.ckpt"
    fit(test_lightning.Classifier(), epoch, watches[1], path=path, max_epochs=2)


def with_transformers(folder: Path, report: Report) -> None:
    """Train with the trainer of Transformers, one time from a checkpoint on."""
    steps, n = test_transformers.STEPS, test_transformers.N

    def trainer(
        name: str, passes: int, kind: Any = test_transformers.WithLosses, **more: Any
    ) -> Any:
        given = {"quantities": of_gpt(), "log": folder / f"{name}.db"}
        if kind is test_transformers.InOrder:
            given["quantities"] = test_transformers.tracked()
        data = test_transformers.data(samples_of(passes, steps, n))
        # Not that of one process only: they write it together.
        arguments = test_transformers.arguments(
            folder.parent / "trainer", gradient_accumulation_steps=passes, **more
        )
        return kind(test_transformers.network(), arguments, train_dataset=data, cockpit=given)

    trainer("transformers-1", 1, save_strategy="steps", save_steps=2).train()
    path = str(folder.parent / "trainer" / "checkpoint-2")
    for passes in PASSES:
        watched = trainer(f"transformers-{passes}", passes)
        watched.train(resume_from_checkpoint=path if passes == 1 else None)
        report[f"transformers, {passes}"] = _parameters(watched.model)
    trainer("transformers-own", 2, test_transformers.InOrder).train()
