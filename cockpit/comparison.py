"""Several runs side by side: where each stands, its best, and what was set otherwise."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cockpit.findings import SEVERITIES, Finding
from cockpit.instruments.reading import Curve, curve, moving, number
from cockpit.run import Run
from cockpit.summary import (
    About,
    about,
    arguments_of,
    flattened,
    readings,
    schedule_text,
    setting_text,
)

__all__ = ["Comparison", "Row", "compare", "labels_of"]

LOWER = re.compile(r"loss", re.IGNORECASE)
HIGHER = re.compile(r"accuracy")

NOISY = "Loss"
"""Of what is measured on mini-batches, the best is that of the moving average."""

QUANTITIES = "quantities."
"""What the names of settings begin with that are the text of a quantity."""

UNCOMPARED = re.compile(r"coverage\.|(platform|quantities)$")
"""Settings that follow from others, or say nothing of the training."""


@dataclass(frozen=True)
class Row:
    """What is compared, and the text for each run; empty where the run has nothing there."""

    name: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether the runs have different values."""
        return len(set(self.values)) > 1


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side.

    Args:
        labels: A short name for each run, all different.
        abouts: What each is.
        now: The value of each quantity, as in the summary of a single run.
        best: The best loss and accuracy of each, with the step.
        settings: The settings that differ.
        equal: How many settings are the same.
        findings: The first step at which each run has each finding.
    """

    labels: tuple[str, ...]
    abouts: tuple[About, ...]
    now: tuple[Row, ...]
    best: tuple[Row, ...]
    settings: tuple[Row, ...]
    equal: int
    findings: tuple[Row, ...]


def compare(runs: Sequence[Run]) -> Comparison:
    """Return several runs side by side."""
    values = [{line.quantity: line.value for line in readings(run)} for run in runs]
    bests = [_bests(run) for run in runs]
    settings = [_settings(run) for run in runs]
    all_settings = _rows(settings)
    missing = {row.name for row in all_settings if "" in row.values}
    differing = tuple(
        row for row in all_settings if row.differs and row.name.rpartition(".")[0] not in missing
    )
    return Comparison(
        labels=labels_of([run.path for run in runs]),
        abouts=tuple(about(run) for run in runs),
        now=_rows(values),
        best=_rows(bests),
        settings=differing,
        equal=sum(not row.differs for row in all_settings),
        findings=_findings(runs),
    )


def labels_of(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return the shortest ends of paths that tell them apart, without the ending of the file."""
    whole = [path.expanduser().absolute().with_suffix("").parts for path in paths]
    for length in range(1, max(map(len, whole), default=1) + 1):
        labels = tuple("/".join(parts[-length:]) for parts in whole)
        if len(set(labels)) == len(labels):
            return labels
    return tuple(f"{'/'.join(parts[-1:])} ({n})" for n, parts in enumerate(whole, 1))


def _rows(columns: Sequence[dict[str, str]]) -> tuple[Row, ...]:
    names = dict.fromkeys(name for column in columns for name in column)
    return tuple(Row(name, tuple(column.get(name, "") for column in columns)) for name in names)


def _settings(run: Run) -> dict[str, str]:
    """Return the settings of a run, those of its quantities one by one."""
    found: dict[str, str] = {}
    for name, value in flattened(run.settings).items():
        quantity = name.removeprefix(QUANTITIES)
        if quantity != name:
            found[quantity] = "tracked"
            found |= {f"{quantity}.{key}": schedule_text(one) for key, one in arguments_of(value)}
        elif not UNCOMPARED.match(name):
            found[name] = setting_text(name, value)
    return found


def _bests(run: Run) -> dict[str, str]:
    """Return the best value of the quantities of which it is known which values are good."""
    found = {}
    for name in run.quantities:
        sign = -1 if LOWER.search(name) else 1 if HIGHER.search(name) else 0
        data = curve(run, name) if sign else None
        best = _best(data, sign, name == NOISY) if data is not None else ""
        if best:
            found[name] = best
    return found


def _best(data: Curve, sign: int, noisy: bool) -> str:
    values = moving(data.values) if noisy else data.values
    finite = np.flatnonzero(np.isfinite(values))
    if not finite.size:
        return ""
    place = finite[np.argmax(sign * values[finite])]
    about = "~" if noisy else ""
    return f"{about}{number(float(values[place]))} at step {data.steps[place]:.0f}"


def _findings(runs: Sequence[Run]) -> tuple[Row, ...]:
    """Return a row for each finding that any run has, the worst first."""
    first: dict[str, dict[int, Finding]] = {}
    for place, run in enumerate(runs):
        for finding in run.finding_records():
            own = first.setdefault(f"{finding.code} {finding.name}", {})
            if place not in own or finding.step < own[place].step:
                own[place] = finding
    ordered = sorted(
        first.items(),
        key=lambda item: min(SEVERITIES.index(one.severity) for one in item[1].values()),
    )
    return tuple(
        Row(name, tuple(f"step {own[n].step}" if n in own else "" for n in range(len(runs))))
        for name, own in ordered
    )
