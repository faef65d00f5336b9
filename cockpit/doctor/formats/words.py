"""What the formats have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cockpit.doctor.diagnosis import Diagnosis
from cockpit.findings import SEVERITIES, Finding


def headline(diagnosis: Diagnosis) -> str:
    """Return the outcome in one sentence."""
    counts = {
        severity: sum(one.severity == severity for one in diagnosis.findings)
        for severity in SEVERITIES
    }
    found = ", ".join(plural(count, severity) for severity, count in counts.items() if count)
    checked = f"{plural(diagnosis.checked, 'rule')} checked"
    unknown = f", {len(diagnosis.unchecked)} not" if diagnosis.unchecked else ""
    return f"{found or 'Nothing found'} ({checked}{unknown})"


def plural(count: int, what: str) -> str:
    """Return a count of something, in words."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def evidence(finding: Finding) -> str:
    """Return what a finding rests on, in one line."""
    return "; ".join(f"{name}: {shown(value)}" for name, value in finding.evidence.items())


def shown(value: Any) -> str:
    """Return a value of the evidence."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(shown, value)) if isinstance(value, list) else str(value)


def subjects(finding: Finding, at_most: int = 8) -> str:
    """Return the layers, parameters or samples concerned."""
    names = finding.subjects
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more


def percent(confidence: float) -> str:
    """Return a confidence in per cent."""
    return f"{100 * confidence:.0f} %"


def grouped(reasons: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    """Return names by the reason that they have in common, in the order of appearance."""
    found: dict[str, list[str]] = {}
    for name, reason in reasons:
        found.setdefault(reason, []).append(name)
    return found
