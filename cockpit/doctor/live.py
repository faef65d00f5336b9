"""The doctor beside a training: looks at what is written, and says what it finds once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cockpit.doctor.diagnosis import Diagnosis, Unchecked, diagnose
from cockpit.doctor.record import Record
from cockpit.doctor.rule import Rule
from cockpit.doctor.rules import RULES
from cockpit.errors import CockpitError, InvalidArgument, InvalidType, warn
from cockpit.findings import Finding
from cockpit.log import Row, RunWriter

logger = logging.getLogger("cockpit")

AT_FIRST, EVERY = 8, 8
"""It looks at the run at each of the first tracked steps, and then at every eighth."""

Reaction = str | Callable[[Finding], Any]

REACTIONS = ("log", "warn", "raise", "stop")
"""What may be done with a finding, beside a function of one's own; the last two are the same."""


class TrainingStopped(CockpitError):
    """The doctor has found what it was asked to stop the training for: ``error.finding``.

    It is raised where ``with watch(...)`` ends, after the backward pass and before the optimizer's step. What
    was recorded is in the run file.
    """

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding}. {finding.action}")
        self.finding = finding


class AttendedWriter(RunWriter):
    """A `RunWriter` that lets the doctor see what it writes.

    Args:
        arguments: Those of a `RunWriter`.
        attended: Takes the rows.
        keywords: Those of a `RunWriter`.
    """

    def __init__(self, *arguments: Any, attended: Record, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._attended = attended

    def record(self, step: int, rows: Sequence[Row], *, tracked: bool = True) -> None:
        """Hand over the rows of a step to both."""
        super().record(step, rows, tracked=tracked)
        self._attended.add(step, rows, tracked=tracked)


def read_rules(doctor: Any) -> tuple[Rule, ...]:
    """Return the rules that ``doctor=`` stands for; none for None and False.

    Raises:
        InvalidType: if it is neither a truth value nor made of rules.
    """
    if doctor is None or isinstance(doctor, bool):
        return RULES if doctor else ()
    rules = (
        tuple(doctor) if isinstance(doctor, Iterable) and not isinstance(doctor, str) else (doctor,)
    )
    for rule in rules:
        if not isinstance(rule, Rule):
            raise InvalidType(
                f"doctor= takes True or a list of rules, got {rule!r}. Those there are: "
                "cockpit.doctor.RULES."
            )
    return rules


def read_reactions(on_finding: Any, rules: Sequence[Rule]) -> tuple[Reaction, ...]:
    """Return what is to be done with a finding, to warn unless told otherwise.

    Raises:
        InvalidArgument: if one is a word that means nothing, or nobody looks for findings.
        InvalidType: if one is neither a word nor a function.
    """
    if on_finding is None:
        return ("warn",)
    if not rules:
        raise InvalidArgument("on_finding= is for the doctor's findings: give doctor=True as well.")
    single = isinstance(on_finding, str) or not isinstance(on_finding, Iterable)
    reactions = (on_finding,) if single else tuple(on_finding)
    for reaction in reactions:
        if isinstance(reaction, str) and reaction not in REACTIONS:
            known = ", ".join(map(repr, REACTIONS))
            raise InvalidArgument(f"on_finding={reaction!r} is none. Give {known}, or a function.")
        if not isinstance(reaction, str) and not callable(reaction):
            raise InvalidType(
                f"on_finding takes words and functions of a finding, got {reaction!r}."
            )
    return reactions


class Doctor:
    """Diagnoses a run every few tracked steps, and tells each finding once.

    Whatever goes wrong in here is warned of once, and leaves the training alone.

    Args:
        record: What the run has recorded.
        rules: What to look for.
        reactions: What to do with a finding.
    """

    def __init__(
        self, record: Record, rules: Iterable[Rule], reactions: Iterable[Reaction]
    ) -> None:
        self.run, self._rules, self._reactions = record, tuple(rules), tuple(reactions)
        self.diagnosis = Diagnosis(())
        """What was seen last."""
        self._seen = 0  # tracked steps when it looked last
        self._told: set[str] = set()
        self._failed: set[str] = set()

    def remember(self, findings: Iterable[Finding]) -> None:
        """Do not tell again what an earlier part of the run was told."""
        self._told |= {finding.code for finding in findings}

    def visit(self, write: Callable[[Finding], None], *, now: bool = False) -> None:
        """Look at the run, if it is time to.

        Args:
            write: Takes each new finding.
            now: Whether it is time in any case.

        Raises:
            TrainingStopped: if that was asked for and there is a finding.
        """
        new = self.run.tracked - self._seen
        if not new or not (now or self.run.tracked <= AT_FIRST or new >= EVERY):
            return
        self._seen = self.run.tracked
        self.diagnosis = diagnose(self.run, self._rules)
        self._report(self.diagnosis.unchecked)
        stop = None
        for finding in self.diagnosis.findings:
            if finding.code not in self._told:
                self._told.add(finding.code)
                write(finding)
                stop = self._react(finding) or stop
        if stop is not None:
            raise stop

    def _react(self, finding: Finding) -> TrainingStopped | None:
        """Do what is to be done with a finding; return what is to be raised."""
        stop = None
        for reaction in self._reactions:
            if reaction in ("raise", "stop"):
                stop = TrainingStopped(finding)
            elif reaction == "warn":
                warn(f"{finding}. {finding.action}")
            elif reaction == "log":
                logger.warning("%s. %s", finding, finding.action)
            elif callable(reaction):
                try:
                    reaction(finding)
                except TrainingStopped as error:
                    stop = error
                except Exception as error:
                    name = getattr(reaction, "__name__", repr(reaction))
                    self._complain(
                        name, f"on_finding={name} failed ({type(error).__name__}: {error})"
                    )
        return stop

    def _report(self, unchecked: Iterable[Unchecked]) -> None:
        for one in unchecked:
            if one.failed:
                self._complain(one.code, f"The doctor: {one.code} {one.name}: {one.reason}")

    def _complain(self, subject: str, message: str) -> None:
        if subject not in self._failed:
            self._failed.add(subject)
            warn(f"{message}. The training goes on.")
