"""From a run to what is wrong with it, the most probable cause first."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule
from cockpit.doctor.rules import RULES
from cockpit.findings import SEVERITIES, Finding, Severity


@dataclass(frozen=True)
class Unchecked:
    """A rule that could say nothing, and why.

    Args:
        code: Code of the rule.
        name: Its name.
        reason: Why, and what to do about it.
        failed: Whether the rule itself went wrong.
    """

    code: str
    name: str
    reason: str
    failed: bool = False


@dataclass(frozen=True)
class Consequence:
    """A finding that another one explains.

    Args:
        finding: The finding.
        cause: Code of the other one.
    """

    finding: Finding
    cause: str


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with a run, and what is not known of it.

    Args:
        findings: The causes, the most probable first.
        consequences: What these explain; it will go when they do.
        unchecked: The rules that could say nothing.
        checked: How many rules could.
    """

    findings: tuple[Finding, ...]
    consequences: tuple[Consequence, ...] = ()
    unchecked: tuple[Unchecked, ...] = ()
    checked: int = 0

    @property
    def worst(self) -> Severity | None:
        """The worst severity among the findings; None without any."""
        ranks = [SEVERITIES.index(finding.severity) for finding in self.findings]
        return SEVERITIES[min(ranks)] if ranks else None


def diagnose(run: Record | str | os.PathLike[str], rules: Iterable[Rule] = RULES) -> Diagnosis:
    """Say what is wrong with a run.

    The same record gives the same diagnosis. Findings that the run file already holds, of rules that
    are not among these, are taken over.

    Args:
        run: What was recorded, or the path of a run file.
        rules: What to look for.

    Raises:
        NotARunFile: There is no such file, or it is no run file.
    """
    record = run if isinstance(run, Record) else Record.of_file(run)
    rules = tuple(rules)
    found: list[Finding] = []
    unchecked: list[Unchecked] = []
    for rule in rules:
        try:
            seen = rule.examine(record)
        except Exception as error:  # a rule that fails says nothing, and hides no other one
            reason = f"the rule failed ({type(error).__name__}: {error})"
            unchecked.append(Unchecked(rule.code, rule.name, reason, failed=True))
            continue
        if isinstance(seen, NotKnown):
            unchecked.append(Unchecked(rule.code, rule.name, seen.reason))
        elif seen is not None:
            found.append(seen)
    own = {rule.code for rule in rules}
    found += [finding for finding in record.findings if finding.code not in own]
    causes, consequences = _explained(found, {rule.name: rule for rule in rules})
    return Diagnosis(
        tuple(sorted(causes, key=_rank)),
        tuple(consequences),
        tuple(unchecked),
        len(rules) - len(unchecked),
    )


def _rank(finding: Finding) -> tuple[int, float, int, str]:
    """Order findings: the worst first, then the surest, then the earliest."""
    severity = SEVERITIES.index(finding.severity)
    return severity, -finding.confidence, finding.step, finding.code


def _explained(
    found: Sequence[Finding], rules: Mapping[str, Rule]
) -> tuple[list[Finding], list[Consequence]]:
    of_which = {  # by code, what may explain it
        finding.code: [
            other
            for other in found
            if other.name in rules and _explains(rules[other.name], other, finding)
        ]
        for finding in found
    }
    behind = {finding.code: _behind(finding, of_which) for finding in found}
    causes, consequences = [], []
    for finding in found:
        # Of those that explain each other in a circle, the one that was there first is the cause.
        circle = [
            other
            for other in found
            if other.code in behind[finding.code] and finding.code in behind[other.code]
        ]
        first = bool(circle) and min(circle, key=_age) is finding
        of = [other for other in of_which[finding.code] if not (first and other in circle)]
        if of:
            consequences.append(Consequence(finding, min(of, key=_rank).code))
        else:
            causes.append(finding)
    return causes, consequences


def _behind(finding: Finding, of_which: Mapping[str, Sequence[Finding]]) -> set[str]:
    """Return the codes of all that may explain a finding, by way of others too."""
    codes: set[str] = set()
    waiting = [finding]
    while waiting:
        for other in of_which[waiting.pop().code]:
            if other.code not in codes:
                codes.add(other.code)
                waiting.append(other)
    return codes


def _age(finding: Finding) -> tuple[int, tuple[int, float, int, str]]:
    """Order findings: the earliest first."""
    return finding.step, _rank(finding)


def _explains(rule: Rule, cause: Finding, consequence: Finding) -> bool:
    """Whether a finding of a rule explains another one."""
    if consequence.name not in rule.explains:
        return False
    if not cause.subjects or not consequence.subjects:
        return True
    if rule.spreads:
        return cause.step <= consequence.step
    return set(consequence.subjects) <= set(cause.subjects)
