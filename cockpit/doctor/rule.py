"""What a rule is: texts, what it reads, and one pure function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cockpit.doctor.record import Record
from cockpit.findings import Finding, Severity


@dataclass(frozen=True)
class Sign:
    """What a rule has seen; the texts of the rule make a finding of it.

    Args:
        step: The first step at which it could be known.
        subjects: The layers, parameters or samples concerned, the worst first; none for the training
            as a whole.
        evidence: What it rests on: numbers, words and lists of these, by name.
        confidence: How sure it is, from 0 to 1.
        title: In the place of the rule's title.
        severity: In the place of the rule's severity.
    """

    step: int
    subjects: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    confidence: float = 1.0
    title: str | None = None
    severity: Severity | None = None


@dataclass(frozen=True)
class NotKnown:
    """Why a rule can say nothing of a run, and what to do about it."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One kind of fault, and how it shows.

    Args:
        code: Never changes its meaning, such as ``"CP204"``.
        name: The code in words.
        severity: See `cockpit.Finding`.
        title: What is wrong, in one line.
        why: Why it matters.
        action: What to do.
        source: Where the rule comes from.
        needs: Quantities without which it can say nothing.
        check: Looks at a run; it must not change it. None: nothing is wrong.
        least: Tracked steps without which it can say nothing.
        explains: Names of rules whose findings are consequences of this one, if they are of the same
            subjects, or one of the two is of the training as a whole.
        spreads: Whether what is wrong with some layers can be the cause of what is wrong with others, at the
            same time or later.
        instrument: Name of the instrument whose picture shows it.
    """

    code: str
    name: str
    severity: Severity
    title: str
    why: str
    action: str
    source: str
    needs: tuple[str, ...]
    check: Callable[[Record], Sign | NotKnown | None]
    least: int = 1
    explains: tuple[str, ...] = ()
    spreads: bool = False
    instrument: str | None = None

    def examine(self, run: Record) -> Finding | NotKnown | None:
        """Look at a run: a finding, why nothing is known, or None where nothing is wrong."""
        missing = [name for name in self.needs if not run.has(name)]
        if run.tracked < self.least:
            return NotKnown(f"it takes {self.least} tracked steps, and there are {run.tracked}")
        if missing:
            return NotKnown(
                f"there is nothing of {' and '.join(missing)}; track configuration('health')"
            )
        # Infinities are what rules look for: nothing that numpy has to warn a training of.
        with np.errstate(all="ignore"):
            seen = self.check(run)
        return self._finding(seen) if isinstance(seen, Sign) else seen

    def _finding(self, sign: Sign) -> Finding:
        return Finding(
            code=self.code,
            name=self.name,
            severity=sign.severity or self.severity,
            step=sign.step,
            title=sign.title or self.title,
            why=self.why,
            action=self.action,
            source=self.source,
            subjects=sign.subjects,
            evidence=sign.evidence,
            confidence=sign.confidence,
            instrument=self.instrument,
        )
