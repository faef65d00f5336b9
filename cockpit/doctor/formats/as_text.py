"""A diagnosis for a terminal of 80 columns, without colours."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from cockpit.doctor.diagnosis import Diagnosis
from cockpit.doctor.formats.words import evidence, grouped, headline, percent, subjects
from cockpit.findings import Finding
from cockpit.printable import printable

WIDTH = 80
LABEL = 13


def as_text(diagnosis: Diagnosis, run: str) -> str:
    """Return a diagnosis as text."""
    return "\n".join(_lines(diagnosis, run)) + "\n"


def _lines(diagnosis: Diagnosis, run: str) -> Iterator[str]:
    yield printable(run)
    yield headline(diagnosis)
    for finding in diagnosis.findings:
        yield ""
        yield from _of(finding)
        caused = [c.finding for c in diagnosis.consequences if c.cause == finding.code]
        if caused:
            yield from _field("explains", "; ".join(f"{f.code} {f.title}" for f in caused))
    if diagnosis.unchecked:
        yield ""
        yield "Not checked:"
        reasons = ((f"{one.code} {one.name}", one.reason) for one in diagnosis.unchecked)
        for reason, names in grouped(reasons).items():
            text = printable(f"{', '.join(names)}: {reason}")
            yield from textwrap.wrap(
                text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
            )


def _of(finding: Finding) -> Iterator[str]:
    title = printable(f"{finding.code} {finding.severity}: {finding.title}")
    yield from textwrap.wrap(title, WIDTH, subsequent_indent="  ")
    fields = {
        "since step": str(finding.step),
        "where": subjects(finding),
        "evidence": evidence(finding),
        "why": finding.why,
        "what to do": finding.action,
        "source": finding.source,
        "confidence": percent(finding.confidence),
    }
    for label, text in fields.items():
        if text:
            yield from _field(label, text)


def _field(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        printable(text),
        WIDTH,
        initial_indent=f"  {label:<{LABEL - 2}}",
        subsequent_indent=" " * LABEL,
        break_on_hyphens=False,
    )
