"""From judged runs to the numbers and tables of the benchmark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from benchmarks.faults.judging import DOCTOR, SAYERS, Judged
from benchmarks.faults.kinds import KINDS
from benchmarks.faults.splits import HEALTHY
from benchmarks.tables import Aim, Table

DETECTION, TOP_1, FALSE_ALARMS = 0.90, 0.80, 0.02
"""What the doctor should reach on the held-out half."""


@dataclass(frozen=True)
class Score:
    """How right somebody is about some runs with faults.

    Args:
        runs: How many there are.
        detection: Share of them of which anything was said: an alarm, or a note that names the cause.
        top_1: Share of which the first name was that of the cause.
        top_3: Share of which one of the first three was.
        place: Share of which the right layer or sample was named first, among those with the fault in some;
            None without any.
        lead: Median of the steps from the naming of the cause to the first step at which the loss shows the
            fault; None where it never does both.
        unseen: Share of which the loss never shows the fault.
    """

    runs: int
    detection: float
    top_1: float
    top_3: float
    place: float | None
    lead: float | None
    unseen: float

    @classmethod
    def of(cls, judged: Sequence[Judged], sayer: str) -> Score:
        """Count."""
        in_places = [one for one in judged if one.run["places"]]
        leads = [lead for one in judged if (lead := one.lead(sayer)) is not None]
        return cls(
            len(judged),
            share(judged, lambda one: one.detected(sayer)),
            share(judged, lambda one: one.named(sayer, 1)),
            share(judged, lambda one: one.named(sayer, 3)),
            share(in_places, lambda one: one.said[sayer].place is True) if in_places else None,
            median(leads) if leads else None,
            share(judged, lambda one: one.shown is None),
        )

    def cells(self) -> tuple[str, ...]:
        """Return the words of a table's row."""
        return (
            percent(self.detection),
            percent(self.top_1),
            percent(self.top_3),
            "" if self.place is None else percent(self.place),
            "" if self.lead is None else f"{self.lead:g}",
        )


@dataclass(frozen=True)
class Health:
    """What is said of healthy runs.

    Args:
        runs: How many there are.
        alarmed: Share of them with an error or a warning.
        alarms: Of these, how many rules per run.
        noted: Share with a note.
    """

    runs: int
    alarmed: float
    alarms: float
    noted: float

    @classmethod
    def of(cls, judged: Sequence[Judged], sayer: str) -> Health:
        """Count."""
        said = [one.said[sayer] for one in judged]
        return cls(
            len(said),
            share(said, lambda one: bool(one.alarms)),
            mean(len(one.alarms) for one in said) if said else 0.0,
            share(said, lambda one: bool(one.notes)),
        )

    def cells(self) -> tuple[str, ...]:
        """Return the words of a table's row."""
        return percent(self.alarmed), f"{self.alarms:.2f}", percent(self.noted)


def share(things: Sequence[Any], holds: Callable[[Any], bool]) -> float:
    """Return the share of the things for which something holds; 0 of none."""
    return sum(map(holds, things)) / len(things) if things else 0.0


def percent(value: float) -> str:
    """Return a share in percent."""
    return f"{100 * value:.0f} %" if value in (0, 1) or value >= 0.1 else f"{100 * value:.1f} %"


