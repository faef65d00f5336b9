"""A diagnosis for a page or a comment."""

from __future__ import annotations

from collections.abc import Iterator

from cockpit.doctor.diagnosis import Diagnosis
from cockpit.doctor.formats.words import evidence, grouped, headline, percent
from cockpit.findings import Finding
from cockpit.printable import printable


def as_markdown(diagnosis: Diagnosis, run: str) -> str:
    """Return a diagnosis as Markdown."""
    return "\n".join(_lines(diagnosis, run)) + "\n"


def _lines(diagnosis: Diagnosis, run: str) -> Iterator[str]:
    yield f"# Diagnosis of {_code(run)}"
    yield ""
    yield f"{headline(diagnosis)}."
    for finding in diagnosis.findings:
        yield ""
        yield from _of(finding)
        caused = [c.finding for c in diagnosis.consequences if c.cause == finding.code]
        if caused:
            yield f"- **Explains**: {_plain('; '.join(f'{f.code} {f.title}' for f in caused))}"
    if diagnosis.unchecked:
        yield ""
        yield "## Not checked"
        yield ""
        reasons = ((f"{one.code} {one.name}", one.reason) for one in diagnosis.unchecked)
        for reason, names in grouped(reasons).items():
            yield f"- {', '.join(names)}: {_plain(reason)}"


def _of(finding: Finding) -> Iterator[str]:
    yield f"## {finding.code} {finding.severity}: {_plain(finding.title)}"
    yield ""
    yield f"- **Since step**: {finding.step}"
    if finding.subjects:
        yield f"- **Where**: {', '.join(map(_code, finding.subjects))}"
    if finding.evidence:
        yield f"- **Evidence**: {_plain(evidence(finding))}"
    yield f"- **Why**: {_plain(finding.why)}"
    yield f"- **What to do**: {_plain(finding.action)}"
    yield f"- **Source**: {_plain(finding.source)}"
    yield f"- **Confidence**: {percent(finding.confidence)}"


def _code(text: str) -> str:
    text = printable(text)
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _plain(text: str) -> str:
    """Return text in which nothing is read as markup."""
    for sign in "\\`*_[]<>|#":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(printable(text).split())
