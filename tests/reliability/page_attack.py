"""The live page under 200 clients while a training runs: ``python -m reliability.page_attack SECONDS CLIENTS``.

Page, training and clients are three processes, as they are in use. The training's steps are timed
before, during and after the attack; what they take before and after, without anybody asking, says how
much of a difference is noise. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RUN = "training.db"

TRAINING = """
import sys, time, torch
from cockpit import Cockpit, configuration
torch.set_num_threads(1); torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, target = torch.randn(64, 64), torch.randint(0, 10, (64,))
watch = Cockpit(model, configuration("economy"), optimizer=optimizer, log=sys.argv[1])
for step in range(10**9):
    wall, own = time.perf_counter(), time.process_time()
    optimizer.zero_grad()
    losses = torch.nn.functional.cross_entropy(model(data), target, reduction="none")
    loss = losses.mean()
    with watch(step, info={"loss": loss, "individual_losses": losses}):
        loss.backward()
    optimizer.step()
    print(time.time(), time.perf_counter() - wall, time.process_time() - own)
    time.sleep(0.005)
"""


def attack(seconds: float, clients: int) -> dict[str, Any]:
    """Return what the page answered, and what a step of the training took in milliseconds."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        told = stack.enter_context((folder / "times.txt").open("w+"))
        command = [sys.executable, "-c", TRAINING, str(folder / RUN)]
        training = _started(stack, command, stdout=told)
        _wait_for(folder / RUN)
        serve = [sys.executable, "-m", "cockpit", "serve", str(folder), "--port", "0"]
        said = stack.enter_context((folder / "said.txt").open("w+"))
        page = _started(stack, serve, stderr=said)
        assert page.stdout is not None
        port = int(next(found[1] for line in page.stdout if (found := re.search(r":(\d+)/", line))))
        memory = [_memory(page.pid)]
        times = [time.time()]
        time.sleep(max(3.0, seconds / 3))
        times.append(time.time())
        words = [str(port), str(clients), str(seconds), RUN]
        command = ["nice", "-n", "19", sys.executable, str(HERE / "page_clients.py"), *words]
        asked = subprocess.run(command, capture_output=True, text=True, check=True)
        times.append(time.time())
        memory.append(_memory(page.pid))
        time.sleep(max(3.0, seconds / 3))
        times.append(time.time())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/runs", timeout=120) as answer:
            up = answer.status == 200
        training.terminate()
        training.wait()
        said.seek(0)
        told.seek(0)
        complaints = len(said.read().splitlines())
        lines = told.read().splitlines()[:-1]  # the last one may be cut short
        steps = [tuple(map(float, line.split())) for line in lines]
    spans = list(zip(("before", "during", "after"), times[:-1], times[1:], strict=True))
    return {
        **json.loads(asked.stdout),
        "up": up,
        "errors": complaints,
        "page_mib": memory,
        "wall_ms": {name: _median(steps, 1, begin, end) for name, begin, end in spans},
        "cpu_ms": {name: _median(steps, 2, begin, end) for name, begin, end in spans},
    }


def _started(stack: ExitStack, command: list[str], **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    output = {"stdout": subprocess.PIPE, "text": True, "env": environment, **options}
    process = stack.enter_context(subprocess.Popen(command, **output))
    stack.callback(process.kill)
    return process


def _wait_for(path: Path) -> None:
    end = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < end, "the training does not begin"
        time.sleep(0.1)
    time.sleep(3)


def _median(steps: list[tuple[float, ...]], column: int, begin: float, end: float) -> float:
    """Return the median over the steps that ended within a span, in milliseconds."""
    return round(1e3 * statistics.median(s[column] for s in steps if begin < s[0] < end), 3)


def _memory(process: int) -> int:
    """Return what a process has in memory, in MiB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


if __name__ == "__main__":
    print(json.dumps(attack(float(sys.argv[1]), int(sys.argv[2]))))
