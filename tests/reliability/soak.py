"""The long checks that nothing is lost: ``make soak``, or ``python -m reliability.soak --help``.

Each of them is what a test of this folder does in little. It prints how far it is, and a table at the end.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Check:
    """One promise, and what was seen.

    Attributes:
        what: What was done.
        seen: Figures.
        problems: What should not have been; none where the promise holds.
    """

    what: str
    seen: str
    problems: tuple[str, ...] = ()


def crash(folder: Path, scale: float) -> list[Check]:
    """Kill 200 trainings."""
    count = max(2, round(200 * scale))
    found = module("crash", folder, count, 1)
    seen = (
        f"{found['files']} files with {found['steps']:,} steps; killed before the first step "
        f"{found['before_the_first_step']}; at most {found['missing_seconds']:.2f} s missing"
    )
    return [Check(f"kill -9, {found['rounds']} times", seen, tuple(found["problems"]))]


def concurrency(folder: Path, scale: float) -> list[Check]:
    """Let one process write and eight read for 60 s."""
    seconds = max(2.0, 60 * scale)
    found = module("concurrency", folder, seconds, 8)
    seen = (
        f"{found['steps']:,} steps, {found['rows_a_second']:,} rows a second, "
        f"{sum(found['looks']):,} looks, at least {min(found['looks'])} by each reader; "
        f"write-ahead log at most {found['largest_wal_mib']} MiB"
    )
    return [Check(f"one writer, 8 readers, {seconds:.0f} s", seen, tuple(found["problems"]))]


def long_runs(folder: Path, scale: float) -> list[Check]:
    """Write ten million numbers and a hundred thousand histograms."""
    scalars, arrays = round(10_000_000 * scale), round(100_000 * scale)
    found = module("long_runs", folder, scalars, arrays)
    checks = []
    for name, one in found.items():
        growth = one["writer_mib_at_last"] - one["writer_mib_at_first"]
        problems = [
            f"memory of the {who} grew by {grown:.0f} MiB"
            for who, grown in (("writer", growth), ("reader", one["reader_peak_mib"]))
            if grown > 200
        ]
        if one["numbers"] != scalars:
            problems.append(f"{one['numbers']:,} of {scalars:,} numbers are there")
        seen = (
            f"file {one['file_mib']:.1f} MiB, {sum(one['arrays'].values()):,} histograms kept; writer "
            f"{one['writer_mib_at_first']:.0f} MiB at first, {one['writer_mib_at_last']:.0f} at last; reader "
            f"{one['reader_peak_mib']:.0f} MiB; written in {one['seconds']:.0f} s, read in "
            f"{one['read_seconds']:.1f} s"
        )
        checks.append(
            Check(f"{scalars:,} numbers, {arrays:,} histograms, {name}", seen, tuple(problems))
        )
    return checks


def forks(folder: Path, scale: float) -> list[Check]:
    """Fork 200 processes from one that writes."""
    from reliability.test_failing_disk import check_forks

    count = max(2, round(200 * scale))
    check_forks(folder / "run.db", 1, count)
    return [Check(f"{count} forks amid writing", "no row lost, file intact")]


def full_disk(folder: Path, scale: float) -> list[Check]:
    """Fill a small file system, and make room again."""
    what, size = "a file system of 16 MiB fills up and is emptied", "size=16m"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "none", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        return [Check(what, "NOT RUN: this user may not mount a file system")]
    try:
        return [Check(what, *fill(folder / "runs" / "run.db", folder / "ballast"))]
    finally:
        subprocess.run(["umount", str(folder)], check=False)


def fill(path: Path, ballast: Path) -> tuple[str, tuple[str, ...]]:
    """Record more than there is room for, make room, and return what was seen and what was wrong."""
    import warnings

    import numpy as np

    from cockpit.log import Row, RunFile, RunWriter

    ballast.write_bytes(bytes(15 * 2**20))
    generator = np.random.default_rng(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        writer = RunWriter(path)
        for step in range(300):
            writer.record(step, [Row("a", float(step)), Row("h", generator.random(1000))])
            if step % 20 == 0:
                writer.flush()
        with RunFile(path) as file:
            during = file.extent()[0]
        ballast.unlink()
        writer.flush()
        writer.close()
    with RunFile(path) as file:
        after = file.extent()[0]
        message = " ".join(e.message for e in file.events() if e.kind == "log-interrupted")
    problems = [] if after == 300 else [f"{after} of 300 steps are there"]
    problems += [] if len(caught) == 1 else [f"{len(caught)} warnings"]
    problems += [] if during < 300 else ["the disk was never full"]
    return f"{during} of 300 steps while it was full, {after} afterwards; {message}", tuple(
        problems
    )


def page(folder: Path, scale: float) -> list[Check]:
    """Let 200 clients ask the live page for 30 s while a training runs."""
    seconds = max(3.0, 30 * scale)
    found = module("page_attack", seconds, 200)
    wall, own = found["wall_ms"], found["cpu_ms"]
    quiet = (own["before"] + own["after"]) / 2
    seen = (
        f"answers {found['answers']}, the slowest after {found['longest']} s; page "
        f"{found['page_mib'][0]} MiB before, {found['page_mib'][1]} after; a step of the training "
        f"takes {own['during'] / quiet:.2f} times the processor's time ({own}), {wall} ms in all"
    )
    problems = [] if found["up"] else ["the page is down"]
    problems += [f"it complained in {found['errors']} lines"] if found["errors"] else []
    problems += [f"{n} answers {s}" for s, n in found["answers"].items() if s not in ("200", "503")]
    return [Check(f"200 clients of the page, {seconds:.0f} s", seen, tuple(problems))]


def fuzz(folder: Path, scale: float) -> list[Check]:
    """Feed a million broken inputs to all that reads files and requests."""
    what = "broken files and requests"
    if importlib.util.find_spec("atheris") is None:
        return [Check(what, "NOT RUN: it needs the extra fuzz")]
    words = ("reliability.fuzz", "--share", str(scale), "--folder", str(folder))
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=TESTS)
    *_, total = done.stdout.split() or ["0"]
    problems = () if done.returncode == 0 else (done.stdout[-2000:],)
    return [Check(what, f"{total} inputs", problems)]


def no_interference(folder: Path, scale: float) -> list[Check]:
    """Train 200 steps with every set of quantities and without, and track 2,000 steps for the memory."""
    steps, tracked = max(10, round(200 * scale)), max(100, round(2000 * scale))
    apart = module("harmless", "bits", steps)
    problems = [f"{name}: {', '.join(where[:3])}" for name, where in apart.items() if where]
    seen = f"{len(apart)} trainings, {len(problems)} of them another one than without the cockpit"
    checks = [Check(f"every bit of {steps} steps", seen, tuple(problems))]
    for name, growth in module("harmless", "memory", tracked).items():
        problems = [f"{growth['tensors']} more tensors"] if growth["tensors"] >= 10 else []
        problems += ["objects are left behind"] if growth["objects_a_step"] >= 0.5 else []
        problems += [f"{growth['mib']} MiB more"] if growth["mib"] >= 8 else []
        seen = (
            f"in the second half {growth['mib']} MiB, {growth['tensors']} tensors and "
            f"{growth['objects_a_step']} objects a step more"
        )
        checks.append(
            Check(f"memory over {tracked:,} tracked steps, {name}", seen, tuple(problems))
        )
    return checks


CHECKS: dict[str, Callable[[Path, float], list[Check]]] = {
    "crash": crash,
    "concurrency": concurrency,
    "forks": forks,
    "full-disk": full_disk,
    "long-runs": long_runs,
    "page": page,
    "no-interference": no_interference,
    "fuzz": fuzz,
}


def module(name: str, *arguments: Any) -> Any:
    """Return what a module of this folder prints, run in a process of its own; its progress is shown."""
    command = [sys.executable, "-m", f"reliability.{name}", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=TESTS, check=True)
    return json.loads(done.stdout)


def run(names: list[str], scale: float) -> list[Check]:
    """Run checks one after the other, each in a folder of its own that goes afterwards."""
    found = []
    for place, name in enumerate(names, 1):
        print(f"[{place} of {len(names)}] {name}: {CHECKS[name].__doc__}", flush=True)
        folder, begun = Path(tempfile.mkdtemp(prefix="cockpit-soak-")), time.monotonic()
        try:
            found += CHECKS[name](folder, scale)
        except Exception as error:
            found.append(Check(name, "", (f"{type(error).__name__}: {error}",)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(f"    took {time.monotonic() - begun:.0f} s", flush=True)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the checks that are asked for; return 0 if all promises held, 1 if not."""
    parser = argparse.ArgumentParser(
        prog="python -m reliability.soak", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"{', '.join(CHECKS)}; or all")
    parser.add_argument("--scale", type=float, default=1.0, help="0.01 for a hundredth of the work")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.checks) - set(CHECKS))
    if unknown:
        parser.error(f"there is no check {unknown[0]!r}; there are {', '.join(CHECKS)}")
    if options.scale <= 0:
        parser.error("--scale must be positive")
    found = run(options.checks or list(CHECKS), options.scale)
    print("\n| check | seen | |\n|---|---|---|")
    for check in found:
        held = "NOT RUN" if check.seen.startswith("NOT RUN") else "held"
        verdict = f"BROKEN: {'; '.join(check.problems)}" if check.problems else held
        print(f"| {check.what} | {check.seen} | {verdict} |")
    return 1 if any(check.problems for check in found) else 0


if __name__ == "__main__":
    sys.exit(main())