@dataclass(frozen=True)
class Half:
    """What is said of one half of the runs.

    Args:
        name: One of `benchmarks.faults.splits.HALVES`.
        judged: Its runs.
    """

    name: str
    judged: Sequence[Judged]

    @property
    def healthy(self) -> list[Judged]:
        """The healthy runs."""
        return [one for one in self.judged if one.run["kind"] == HEALTHY]

    @property
    def faulty(self) -> list[Judged]:
        """Those with a fault."""
        return [one for one in self.judged if one.run["kind"] != HEALTHY]

    def of_kind(self, kind: str) -> list[Judged]:
        """Return the runs with one kind of fault."""
        return [one for one in self.faulty if one.run["kind"] == kind]

    @property
    def kinds(self) -> list[str]:
        """The kinds of fault that there are runs of."""
        there = {one.run["kind"] for one in self.faulty}
        return [kind.name for kind in KINDS if kind.name in there]

    def aims(self) -> list[Aim]:
        """Return what the doctor should reach, as shares that should not be larger."""
        score, health = Score.of(self.faulty, DOCTOR), Health.of(self.healthy, DOCTOR)
        return [
            Aim("faulty runs undetected", 1 - score.detection, 1 - DETECTION),
            Aim("faulty runs whose first finding is not the cause", 1 - score.top_1, 1 - TOP_1),
            Aim("healthy runs with an alarm", health.alarmed, FALSE_ALARMS),
        ]

    def overall(self) -> Table:
        """Return the table of all sayers."""
        rows = []
        for sayer in SAYERS:
            score, health = Score.of(self.faulty, sayer), Health.of(self.healthy, sayer)
            rows.append((sayer, *score.cells(), *health.cells()))
        of_kinds = [Score.of(self.of_kind(kind), DOCTOR) for kind in self.kinds]
        notes = [
            f"{len(self.faulty)} runs with faults of {len(self.kinds)} kinds, {len(self.healthy)} healthy "
            f"runs. Mean over kinds rather than runs, for the doctor: detection "
            f"{percent(mean(s.detection for s in of_kinds))}, first cause "
            f"{percent(mean(s.top_1 for s in of_kinds))}."
            if of_kinds
            else f"{len(self.healthy)} healthy runs.",
        ]
        head = (
            *("", "detected", "cause first", "among 3", "place", "lead [steps]"),
            *("healthy with alarm", "alarms per healthy run", "healthy with note"),
        )
        return Table(f"The {self.name} half", head, rows, words=("",), notes=notes)

    def by_kind(self) -> Table:
        """Return the table of the kinds of fault."""
        rows = []
        for kind in self.kinds:
            judged = self.of_kind(kind)
            score = Score.of(judged, DOCTOR)
            others = [Score.of(judged, sayer) for sayer in SAYERS[1:]]
            rows.append(
                (
                    kind,
                    ", ".join(sorted({one.run["architecture"] for one in judged})),
                    str(len(judged)),
                    *score.cells(),
                    "" if not score.unseen else percent(score.unseen),
                    *(f"{percent(other.detection)} / {percent(other.top_1)}" for other in others),
                    said_instead(judged),
                )
            )
        head = (
            *("fault", "on", "runs", "detected", "cause first", "among 3", "place", "lead [steps]"),
            *("not shown by the loss", *SAYERS[1:], "named first instead"),
        )
        words = "fault", "on", "named first instead"
        return Table(f"By kind of fault, {self.name} half", head, rows, words=words)

    def alarmed(self) -> Table:
        """Return the table of what is said of healthy runs."""
        counts: dict[str, Counter[str]] = {sayer: Counter() for sayer in SAYERS}
        for one in self.healthy:
            for sayer in SAYERS:
                counts[sayer].update(one.said[sayer].alarms)
                counts[sayer].update(f"{name} (note)" for name in one.said[sayer].notes)
        rows = [
            (sayer, rule, str(count), percent(count / len(self.healthy)))
            for sayer in SAYERS
            for rule, count in counts[sayer].most_common()
        ]
        head = "", "rule", "healthy runs", "share"
        return Table(f"False alarms, {self.name} half", head, rows, words=("", "rule"))

    def data(self) -> dict[str, Any]:
        """Return it all for programs."""
        return {
            "overall": {
                sayer: vars(Score.of(self.faulty, sayer))
                | {"healthy": vars(Health.of(self.healthy, sayer))}
                for sayer in SAYERS
            },
            "kinds": {
                kind: {sayer: vars(Score.of(self.of_kind(kind), sayer)) for sayer in SAYERS}
                for kind in self.kinds
            },
            "runs": [one.record() for one in self.judged],
        }


def said_instead(judged: Iterable[Judged]) -> str:
    """Return what the doctor names first where that is not the cause, and how often."""
    wrong = Counter(
        (one.said[DOCTOR].ranking or ("nothing",))[0] for one in judged if not one.named(DOCTOR, 1)
    )
    return ", ".join(f"{name} ({count})" for name, count in wrong.most_common())
