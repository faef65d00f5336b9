"""Kill trainings at random moments, and see that nothing of what was committed is lost.

``python -m reliability.crash FOLDER ROUNDS SEED`` does so that often, and prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sqlite3
import sys
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

from cockpit import Cockpit
from cockpit.log import RunFile
from cockpit.log.reader import NotARunFile
from cockpit.quantities import GradHist1d, GradNorm

ROUNDS_OF_A_FILE = 10
"""Each file is begun by one training, and continued by so many others less one."""

LONGEST, EARLY = 1.5, 0.3
"""Seconds after which a training is killed, at most: after its first step, and after its beginning."""

ALLOWED = 2.0
"""Seconds before the end that may be missing."""


@dataclass
class Outcome:
    """What was seen in all rounds.

    Attributes:
        rounds: Trainings that were killed.
        files: Run files that they wrote.
        before_the_first_step: Of the trainings, those that were killed before they had tracked a step.
        steps: Steps that the files have in the end.
        seen: Steps that a reader had seen before the kill, all of which are there.
        missing_seconds: For how long before the kill nothing is there, at most.
        problems: What should not have been.
    """

    rounds: int = 0
    files: int = 0
    before_the_first_step: int = 0
    steps: int = 0
    seen: int = 0
    missing_seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def train(path: Path, told: int, count: int = 10**9) -> None:
    """Train, and say after each step that it was recorded.

    Args:
        path: The run file, which is continued if it is there.
        told: File descriptor to which the steps and their times go.
        count: Step to end before.
    """
    first = 0
    if path.exists():
        with RunFile(path) as file:
            logged = [one.id for one in file.series() if one.quantity == "check"]
            steps = file.scalars(logged[0])[1] if logged else []
            first = int(steps[-1]) + 1 if len(steps) else 0
    torch.manual_seed(first)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = Cockpit(
        model, [GradNorm(), GradHist1d()], optimizer=optimizer, log=path, resume=True, retention=50
    )
    for step in range(first, count):
        optimizer.zero_grad()
        losses = nn.functional.cross_entropy(
            model(torch.randn(8, 4)), torch.randint(2, (8,)), reduction="none"
        )
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        optimizer.step()
        watch.log(step, check=3.0 * step)
        os.write(told, f"{step} {time.monotonic()}\n".encode())
    watch.close()


def killed(
    path: Path, seconds: float, *, trained: bool
) -> tuple[int, list[tuple[int, float]], float]:
    """Let a process train and kill it; return the last step that a reader saw, what it told, and when it died.

    Args:
        path: The run file.
        seconds: After how many seconds.
        trained: Whether these begin when the first step was recorded, and not with the process.
    """
    reading, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with suppress(BaseException):
            train(path, told)
        os._exit(1)
    os.close(told)
    data, seen = os.read(reading, 65536) if trained else b"", -1
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        ready, _, _ = select.select([reading], [], [], min(left, 0.05))
        if ready:
            data += os.read(reading, 65536)
        if left < 0.3:  # look at the end only, so that the training has the machine for itself
            with suppress(NotARunFile), RunFile(path) as file:
                _, _, last = file.extent()
                seen = seen if last is None else max(seen, last)
    os.kill(child, signal.SIGKILL)
    died = time.monotonic()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the training ended by itself"
    while piece := os.read(reading, 65536):
        data += piece
    os.close(reading)
    lines = data.decode().split("\n")[:-1]
    return seen, [(int(step), float(at)) for step, at in map(str.split, lines)], died


def faults(path: Path) -> tuple[list[str], int | None]:
    """Return what is wrong with a run file, and its last step."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        check = connection.execute("PRAGMA integrity_check").fetchall()
    found = [] if check == [("ok",)] else [f"integrity: {check[:3]}"]
    with RunFile(path) as file:
        steps = file.steps()[0]
        _, _, last = file.extent()
        ids = {(one.quantity, one.kind, one.parameter): one.id for one in file.series()}
        if not np.array_equal(steps, np.arange(len(steps))):
            found.append("steps are missing within")
        for (quantity, kind, _), number in ids.items():
            if kind == "array":
                at = np.array([step for step, _ in ((s, a) for _, s, a in file.arrays(number))])
                newest = steps[-50:]
                whole = np.array_equal(at[-len(newest) :], newest) if len(at) else not len(steps)
            else:
                _, at, values = file.scalars(number)
                # the numbers of a step may come in two transactions: those of the user come later
                whole = np.array_equal(at, steps) or np.array_equal(at, steps[:-1])
                whole = whole or quantity == "UpdateSize"
                if quantity == "check" and not np.array_equal(values, 3.0 * at):
                    found.append("values have changed")
            if not whole:
                found.append(f"{quantity} lacks steps: {len(at)} of {len(steps)}")
    return found, last


def rounds(folder: Path, count: int, seed: int) -> Outcome:
    """Kill `count` trainings."""
    generator, outcome, path = random.Random(seed), Outcome(), folder / "none"
    with tempfile.TemporaryDirectory() as other, open(os.devnull, "wb") as nobody:
        train(Path(other, "run.db"), nobody.fileno(), 5)  # what is slow the first time
    for number in range(count):
        if number % ROUNDS_OF_A_FILE == 0:
            path = folder / f"runs-{number // ROUNDS_OF_A_FILE}" / "run.db"
            outcome.files += 1
        trained = bool(number % 2)  # the others while the file is made or opened, most of them
        seconds = generator.random() * (LONGEST if trained else EARLY)
        seen, told, died = killed(path, seconds, trained=trained)
        outcome.rounds += 1
        outcome.before_the_first_step += not told
        if path.exists():
            found, last = faults(path)
            kept = -1 if last is None else last
            outcome.problems += [f"round {number}: {one}" for one in found]
            if kept < seen:
                outcome.problems.append(f"round {number}: step {seen} was read, {kept} is the last")
            late = [at for step, at in told if step > kept]
            missing = died - min(late) if late else 0.0
            outcome.missing_seconds = max(outcome.missing_seconds, missing)
            outcome.seen += max(0, seen + 1)
            if missing > ALLOWED:
                outcome.problems.append(f"round {number}: {missing:.1f} s are missing")
        elif told and died - told[0][1] > ALLOWED:
            outcome.problems.append(f"round {number}: there is no file")
        if (number + 1) % ROUNDS_OF_A_FILE == 0 or number + 1 == count:
            outcome.steps += kept + 1 if path.exists() else 0
        print(f"\rkilled {number + 1} of {count}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    stray = [one.name for one in folder.rglob("*") if one.is_file() and "run.db" not in one.name]
    outcome.problems += [f"a file was left behind: {name}" for name in stray]
    return outcome


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(asdict(rounds(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))))
