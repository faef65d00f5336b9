"""On what was measured."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import cockpit

PACKAGES = ("numpy", "torchvision", "transformers", "backpack-for-pytorch")


def machine() -> dict[str, object]:
    """Return the processor, the threads and the versions."""
    found: dict[str, object] = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "cockpit": cockpit.__version__,
        "torch": torch.__version__,
    }
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def processor() -> str:
    """Return the name of the processor, as well as the system tells it."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def described(machine: dict[str, object]) -> str:
    """Return a line that says it."""
    return ", ".join(f"{key} {value}" for key, value in machine.items())
