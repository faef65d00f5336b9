"""The tables as they are printed and written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.faults.recording import write as write_file
from benchmarks.faults.summary import Half
from benchmarks.machine import described, machine
from benchmarks.readme import between
from benchmarks.tables import Aim, Section, Table

HELD_OUT = "held-out"
WIDTH = 200
"""Columns that the widest table takes, where there is no terminal to say how wide it is."""
RESULTS = Path(__file__).parents[1] / "results" / "faults"
DOCS = Path(__file__).parents[2] / "docs" / "fault-benchmark.md"
BEGIN, END = "<!-- table: make faults -->", "<!-- end of the table -->"


def tables(half: Half) -> Iterable[Table]:
    """Yield the tables of a half."""
    yield half.overall()
    if half.faulty:
        yield half.by_kind()
    if half.healthy:
        yield half.alarmed()


def keep_cost(path: Path, section: Section) -> None:
    """Write what the preset costs, for the tables that are made later."""
    content = {
        "machine": described(machine()),
        "tables": [asdict(table) for table in section.tables],
        "aims": [asdict(aim) for aim in section.aims],
        "data": section.data,
    }
    write_file(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def kept_cost(path: Path) -> Section | None:
    """Return what was written of the cost, if it was."""
    if not path.exists():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    return Section(
        [Table(**table) for table in content["tables"]],
        [Aim(**aim) for aim in content["aims"]],
        content["data"] | {"machine": content["machine"]},
    )


def markdown(halves: Sequence[Half], cost: Section | None = None) -> str:
    """Return the tables of all halves, those of the cost, and what should be reached."""
    parts = [table.markdown() for half in halves for table in tables(half)]
    aims = [f"- {aim}" for half in halves if half.name == HELD_OUT for aim in half.aims()]
    if cost is not None:
        parts += [table.markdown() for table in cost.tables]
        aims += [f"- {aim}" for aim in cost.aims]
    return "\n".join([*parts, "## Aims\n", *aims, ""])


def write(halves: Sequence[Half], cost: Section | None = None) -> list[Path]:
    """Write the results for programs and people, and the tables of the documentation."""
    found = machine()
    data = {
        "machine": found,
        "halves": {half.name: half.data() for half in halves},
        "cost": None if cost is None else cost.data,
    }
    text = markdown(halves, cost)
    RESULTS.parent.mkdir(exist_ok=True)
    paths = [RESULTS.with_suffix(".json"), RESULTS.with_suffix(".md"), DOCS]
    write_file(paths[0], json.dumps(data, separators=(",", ":"), allow_nan=False) + "\n")
    write_file(paths[1], f"# The fault benchmark\n\n{described(found)}.\n\n{text}")
    write_file(DOCS, updated(DOCS.read_text(encoding="utf-8"), text))
    return paths


def updated(page: str, tables: str) -> str:
    """Return the page with these tables.

    Raises:
        ValueError: if the place of the tables is not marked once.
    """
    return between(page, BEGIN, END, f"\n{tables}")
