"""Repeated blocks in one line: ``layers.0.weight`` ... ``layers.11.weight`` as ``layers.0-11.weight``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from cockpit.coverage.rows import ParameterCoverage


def grouped(rows: Iterable[ParameterCoverage]) -> list[tuple[str, list[ParameterCoverage]]]:
    """Put parameters that differ in nothing but numbers in their names together.

    Returns:
        A name for each group, which stands for exactly its members, in the order of the first ones.
    """
    alike: dict[tuple[object, ...], list[ParameterCoverage]] = {}
    position: dict[str, int] = {}
    for row in rows:
        position[row.name] = len(position)
        alike.setdefault((template(row.name), *row.likeness), []).append(row)
    groups = []
    for members in alike.values():
        of_name = {row.name: row for row in members}
        for name, names in collapsed(list(of_name)):
            groups.append((name, [of_name[one] for one in names]))
    return sorted(groups, key=lambda group: position[group[1][0].name])


def joined_names(names: Sequence[str], most: int = 6) -> str:
    """Write names in one line, those of repeated blocks together, and the first ones where there are many."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        alike.setdefault(template(name), []).append(name or "the model itself")
    joined = [name for found in alike.values() for name, _ in collapsed(found)]
    more = f" and {len(joined) - most} more" if len(joined) > most else ""
    return ", ".join(joined[:most]) + more


def template(name: str) -> tuple[str, ...]:
    """Return what stands between the numbers of a name."""
    return tuple(_parts(name)[::2])


def _parts(name: str) -> list[str]:
    """Cut a name at its numbers: text, number, text, ..., text."""
    return re.split(r"(\d+)", name)


def collapsed(names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Join names of one template, number by number from the right, where all else is equal.

    Numbers are joined only where that leaves a full grid, so that a joined name says nothing that
    is not so: ``0.a.0``, ``0.a.1``, ``1.a.0`` become ``0.a.0-1`` and ``1.a.0``.
    """
    entries = [(_parts(name), [name]) for name in names]
    for position in reversed(range(1, len(entries[0][0]), 2)):
        kin: dict[tuple[str, ...], list[tuple[list[str], list[str]]]] = {}
        for parts, members in entries:
            others = (*parts[:position], *parts[position + 1 :])
            kin.setdefault(others, []).append((parts, members))
        entries = []
        for found in kin.values():
            parts = [*found[0][0]]
            parts[position] = ranges(int(other[position]) for other, _ in found)
            entries.append((parts, [name for _, members in found for name in members]))
    return [("".join(parts), members) for parts, members in entries]


def ranges(numbers: Iterable[int]) -> str:
    """Write numbers with runs joined: ``0-2,5``."""
    runs = []
    for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        values = [number for _, number in run]
        runs.append(str(values[0]) if len(values) == 1 else f"{values[0]}-{values[-1]}")
    return ",".join(runs)
