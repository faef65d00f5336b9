"""Fuzz all targets, or one: ``python -m reliability.fuzz [TARGET] [--share 1.0]``.

Without a target, one process after the other fuzzes each of them for its number of inputs, more than a
million in all, and a table says how many there were. Each process is guided by which lines of the
package an input reaches. What breaks a target is kept in a file, which is named.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

INPUTS = {
    "blocks": 300_000,
    "steps": 300_000,
    "arrays": 200_000,
    "texts": 100_000,
    "findings": 100_000,
    "settings": 100_000,
    "queries": 100_000,
    "names": 50_000,
    "json_files": 50_000,
    "run_files": 5_000,
    "edited_run_files": 20_000,
}
LONGEST = {"run_files": 2**17, "edited_run_files": 400, "json_files": 4096}
SLOW_SECONDS = 30
MEMORY_MIB = 4096
PACKAGES = ("cockpit",)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m reliability.fuzz", description=__doc__)
    parser.add_argument("target", nargs="?", choices=tuple(INPUTS), help="only this one")
    parser.add_argument("--share", type=float, default=1.0, help="of the inputs (default: all)")
    parser.add_argument("--folder", type=Path, help="where to keep inputs (default: a new one)")
    chosen = parser.parse_args()
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="cockpit-fuzz-"))
    if chosen.target is not None:
        _fuzz(chosen.target, chosen.share, folder)
    return _all(chosen.share, folder)


def _all(share: float, folder: Path) -> int:
    total, broken = 0, []
    print(f"inputs are kept in {folder}\n\n{'target':18}{'inputs':>10}{'seconds':>9}  found")
    for target in INPUTS:
        begun = time.monotonic()
        words = (target, "--share", str(share), "--folder", str(folder))
        command = [sys.executable, "-m", "reliability.fuzz", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        log = done.stdout + done.stderr
        counts = re.findall(
            r"^(?:Done |#|stat::number_of_executed_units:\s*)(\d+)", log, re.MULTILINE
        )
        count = max(map(int, counts), default=0)
        total += count
        found = "nothing" if done.returncode == 0 else "broken"
        print(f"{target:18}{count:10}{time.monotonic() - begun:9.0f}  {found}", flush=True)
        if done.returncode:
            broken.append(target)
            print(log[-3000:])
    print(f"{'all':18}{total:10}")
    return int(bool(broken))


def _fuzz(target: str, share: float, folder: Path) -> None:
    """Fuzz one target; libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=list(PACKAGES)):
        from reliability.fuzz.targets import TARGETS, seeds
    corpus = folder / target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(target)):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = {
        "runs": max(1, round(share * INPUTS[target])),
        "max_len": LONGEST.get(target, 1024),
        "timeout": SLOW_SECONDS,
        "rss_limit_mb": MEMORY_MIB,
        "artifact_prefix": f"{folder}/{target}-",
        "print_final_stats": 1,
    }
    words = [f"-{name}={value}" for name, value in options.items()]
    atheris.Setup([sys.argv[0], *words, str(corpus)], TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
