"""Starts processes that talk to each other by gloo, and what they run."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from distributed.faults import FAULTS, Setting
from distributed.loops import CASES, Case, model_of, spread
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

from cockpit import BatchGradTransforms, Cockpit, CockpitError, CockpitWarning, schedules
from cockpit.log import RunFile
from cockpit.quantities import GradNorm, Loss, NormTest

Report = dict[str, Any]

PRELOADED = ["cockpit", "torch._dynamo", "torch.distributed.fsdp"]
"""What takes long to load, and is loaded once for all processes."""


def started(work: Callable[..., None], folder: Path, world: int = 2) -> list[Report]:
    """Run a function in several processes; return what each has reported, in the order of the ranks."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    arguments = (world, work.__name__, folder)
    start_processes(_process, arguments, nprocs=world, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]


def _process(rank: int, world: int, name: str, folder: Path) -> None:
    torch.set_num_threads(1)
    # The loopback interface is there without a network, too.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=120),
    )
    report: Report = {}
    try:
        globals()[name](rank, folder, report)
    finally:
        torch.save(report, folder / f"{rank}.pt")
        if not report.get("lost"):
            dist.destroy_process_group()


def raised(function: Callable[[], Any]) -> str:
    """Return the message of the CockpitError that a function raises."""
    try:
        function()
    except CockpitError as error:
        return str(error)
    return "nothing was raised"


# -- almost everything ----------------------------------------------------------------------------


def everything(rank: int, folder: Path, report: Report) -> None:
    """Run all cases, and all misuse after which the processes are still there; let rank 1 vanish then."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, case in CASES.items():
            output, parameters, watch = spread(case, rank, log=folder / f"{rank}-{name}.db")
            assert watch is not None
            report[name] = output, list(watch.parameters), (folder / f"{rank}-{name}.db").exists()
            report[f"{name}, parameters"] = parameters, spread(case, rank, watched=False)[1]
    report |= {check.__name__: check(rank, folder) for check in CHECKS}
    torch.save(report, folder / f"{rank}.pt")
    _lose(rank, report, partial(os._exit, 0))


def quietness(rank: int, folder: Path) -> list[str]:
    """Return the warnings of a run in which something is not checked."""
    case = Case("mlp", make=lambda: [FAULTS["compute"]()], steps=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CockpitWarning)
        spread(case, rank)
    return [str(w.message) for w in caught if issubclass(w.category, CockpitWarning)]


def faults(rank: int, folder: Path) -> Any:
    """Run quantities that fail on rank 1 only; return the values and events that rank 0 has."""
    path = folder / "faults.db"
    case = Case("mlp", make=lambda: [*(fault() for fault in FAULTS.values()), NormTest()], steps=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        output = spread(case, rank, log=path)[0]
    if rank:
        return output, []
    with RunFile(path) as file:
        return output, [(event.subject, event.message) for event in file.events()]


def misuse(rank: int, folder: Path) -> dict[str, str]:
    """Return the errors of cockpits that are not the same on both ranks."""

    def with_quantities(*of_ranks: list[Any]) -> str:
        case = Case("mlp", make=lambda: of_ranks[rank], steps=2)
        return raised(lambda: spread(case, rank))

    every_other = schedules.linear(2, offset=rank)
    return {
        "quantities": with_quantities([Loss(), NormTest()], [Loss()]),
        "settings": with_quantities([Setting(number=0)], [Setting(number=1)]),
        "schedules": with_quantities(*2 * [[GradNorm(every_other)]]),
        "steps": raised(lambda: _one_step(rank, step=rank)),
        "extensions": raised(lambda: _one_step(rank, extra=rank == 1)),
    }


def _one_step(rank: int, step: int = 0, extra: bool = False) -> None:
    model, inputs = model_of(CASES["mlp"])
    net = DistributedDataParallel(model)
    watch = Cockpit(net, [NormTest()])
    losses = net(inputs(3)).square().sum(1)
    extensions = [BatchGradTransforms({"x": lambda g: g.mean()})] if extra else []
    loss = losses.mean()
    with watch(step, *extensions, loss=loss, individual_losses=losses):
        loss.backward()
    watch.close()


def interrupted(rank: int, folder: Path) -> tuple[str, list[int]]:
    """Let rank 1 leave a step by an error that it gets over; return what rank 0 hears, and its steps."""
    model, inputs = model_of(CASES["mlp"])
    net = DistributedDataParallel(model)
    watch, heard = Cockpit(net, [NormTest()]), ""
    for step in range(3):
        losses = net(inputs(3)).square().sum(1)
        loss = losses.mean()
        try:
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
                if step == 1 and rank == 1:
                    raise FloatingPointError("a loss of its own")
        except FloatingPointError:
            pass
        except CockpitError as error:
            heard = str(error)
    watch.close()
    return heard, list(watch.get_output())


def extensions(rank: int, folder: Path) -> list[float]:
    """Return what a user's own function makes of the individual gradients, as it stays on the parameters."""
    model, inputs = model_of(CASES["mlp"])
    net = DistributedDataParallel(model)
    watch = Cockpit(net)
    x = inputs(6)[3 * rank : 3 * rank + 3]
    losses = net(x).square().sum(1)
    own = BatchGradTransforms({"norms": lambda g: g.dense().flatten(1).norm(dim=1)})
    loss = losses.mean()
    with watch(0, own, loss=loss, individual_losses=losses):
        loss.backward()
    watch.close()
    parameter: Any = model.get_parameter("0.weight")
    return parameter.grad_batch_transforms["norms"].tolist()


def reading(rank: int, folder: Path) -> Any:
    """Return what the ways of reading a run give on this rank."""
    net = DistributedDataParallel(nn.Linear(2, 1))
    with Cockpit(net, [Loss()]) as watch:
        loss = net(torch.ones(3, 2)).sum()
        with watch(0, loss=loss):
            loss.backward()
        watch.log(0, train_accuracy=0.5)
        return watch.output, raised(watch.run), watch.state_dict()["last_tracked"]


def sharding(rank: int, folder: Path) -> str:
    """Return why a model with sharded parameters is refused."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    return raised(lambda: Cockpit(model, [NormTest()]))


CHECKS = (quietness, faults, misuse, interrupted, extensions, reading, sharding)


# -- processes that are lost ----------------------------------------------------------------------


def failing(rank: int, folder: Path, report: Report) -> None:
    """Let rank 1 of three end with an error of its own; then make a cockpit on rank 0 and not on 2."""
    group = dist.new_group([0, 2], timeout=timedelta(seconds=2))
    net = None if rank == 1 else DistributedDataParallel(nn.Linear(2, 1), process_group=group)
    _lose(rank, report, _fail)
    if rank == 0:
        report["alone"] = raised(lambda: Cockpit(net))


def _fail() -> None:
    raise FloatingPointError("the loss is not finite")


def _lose(rank: int, report: Report, end: Callable[[], None]) -> None:
    report["lost"] = True
    model, inputs = model_of(CASES["mlp"])
    net = DistributedDataParallel(model)
    watch = Cockpit(net, [NormTest()])
    start = time.monotonic()
    try:
        for step in range(3):
            losses = net(inputs(3)).square().sum(1)
            loss = losses.mean()
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
                if step == 1 and rank == 1:
                    end()
    except FloatingPointError:
        return
    except CockpitError as error:
        report["message"] = str(error)
    except Exception:
        report["message"] = traceback.format_exc()
    report["seconds"] = time.monotonic() - start
