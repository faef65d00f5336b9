"""Several writers and many readers: the files are as if each had been alone."""

import json
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from cockpit import Cockpit
from cockpit.errors import RunFileInUse
from cockpit.log import RunFile
from cockpit.quantities import GradNorm

TESTS = Path(__file__).parents[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_no_reader_sees_half_a_step_or_finds_the_file_locked(tmp_path):
    command = [sys.executable, "-m", "reliability.concurrency", str(tmp_path), "3", "8"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=TESTS, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert len(found["looks"]) == 8
    assert min(found["looks"]) > 0
    assert found["steps"] > 0
    assert found["status"] == "closed"


def train(log, seed, steps=25):
    """Train a small network that is different for each seed; return its parameters."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(3, 2)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Cockpit(model, [GradNorm()], optimizer=optimizer, log=log) as watch:
        for step in range(steps):
            loss = model(torch.randn(4, 3, generator=generator)).square().mean()
            optimizer.zero_grad()
            with watch(step, loss=loss, batch_size=4):
                loss.backward()
            optimizer.step()
            watch.log(step, seed=seed)
    return [p.detach().clone() for p in model.parameters()]


def check(path, seed, steps=25):
    with RunFile(path) as file:
        series = {(one.quantity, one.parameter): one.id for one in file.series()}
        assert file.steps()[0].tolist() == list(range(steps))
        assert file.scalars(series["seed", ""])[2].tolist() == [seed] * steps
        assert len(file.scalars(series["GradNorm", "weight"])[2]) == steps
        assert file.status == "closed"


def test_four_trainings_in_one_process(tmp_path):
    paths = [tmp_path / f"run-{seed}.db" for seed in range(4)]
    alone = [train(tmp_path / "alone.db", seed) for seed in range(4)]
    results = {}

    def run(seed):
        results[seed] = train(paths[seed], seed)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, path in enumerate(paths):
        check(path, seed)
        assert all(torch.equal(a, b) for a, b in zip(results[seed], alone[seed], strict=True))


PROCESS = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from reliability.test_concurrency import train
from cockpit.errors import RunFileInUse
path, seed = Path(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
try:
    train(path, seed)
except RunFileInUse as error:
    print("in use", flush=True)
else:
    print("written", flush=True)
"""


def processes(paths):
    """What four trainings print that begin at once, each in a process of its own."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(path), str(seed)],
            cwd=TESTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed, path in enumerate(paths)
    ]
    for process in running:
        assert process.stdout.readline() == "ready\n"
    for process in running:
        process.stdin.write("\n")
        process.stdin.flush()
    return [process.communicate(timeout=300)[0].strip() for process in running]


def test_four_processes_in_one_folder(tmp_path):
    paths = [tmp_path / f"run-{seed}.db" for seed in range(4)]
    assert processes(paths) == ["written"] * 4
    for seed, path in enumerate(paths):
        check(path, seed)
    assert sorted(tmp_path.iterdir()) == paths


def test_of_processes_with_one_log_name_none_writes_into_that_of_another(tmp_path):
    found = processes([tmp_path / "run.db"] * 4)
    assert set(found) <= {"written", "in use"}
    assert "written" in found
    # One that came when another had ended kept its file. Where it looked at it just as it was closed, the
    # journal of that one stays beside it, and is read with it.
    files = sorted(tmp_path.glob("*.db"))
    assert len(files) == found.count("written")
    for path in files:
        with RunFile(path) as file:
            series = {one.quantity: one.id for one in file.series()}
            (seed,) = set(file.scalars(series["seed"])[2].tolist())
        check(path, seed)


def _use_elsewhere(path, results):
    try:
        Cockpit(nn.Linear(3, 2), log=path)
    except RunFileInUse as error:
        results.put(str(error))


def test_a_spawned_process_does_not_get_at_the_file_of_its_parent(tmp_path):
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    with Cockpit(nn.Linear(3, 2), log=tmp_path / "run.db") as watch:
        watch.log(0, value=1.0)
        process = context.Process(target=_use_elsewhere, args=(tmp_path / "run.db", results))
        process.start()
        process.join(300)
        assert f"is being written by process {os.getpid()}" in results.get()
    with RunFile(tmp_path / "run.db") as file:
        assert file.scalars()[2].tolist() == [1.0]
