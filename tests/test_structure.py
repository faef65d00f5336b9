"""The floors of the package: imports only point down, and a training loads nothing of the reading side."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cockpit

PACKAGE = Path(cockpit.__file__).parent

TRAINING = [
    {"errors", "findings", "histograms", "printable", "schedules", "transforms", "_version"},
    {"gradients", "curvature"},
    {"engine"},
    {"quantities", "presets"},
    {"log"},
    {"doctor"},
    {
        "budget",
        "rows",
        "reports",
        "arguments",
        "coverage",
        "forwarding",
        "agenda",
        "pace",
        "recording",
        "cockpit",
    },
    {"integrations", "profiling", "utils"},
]
READING = [
    {"_version", "errors", "findings", "log", "printable", "replacing"},
    {"run", "doctor"},
    {"instruments"},
    {"plotting", "plotter"},
    {"summary"},
    {"comparison"},
    {"terminal", "report", "export", "dashboard"},
    {"demo"},
    {"cli", "__main__"},
]
BOTH = {"__init__", "demo", "cli", "__main__"}
"""Modules that join the two sides."""


def floors(side: list[set[str]]) -> dict[str, int]:
    return {part: floor for floor, parts in enumerate(side) for part in parts}


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Return the parts of the package that a file imports."""
    tree = ast.parse(path.read_text())
    found = set()
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and getattr(branch.test, "id", "") == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "cockpit":
                found |= {alias.name for alias in node.names}
            elif node.module.startswith("cockpit."):
                found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("cockpit.")}
    return found


FILES = sorted(path for path in PACKAGE.rglob("*.py") if part_of(path) != "__init__")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    part = part_of(path)
    known = set().union(*TRAINING, *READING) | BOTH
    assert part in known, f"{part} has no floor"
    if part in BOTH:
        return
    side = floors(TRAINING) if part in floors(TRAINING) else floors(READING)
    for imported in imports(path) & known:
        if part == "recording" and imported == "run":
            continue  # loaded when somebody asks a cockpit for its run
        if part == "run" and imported == "plotter":
            continue  # loaded when somebody plots a run
        if part == "export" and imported == "integrations":
            continue  # event files are written as in a training that forwards to TensorBoard
        assert imported in side, f"{part} reaches over to {imported}"
        assert side[imported] <= side[part], f"{part} reaches up to {imported}"


@pytest.mark.parametrize(
    "statement", ["import cockpit", "from cockpit import Cockpit, configuration, quantities"]
)
def test_a_training_loads_neither_pandas_nor_matplotlib(statement: str) -> None:
    code = f"import sys; {statement}; print([m for m in ('pandas', 'matplotlib', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_reads_runs_does_not_load_torch() -> None:
    parts = (
        "cli",
        "comparison",
        "doctor",
        "export",
        "plotter",
        "report",
        "run",
        "summary",
        "terminal",
    )
    modules = ", ".join(f"cockpit.{part}" for part in parts)
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", cockpit.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(cockpit, name) is not None
    assert name in dir(cockpit)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Cokpit'"):
        _ = cockpit.Cokpit


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_file_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))
