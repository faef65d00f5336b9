"""What is said of a run, by the doctor and by the baselines, and whether it is right."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.baselines import BASELINES, SMOOTHED, alarms
from benchmarks.faults.kinds import BY_NAME
from benchmarks.faults.splits import HEALTHY
from cockpit.doctor import RULES, Doctor, Record, diagnose
from cockpit.findings import Finding
from cockpit.log import ParameterInfo, Row, open_file

DOCTOR = "doctor"
SAYERS = (DOCTOR, *BASELINES)


@dataclass(frozen=True)
class Said:
    """What one of `SAYERS` says of a run.

    Args:
        alarms: Names of the rules that gave an alarm, errors and warnings, once each, at whatever time.
        notes: Names of those that gave a note only.
        ranking: Names of the rules in the order of the final diagnosis.
        right: Step at which a rule was first named that names the cause; None if none was.
        place: Whether the first layer or sample that such a rule names is one of those with the fault; None
            where the fault is in no certain place, or no such rule was named.
    """

    alarms: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    ranking: tuple[str, ...] = ()
    right: int | None = None
    place: bool | None = None


@dataclass(frozen=True)
class Judged:
    """A run, and what was said of it.

    Args:
        run: What is known of the run, without its curves.
        shown: First step at which a plain check of the loss sees the fault; None if it never does.
        said: By sayer.
        failed: Rules that could not be evaluated.
    """

    run: dict[str, Any]
    said: dict[str, Said]
    shown: int | None = None
    failed: tuple[str, ...] = field(default=())

    def detected(self, sayer: str) -> bool:
        """Whether there was an alarm, or a note that names the cause."""
        said = self.said[sayer]
        return bool(said.alarms) or said.right is not None

    def named(self, sayer: str, first: int) -> bool:
        """Whether one of the first names is that of the cause."""
        return any(name in self.names(sayer) for name in self.said[sayer].ranking[:first])

    def names(self, sayer: str) -> tuple[str, ...]:
        """Return the names of the rules that name the cause."""
        if self.run["kind"] == HEALTHY:
            return ()
        kind = BY_NAME[self.run["kind"]]
        return kind.named if sayer == DOCTOR else kind.baselines

    def lead(self, sayer: str) -> int | None:
        """Return how many steps before the loss showed it the cause was named; negative if after."""
        right = self.said[sayer].right
        return None if right is None or self.shown is None else self.shown - right

    def record(self) -> dict[str, Any]:
        """Return it for programs."""
        run = {key: value for key, value in self.run.items() if key != "places"}
        return {**asdict(self), "run": run}


def judge(path: Path) -> Judged:
    """Judge a run.

    Args:
        path: The file of what is known of it, beside the run file.
    """
    known = json.loads(path.read_text(encoding="utf-8"))
    loss = [float(value) for value in known["loss"]]
    names = () if known["kind"] == HEALTHY else BY_NAME[known["kind"]].named
    file = path.parent / known["file"]
    record = Record.of_file(file)
    diagnosis = diagnose(record)
    said = {DOCTOR: by_doctor(replayed(file), diagnosis.findings, names, known["places"])}
    for sayer in BASELINES:
        right = () if known["kind"] == HEALTHY else BY_NAME[known["kind"]].baselines
        found = alarms(sayer, record, loss)
        rules = tuple(alarm.rule for alarm in found)
        hits = [alarm for alarm in found if alarm.rule in right]
        said[sayer] = Said(
            rules,
            (),
            rules,
            hits[0].step if hits else None,
            of_places(hits[0].subjects, known["places"]) if hits else None,
        )
    failed = tuple(one.reason for one in diagnosis.unchecked if one.failed)
    run = {key: value for key, value in known.items() if key not in ("loss", "valid")}
    return Judged(run, said, failed=failed)


def by_doctor(
    told: Sequence[tuple[int, Finding]],
    final: Sequence[Finding],
    names: Sequence[str],
    places: Sequence[str],
) -> Said:
    """Return what the doctor says.

    Args:
        told: What it tells while the run goes on, and when.
        final: What it says when the run is over, the most probable cause first.
        names: The rules that name the cause.
        places: The layers or samples with the fault.
    """
    known = {finding.name: finding for finding in [*(one for _, one in told), *final]}
    severities = {finding.name: finding.severity for finding in known.values()}
    of_step: dict[str, int] = {}
    for step, finding in told:
        of_step.setdefault(finding.name, step)
    hits = [finding for finding in final if finding.name in names]
    steps = [step for name, step in of_step.items() if name in names]
    return Said(
        tuple(name for name, severity in severities.items() if severity != "note"),
        tuple(name for name, severity in severities.items() if severity == "note"),
        tuple(finding.name for finding in final),
        min(steps) if steps else (hits[0].step if hits else None),
        of_places(hits[0].subjects, places) if hits else None,
    )


def replayed(path: Path) -> list[tuple[int, Finding]]:
    """Return what the doctor tells while the run goes on: the step at which it does so, and the finding."""
    rows, settings, parameters = rows_of(path)
    record = Record(settings, parameters, bounded=True)
    doctor, told = Doctor(record, RULES, ()), []
    for step, of_step in sorted(rows.items()):
        record.add(step, of_step, tracked=any(row.source == "quantity" for row in of_step))
        found: list[Finding] = []
        doctor.visit(found.append)
        told += [(step, finding) for finding in found]
    found = []
    doctor.visit(found.append, now=True)
    return told + [(max(rows), finding) for finding in found]


def rows_of(path: Path) -> tuple[dict[int, list[Row]], Mapping[str, Any], list[ParameterInfo]]:
    """Return the rows of a run file by step, its settings and its parameters."""
    rows: dict[int, list[Row]] = defaultdict(list)
    with open_file(path) as file:
        for one in file.series():
            values: Iterable[tuple[int, Any]] = ()
            if one.kind == "scalar":
                _, steps, numbers = file.scalars(one.id)
                values = zip(steps.tolist(), numbers.tolist(), strict=True)
            elif one.detail:
                values = [(step, array) for _, step, array in file.arrays(one.id)]
            for step, value in values:
                rows[step].append(
                    Row(one.quantity, value, one.key, one.parameter, one.detail, one.source)
                )
        return rows, file.settings, file.parameters


def of_places(subjects: Sequence[str], places: Sequence[str]) -> bool | None:
    """Whether the first subject is, or is a part of, one of the places; None where there are none."""
    if not places:
        return None
    return any(
        subject == p or subject.startswith(f"{p}.") for subject in subjects[:1] for p in places
    )


# -- when a plain check of the loss sees it -------------------------------------------------------


def smoothed(loss: Sequence[float]) -> np.ndarray:
    """Return the mean of the last few losses at every step."""
    values = np.asarray(loss, float)
    starts = np.maximum(np.arange(len(values)) - SMOOTHED + 1, 0)
    return np.array([values[start : at + 1].mean() for at, start in enumerate(starts)])


def bands(healthy: Iterable[Mapping[str, Any]]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the smallest and the largest smoothed loss of the healthy runs at every step, by architecture."""
    curves = defaultdict(list)
    for known in healthy:
        curves[known["architecture"]].append(smoothed([float(v) for v in known["loss"]]))
    return {name: (np.min(of, axis=0), np.max(of, axis=0)) for name, of in curves.items()}


def shown(judged: Judged, folder: Path, of_healthy: Mapping[str, Any]) -> Judged:
    """Return the same with the step at which the loss shows the fault."""
    band = of_healthy.get(judged.run["architecture"])
    if band is None or judged.run["kind"] == HEALTHY:
        return judged
    path = folder / judged.run["file"]
    known = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    loss = [float(value) for value in known["loss"]]
    return replace(judged, shown=shown_at(loss, band, judged.run["step"]))


def shown_at(loss: Sequence[float], band: tuple[np.ndarray, np.ndarray], since: int) -> int | None:
    """Return the first step, from that of the fault on, at which the loss shows it.

    That is: it is not finite, or its smoothed value is above the first loss, or outside of the band.
    """
    values = smoothed(loss)
    low, high = (
        np.append(side, np.repeat(side[-1], max(0, len(values) - len(side)))) for side in band
    )
    for step in range(since, len(values)):
        now = float(values[step])
        if not math.isfinite(float(loss[step])) or not math.isfinite(now):
            return step
        if (step >= SMOOTHED and now > loss[0]) or not low[step] <= now <= high[step]:
            return step
    return None
